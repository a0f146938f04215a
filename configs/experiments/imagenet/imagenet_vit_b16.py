r"""ImageNet-1k through a ViT-B/16 at 256 px, as in the paper.

Run:

    oneshot-dp extract imagenet_vit_b16 \
      --split train --out caches/imagenet-vit-b16-train

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
    "vit_b16",
    "hf://timm/vit_base_patch16_224.augreg_in21k/model.safetensors",
  )
