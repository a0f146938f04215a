"""A small Vision Transformer of handwritten and printed glyphs, with weights.

Its weights come with the package: `extract/pretraining/train.py` made them, of
typefaces and of strokes that it writes itself. They are for what looks like a
character: dark on light or light on dark, alone, from 8 pixels a side.
"""

import dataclasses
import importlib.resources

from oneshot_dp.extract.backbones.backbone import Architecture
from oneshot_dp.extract.backbones.vit import families
from oneshot_dp.extract.backbones.vit.network import VisionTransformer
from oneshot_dp.extract.images.preprocess import Preprocessing

NAME = "glyph_vit"
EXAMPLES = (NAME,)
WEIGHTS = (
  importlib.resources.files("oneshot_dp.extract.backbones.vit")
  / f"{NAME}.safetensors"
)
_FAMILY = families.Family(
  title="Vision Transformer pretrained on glyphs, weights embedded",
  layouts=(
    "embedded: leave backbone.weights out",
    "safetensors that oneshot_dp.extract.pretraining.train wrote",
  ),
  sizes={},
  published=(),
  # A layer of its own between tokens and classes, of values within [-1, 1].
  embeddings=("pre_logits", "cls", "mean", "cls_mean", "last<k>_cls"),
  reference=Preprocessing(image_size=32),
)
_NETWORK = VisionTransformer(
  width=128, depth=3, mlp_dim=512, num_heads=4, patch=8, mlp="gelu_tanh"
)


def find(name: str) -> Architecture | None:
  """The network, if the name is its own."""
  if name != NAME:
    return None
  found = families.architecture(NAME, _FAMILY, _NETWORK)
  return dataclasses.replace(found, embedded_weights=WEIGHTS)
