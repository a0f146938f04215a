r"""CIFAR-10 from TFDS through an ImageNet ViT-Ti/16 at 224 px.

oneshot-dp extract cifar10_vit_ti16 --backbone.weights vit_ti16.npz \
      --split train --out caches/cifar10-train
"""

from oneshot_dp.configs import extract_config


def get_config() -> extract_config.ExtractConfig:
  return extract_config.ExtractConfig(
    source=extract_config.TfdsSource(name="cifar10"),
    backbone=extract_config.BackboneConfig(name="vit_ti16"),
  )
