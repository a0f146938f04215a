r"""Parquet, Hugging Face data sets on disk or tars through a ViT-B/16.

oneshot-dp extract table_vit_b16 --source.path data --split train \
      --backbone.weights vit_b16.npz --out caches/train
"""

from oneshot_dp.configs import extract_config


def get_config() -> extract_config.ExtractConfig:
  return extract_config.ExtractConfig(
    source=extract_config.TableSource(path="data"),
    backbone=extract_config.BackboneConfig(name="vit_b16"),
    preprocess=extract_config.PreprocessConfig(resize="crop"),
  )
