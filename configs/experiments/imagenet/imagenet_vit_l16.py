r"""ImageNet-1k through a ViT-L/16 at 256 px, as in the paper.

oneshot-dp extract imagenet_vit_l16 \
      --split train --out caches/imagenet-vit-l16-train
"""

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.experiments.imagenet import imagenet_config


def get_config() -> extract_config.ExtractConfig:
  return imagenet_config(
    "vit_l16", "hf://timm/vit_large_patch16_224.augreg_in21k/model.safetensors"
  )
