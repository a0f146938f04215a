"""ImageNet-1k at 256 px, as in the paper: a file for each backbone.

Not run yet: there was neither ImageNet nor an accelerator at hand.

ImageNet-21k, on which the weights were trained, contains ImageNet-1k's own
photographs. So the runs repeat the paper's, but no epsilon covers what the
backbone has seen of them: for a claim about ImageNet-1k itself give weights
that have not.
"""

from oneshot_dp.configs import extract_config


def imagenet_config(
  backbone: str, weights: str | None = None
) -> extract_config.ExtractConfig:
  """The paper's extraction; `--views 16` makes it the augmented variant.

  The shorter side is resized to 384 and the central 256 x 256 cropped. TFDS
  prepares imagenet2012 from the archives that image-net.org gives.

  Source: Mehta et al. (TMLR 2023), appendix D.
  """
  return extract_config.ExtractConfig(
    source=extract_config.TfdsSource(name="imagenet2012"),
    backbone=extract_config.BackboneConfig(
      name=backbone, weights=weights, compute_dtype="bfloat16"
    ),
    preprocess=extract_config.PreprocessConfig(image_size=256, resize=384),
  )
