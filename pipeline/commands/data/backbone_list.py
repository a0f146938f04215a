"""What `oneshot-dp backbones` says."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oneshot_dp.extract.backbones.backbone import Architecture
from oneshot_dp.extract.backbones.registry import (
  RANDOM_PATCHES,
  backbone_names,
  feature_dim,
  find_architecture,
  parameter_shapes,
)
from oneshot_dp.extract.images.preprocess import Preprocessing
from oneshot_dp.pipeline.shell.answer import Answer

_RANDOM_PATCHES = "random cosine features of 5x5 patches; no weights"
_USER = (
  "FILE.py:FUNCTION",
  "your own (params, images [b, s, s, 3]) -> embeddings [b, d]",
)


def backbones(name: str | None) -> Answer:
  """All backbones, or all about one; InputError if there is no such."""
  if name is None:
    known = [_summary(each) for each in backbone_names()]
    return Answer(text=_list(known), facts={"backbones": known})
  facts = _facts(name)
  return Answer(text=_table(facts), facts=facts)


def _summary(name: str) -> dict[str, Any]:
  if name == RANDOM_PATCHES:
    return {"name": name, "summary": _RANDOM_PATCHES}
  known = find_architecture(name)
  return {
    "name": name,
    "summary": known.summary,
    "embeddings": known.embeddings,
  }


def _facts(name: str) -> dict[str, Any]:
  if name == RANDOM_PATCHES:
    return _summary(name)
  known = find_architecture(name)
  return _summary(name) | {
    "parameters": _count(known),
    "embeddings": {each: _dim(known, each) for each in known.embeddings},
    "preprocessing": known.reference,
    "weights": known.layouts,
  }


def _list(known: Sequence[Mapping[str, Any]]) -> str:
  rows = []
  for each in known:
    words = (each["summary"], ", ".join(each.get("embeddings", ())))
    rows.append((each["name"], "; ".join(filter(None, words))))
  rows.append(_USER)
  width = max(len(name) for name, _ in rows)
  return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _table(facts: Mapping[str, Any]) -> str:
  title = f"{facts['name']}: {facts['summary']}"
  if facts["name"] == RANDOM_PATCHES:
    return title
  reference: Preprocessing = facts["preprocessing"]
  offered = (
    name if dim is None else f"{name} [{dim}]"
    for name, dim in facts["embeddings"].items()
  )
  rows = {
    "backbone": title,
    "parameters": f"{facts['parameters'] / 1e6:.1f} million without the head",
    "embeddings": f"{', '.join(offered)} (the first is the default)",
    "image": f"{reference.image_size} px, {_resizing(reference)}",
    "mean, std": f"{reference.mean}, {reference.std}",
    "weights": "\n".join(facts["weights"]),
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


def _dim(architecture: Architecture, embedding: str) -> int | None:
  """How many numbers it has; None of a pattern."""
  if "<" in embedding:
    return None
  module = architecture.build(embedding, "float32")
  return feature_dim(module, architecture.reference)
