r"""A folder of photographs through a ViT-B/16: shorter side 256, crop 224.

Run:

    oneshot-dp extract folder_vit_b16 --source.root photos --split train \
      --backbone.weights vit_b16.npz --out caches/photos-train
"""

from oneshot_dp.configs.extract_config import (
  BackboneConfig,
  ExtractConfig,
  ImageFolderSource,
  PreprocessConfig,
)


def get_config() -> ExtractConfig:
  return ExtractConfig(
    source=ImageFolderSource(root="photos"),
    backbone=BackboneConfig(name="vit_b16"),
    preprocess=PreprocessConfig(resize=256),
  )
