r"""Images in an npz through an ImageNet ViT-Ti/16 at 224 px.

oneshot-dp extract arrays_vit_ti16 --source.path images.npz --split train \
      --backbone.weights vit_ti16.npz --out caches/train
"""

from oneshot_dp.configs import extract_config


def get_config() -> extract_config.ExtractConfig:
  return extract_config.ExtractConfig(
    source=extract_config.ArraysSource(path="images.npz"),
    backbone=extract_config.BackboneConfig(name="vit_ti16"),
  )
