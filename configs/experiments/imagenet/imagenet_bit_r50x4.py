r"""ImageNet-1k through a BiT ResNet-50x4 at 256 px, as in the paper.

The paper's ResNet-50x4 was never published: bring your own weights, or take
`bit_r50x3` or `imagenet_bit_r152x4`.

    oneshot-dp extract imagenet_bit_r50x4 \
      --backbone.weights WEIGHTS \
      --split train --out caches/imagenet-bit-r50x4-train
"""

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.experiments.imagenet import imagenet_config


def get_config() -> extract_config.ExtractConfig:
  return imagenet_config("bit_r50x4")
