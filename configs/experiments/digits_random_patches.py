"""scikit-learn's handwritten digits through random features, without weights.

Run, once `oneshot-dp demo` has prepared the digits in DATA:

    oneshot-dp extract digits_random_patches --source.data-dir DATA \
      --split train --out caches/digits-train
"""

from oneshot_dp.configs.extract_config import (
  BackboneConfig,
  ExtractConfig,
  PreprocessConfig,
  TfdsSource,
)


def get_config() -> ExtractConfig:
  return ExtractConfig(
    source=TfdsSource(name="sklearn_digits"),
    backbone=BackboneConfig(name="random_patches"),
    preprocess=PreprocessConfig(image_size=8),
  )
