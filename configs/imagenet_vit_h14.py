r"""ImageNet-1k through a ViT-H/14 at 256 px, as in the paper.

Mehta et al. (TMLR 2023), appendix D: the shorter side resized to 384, the
central 256 x 256 cropped; add `--views 16` for the augmented variant. (14 does
not divide 256: the last 4 rows and columns of pixels are not seen, as in the
public code.)

Run (TFDS prepares imagenet2012 from the archives that image-net.org gives):

    oneshot-dp extract imagenet_vit_h14 \
      --split train --out caches/imagenet-vit-h14-train

Not run yet: there was neither ImageNet nor an accelerator at hand.

ImageNet-21k, on which these weights were trained, contains ImageNet-1k's own
photographs. So the run repeats the paper's, but no epsilon covers what the
backbone has seen of them: for a claim about ImageNet-1k itself give weights
that have not.
"""

from oneshot_dp.configs.extract_config import (
  BackboneConfig,
  ExtractConfig,
  PreprocessConfig,
  TfdsSource,
)


def get_config() -> ExtractConfig:
  """The experiment."""
  return ExtractConfig(
    source=TfdsSource(name="imagenet2012"),
    backbone=BackboneConfig(
      name="vit_h14",
      weights="hf://timm/vit_huge_patch14_224.orig_in21k/model.safetensors",
      compute_dtype="bfloat16",
    ),
    preprocess=PreprocessConfig(image_size=256, resize=384),
  )
