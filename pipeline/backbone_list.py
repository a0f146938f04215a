"""What `oneshot-dp backbones` says."""

import math

from extract.backbones.architecture import Architecture
from extract.backbones.registry import (
  RANDOM_PATCHES,
  backbone_names,
  feature_dim,
  find_architecture,
  parameter_shapes,
)
from extract.preprocess import Preprocessing

_RANDOM_PATCHES = "random cosine features of 5x5 patches; no weights"
_USER = (
  "FILE.py:FUNCTION",
  "your own (params, images [b, s, s, 3]) -> embeddings [b, d]",
)


def list_backbones() -> str:
  """A line for each backbone: name, what it is, embeddings it offers."""
  rows = []
  for name in backbone_names():
    if name == RANDOM_PATCHES:
      rows.append((name, _RANDOM_PATCHES))
      continue
    architecture = find_architecture(name)
    offered = ", ".join(architecture.embeddings)
    rows.append((name, f"{architecture.summary}; {offered}"))
  rows.append(_USER)
  width = max(len(name) for name, _ in rows)
  return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def describe_backbone(name: str) -> str:
  """All about one backbone, as a table.

  Raises:
    InputError: there is no such backbone.
  """
  if name == RANDOM_PATCHES:
    return f"{name}: {_RANDOM_PATCHES}"
  architecture = find_architecture(name)
  reference = architecture.reference
  rows = {
    "backbone": f"{name}: {architecture.summary}",
    "parameters": f"{_count(architecture) / 1e6:.1f} million without the head",
    "embeddings": ", ".join(
      _with_dim(architecture, embedding)
      for embedding in architecture.embeddings
    )
    + " (the first is the default)",
    "image": f"{reference.image_size} px, {_resizing(reference)}",
    "mean, std": f"{reference.mean}, {reference.std}",
    "weights": "\n".join(architecture.layouts),
  }
  width = max(map(len, rows))
  return "\n".join(
    f"{title:<{width}}  {text.replace(chr(10), chr(10) + ' ' * (width + 2))}"
    for title, text in rows.items()
  )


def _resizing(reference: Preprocessing) -> str:
  if reference.resize == "square":
    return f"both sides resized to it, {reference.resample}"
  return (
    f"cropped from a shorter side of {reference.resize}, {reference.resample}"
  )


def _count(architecture: Architecture) -> int:
  module = architecture.build(architecture.embeddings[0], "float32")
  shapes = parameter_shapes(module, architecture.reference.image_size)
  return sum(math.prod(shape) for shape in shapes.values())


def _with_dim(architecture: Architecture, embedding: str) -> str:
  """The name of an embedding and its width; a pattern stands for itself."""
  if "<" in embedding:
    return embedding
  module = architecture.build(embedding, "float32")
  return f"{embedding} [{feature_dim(module, architecture.reference)}]"
