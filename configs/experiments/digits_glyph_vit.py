"""scikit-learn's handwritten digits through the embedded pretrained network.

Run, once `oneshot-dp demo` has prepared the digits in DATA:

    oneshot-dp extract digits_glyph_vit --source.data-dir DATA --split train \
      --out caches/digits-train
"""

from oneshot_dp.configs.extract_config import (
  BackboneConfig,
  ExtractConfig,
  TfdsSource,
)


def get_config() -> ExtractConfig:
  return ExtractConfig(
    source=TfdsSource(name="sklearn_digits"),
    backbone=BackboneConfig(name="glyph_vit"),
  )
