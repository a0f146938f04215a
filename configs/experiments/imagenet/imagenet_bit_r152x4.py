r"""ImageNet-1k through a BiT ResNet-152x4 at 256 px, as in the paper.

oneshot-dp extract imagenet_bit_r152x4 \
      --split train --out caches/imagenet-bit-r152x4-train
"""

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.experiments.imagenet import imagenet_config


def get_config() -> extract_config.ExtractConfig:
  return imagenet_config(
    "bit_r152x4", "hf://timm/resnetv2_152x4_bit.goog_in21k/model.safetensors"
  )
