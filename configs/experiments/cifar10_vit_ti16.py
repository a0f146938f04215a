r"""CIFAR-10 from TFDS through an ImageNet ViT-Ti/16 at 224 px.

Run:

    oneshot-dp extract cifar10_vit_ti16 --backbone.weights vit_ti16.npz \
      --split train --out caches/cifar10-train
"""

from oneshot_dp.configs.extract_config import (
  BackboneConfig,
  ExtractConfig,
  TfdsSource,
)


def get_config() -> ExtractConfig:
  return ExtractConfig(
    source=TfdsSource(name="cifar10"),
    backbone=BackboneConfig(name="vit_ti16"),
  )
