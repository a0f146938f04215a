r"""ImageNet-1k through a ViT-H/14 at 256 px, as in the paper.

14 does not divide 256: the last 4 rows and columns of pixels are not seen, as
in the public code.

    oneshot-dp extract imagenet_vit_h14 \
      --split train --out caches/imagenet-vit-h14-train
"""

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.experiments.imagenet import imagenet_config


def get_config() -> extract_config.ExtractConfig:
  return imagenet_config(
    "vit_h14", "hf://timm/vit_huge_patch14_224.orig_in21k/model.safetensors"
  )
