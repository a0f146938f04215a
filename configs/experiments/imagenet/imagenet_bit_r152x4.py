r"""ImageNet-1k through a BiT ResNet-152x4 at 256 px, as in the paper.

Run:

    oneshot-dp extract imagenet_bit_r152x4 \
      --split train --out caches/imagenet-bit-r152x4-train

Not run yet: there was neither ImageNet nor an accelerator at hand.

ImageNet-21k, on which these weights were trained, contains ImageNet-1k's own
photographs. So the run repeats the paper's, but no epsilon covers what the
backbone has seen of them: for a claim about ImageNet-1k itself give weights
that have not.
"""

from oneshot_dp.configs.experiments.imagenet import imagenet_config
from oneshot_dp.configs.extract_config import ExtractConfig


def get_config() -> ExtractConfig:
  """The experiment."""
  return imagenet_config(
    "bit_r152x4",
    "hf://timm/resnetv2_152x4_bit.goog_in21k/model.safetensors",
  )
