r"""A folder of photographs through a ViT-B/16, or through --backbone.name.

oneshot-dp extract folder_vit_b16 --source.root photos --split all \
      --backbone.weights vit_b16.npz --out caches/photos
"""

from oneshot_dp.configs import extract_config


def get_config() -> extract_config.ExtractConfig:
  return extract_config.ExtractConfig(
    source=extract_config.ImageFolderSource(root="photos"),
    backbone=extract_config.BackboneConfig(name="vit_b16"),
    preprocess=extract_config.PreprocessConfig(resize="crop"),
  )
