r"""ImageNet-1k through a ViT-H/14 at 256 px, as in the paper.

14 does not divide 256: the last 4 rows and columns of pixels are not seen, as
in the public code.

Run:

    oneshot-dp extract imagenet_vit_h14 \
      --split train --out caches/imagenet-vit-h14-train

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
    "vit_h14",
    "hf://timm/vit_huge_patch14_224.orig_in21k/model.safetensors",
  )
