"""scikit-learn's handwritten digits through random features, without weights.

Run, once `oneshot-dp demo` has prepared the digits in DATA:

    oneshot-dp extract digits_random_patches --source.data-dir DATA \
      --split train --out caches/digits-train
"""

from oneshot_dp.configs import extract_config


def get_config() -> extract_config.ExtractConfig:
  return extract_config.ExtractConfig(
    source=extract_config.TfdsSource(name="sklearn_digits"),
    backbone=extract_config.BackboneConfig(name="random_patches"),
    preprocess=extract_config.PreprocessConfig(image_size=8),
  )
