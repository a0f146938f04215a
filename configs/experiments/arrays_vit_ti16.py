r"""Images in an npz through an ImageNet ViT-Ti/16 at 224 px.

Run:

    oneshot-dp extract arrays_vit_ti16 --source.path images.npz --split train \
      --backbone.weights vit_ti16.npz --out caches/train
"""

from oneshot_dp.configs.extract_config import (
  ArraysSource,
  BackboneConfig,
  ExtractConfig,
)


def get_config() -> ExtractConfig:
  return ExtractConfig(
    source=ArraysSource(path="images.npz"),
    backbone=BackboneConfig(name="vit_ti16"),
  )
