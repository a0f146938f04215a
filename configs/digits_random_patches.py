"""scikit-learn's handwritten digits through random features: the demo.

Run:

    oneshot-dp demo --out demo
"""

from configs.schema import (
  BackboneConfig,
  ExtractConfig,
  PreprocessConfig,
  TfdsSource,
)


def get_config() -> ExtractConfig:
  """The experiment; `oneshot-dp demo` prepares the data set."""
  return ExtractConfig(
    source=TfdsSource(name="sklearn_digits"),
    backbone=BackboneConfig(name="random_patches"),
    preprocess=PreprocessConfig(image_size=8),
  )
