r"""ImageNet-1k through a BiT ResNet-50x4 at 256 px, as in the paper.

Mehta et al. (TMLR 2023), appendix D: the shorter side resized to 384, the
central 256 x 256 cropped; add `--views 16` for the augmented variant. The
paper's ResNet-50x4 was never published: bring your own weights, or take
`bit_r50x3` or `imagenet_bit_r152x4`.

Run (TFDS prepares imagenet2012 from the archives that image-net.org gives):

    oneshot-dp extract imagenet_bit_r50x4 \
      --backbone.weights WEIGHTS \
      --split train --out caches/imagenet-bit-r50x4-train

Not run yet: there was neither ImageNet nor an accelerator at hand.
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
      name="bit_r50x4",
      compute_dtype="bfloat16",
    ),
    preprocess=PreprocessConfig(image_size=256, resize=384),
  )
