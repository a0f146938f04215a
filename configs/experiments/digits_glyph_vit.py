"""scikit-learn's handwritten digits through the embedded pretrained network.

Run, once `oneshot-dp demo` has prepared the digits in DATA:

    oneshot-dp extract digits_glyph_vit --source.data-dir DATA --split train \
      --out caches/digits-train
"""

from oneshot_dp.configs import extract_config


def get_config() -> extract_config.ExtractConfig:
  return extract_config.ExtractConfig(
    source=extract_config.TfdsSource(name="sklearn_digits"),
    backbone=extract_config.BackboneConfig(name="glyph_vit"),
  )
