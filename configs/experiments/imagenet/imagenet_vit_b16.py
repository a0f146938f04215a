r"""ImageNet-1k through a ViT-B/16 at 256 px, as in the paper.

oneshot-dp extract imagenet_vit_b16 \
      --split train --out caches/imagenet-vit-b16-train
"""

from oneshot_dp.configs.experiments.imagenet import imagenet_config
from oneshot_dp.configs.extract_config import ExtractConfig


def get_config() -> ExtractConfig:
  return imagenet_config(
    "vit_b16",
    "hf://timm/vit_base_patch16_224.augreg_in21k/model.safetensors",
  )
