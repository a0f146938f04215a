"""Rows of one cache that have the same image, and what is wrong with them.

ε is about one row. An image that is there k times moves a sum k times as far:
ε = 2 at δ = 1e-5 is 4.40 for an image that is there twice. So the holder of a
cache gets to know how many such rows there are. All of it is PRIVATE.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64, Shaped, UInt64

from oneshot_dp.configs.errors import format_count
from oneshot_dp.configs.extract_config import (
  DISTINCT_IMAGE,
  FIXED_GRAPH,
  has_several_owners,
)
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.cache.keys import MOST_KEYS
from oneshot_dp.extract.cache.read import FeatureCache

_SHOWN_CONFLICTS = 5
_SHOWN_IDS = 5
_SHORTEST = 1e-34
"""Norm of a row: what would bring a shorter one to norm 1 overflows float32."""
_NOT_COUNTED = "not counted here, as rows are many: `oneshot-dp inspect` does"


class Duplicates(NamedTuple):
  """How many rows of a cache have equal keys; private.

  Attributes:
    rows: how many rows share their key with another row.
    images: how many keys several rows have.
    most: the largest number of rows with one key.
    across_units: how many images have rows of several privacy units.
    conflicts: for each image in several classes, the example ids of its rows.
    zeros: how many rows have an embedding of zeros, or one too short to be
      brought to norm 1.
    is_constant: whether there are several other rows, all of one embedding.
  """

  rows: int
  images: int
  most: int
  across_units: int
  conflicts: tuple[tuple[int, ...], ...]
  zeros: int = 0
  is_constant: bool = False


def find_duplicates(cache: FeatureCache) -> Duplicates:
  """Compares the keys of all rows of a cache, which are read once.

  The key of a row is a hash of its image's bytes, or, where embeddings were
  imported, of the embedding's. Memory holds about 120 bytes of each
  row. Rows of zeros stand for no image.

  Args:
    cache: a cache, or a part of one.

  Returns:
    Counts, and the ids of rows of one image in several classes; PRIVATE.

  Raises:
    InputError: a shard is missing or damaged.
  """
  keys = [np.zeros((0, 2), np.uint64)]
  labels = [np.zeros(0, np.int32)]
  ids = [np.zeros(0, np.int64)]
  units = [np.zeros((0, cache.info.owners_per_row), np.int64)]
  zeros = 0
  first = np.zeros((0, cache.info.feature_dim))
  num_other_rows = 0
  is_constant = True
  for rows in cache.blocks():
    is_short = rows["embedding_norm"] < _SHORTEST
    zeros += int(is_short.sum())
    # A broken backbone makes one embedding of images that are not the same.
    embedding = rows["embedding"][~is_short]
    if num_other_rows == 0:
      first = embedding[:1]
    num_other_rows += len(embedding)
    is_constant = is_constant and bool((embedding == first).all())
    # A key of zeros is that of an imported row of zeros, which is no image.
    is_image = rows["image_key"].any(axis=1)
    keys.append(rows["image_key"][is_image])
    labels.append(rows["label"][is_image])
    ids.append(rows["example_id"][is_image])
    unit = rows.get("unit_id", rows["example_id"])[is_image]
    units.append(unit.reshape(len(unit), cache.info.owners_per_row))
  duplicates = _compare(
    np.concatenate(keys),
    np.concatenate(labels),
    np.concatenate(ids),
    np.concatenate(units),
  )
  return duplicates._replace(
    zeros=zeros, is_constant=is_constant and num_other_rows > 1
  )


def _compare(
  key: UInt64[np.ndarray, "n 2"],
  label: Int32[np.ndarray, " n"],
  example_id: Int64[np.ndarray, " n"],
  unit: Int64[np.ndarray, "n m"],
) -> Duplicates:
  # Sorted by key, rows of one image lie side by side.
  order = np.lexsort((example_id, key[:, 1], key[:, 0]))
  key = key[order]
  label = label[order]
  example_id = example_id[order]
  unit = unit[order]
  is_first = np.ones(len(key), bool)
  is_first[1:] = (key[1:] != key[:-1]).any(axis=1)
  first = np.flatnonzero(is_first)
  count = np.diff(first, append=len(key))
  across_classes = _differs_within(label[:, np.newaxis], is_first)
  conflicts: list[tuple[int, ...]] = []
  for image in np.flatnonzero(across_classes):
    ids = example_id[first[image] : first[image] + count[image]]
    conflicts.append(tuple(ids.tolist()))
  return Duplicates(
    rows=int(count[count > 1].sum()),
    images=int((count > 1).sum()),
    most=int(count.max(initial=0)),
    across_units=int(_differs_within(unit, is_first).sum()),
    conflicts=tuple(conflicts),
  )


def _differs_within(
  rows: Shaped[np.ndarray, "n m"], is_first: Bool[np.ndarray, " n"]
) -> Bool[np.ndarray, " groups"]:
  """Tells which groups of neighbors have values that are not all equal."""
  # Comparing neighbors is enough: values that are not all equal change
  # somewhere between two of them.
  differs = np.zeros(len(rows), bool)
  differs[1:] = (rows[1:] != rows[:-1]).any(axis=1) & ~is_first[1:]
  groups = np.zeros(int(is_first.sum()), bool)
  groups[(np.cumsum(is_first) - 1)[differs]] = True
  return groups


def count_duplicates(cache: FeatureCache) -> dict[str, str]:
  """Describes the duplicates of a cache that was just made, to its holder.

  To count them all rows are read again. So of a cache of more than 4 million
  rows, which may lie in a distant store, `inspect` alone does it.

  Args:
    cache: the whole of it.

  Returns:
    Values by their captions; PRIVATE.
  """
  if cache.num_rows > MOST_KEYS:
    return {"exact duplicates": _NOT_COUNTED}
  return describe_duplicates(find_duplicates(cache), cache.info)


def describe_duplicates(
  duplicates: Duplicates, info: CacheInfo
) -> dict[str, str]:
  """Says what there is, and what to do about it; PRIVATE.

  Args:
    duplicates: of a cache.
    info: its metadata.

  Returns:
    Values by their captions, in the order to print them in.
  """
  # These are counts of private rows, for whoever holds the cache: they go to
  # the terminal, and into nothing that is released.
  what = "embedding" if info.keys == "embedding" else "image"
  lines: dict[str, str] = {"exact duplicates": "none"}
  if duplicates.rows:
    text = (
      f"{duplicates.rows:,} rows share their {what} with another row"
      f" ({format_count(duplicates.images, what)}, there up to"
      f" {duplicates.most:,} times)"
    )
    lines["exact duplicates"] = f"{text}: {_advice(duplicates, info, what)}"
  if duplicates.zeros:
    lines["rows of zeros"] = (
      f"{duplicates.zeros:,} rows are all zeros, or shorter than {_SHORTEST:g}:"
      " they teach nothing, and count as rows"
    )
  if duplicates.is_constant:
    lines["embeddings"] = (
      "all are the same, so nothing can be learned: look for what went wrong in"
      " the backbone or the import"
    )
  if duplicates.conflicts:
    shown = [_equal_ids(ids) for ids in duplicates.conflicts[:_SHOWN_CONFLICTS]]
    if len(duplicates.conflicts) > _SHOWN_CONFLICTS:
      shown.append("…")
    lines["label conflicts"] = (
      f"{format_count(len(duplicates.conflicts), what)} in several classes:"
      f" example ids {', '.join(shown)}; leave each in one class"
    )
    if info.keys != "embedding":
      lines["label conflicts"] += (
        " (`oneshot-dp inspect`, given the images, names their files)"
      )
  return lines


def _equal_ids(ids: Sequence[int]) -> str:
  """The ids of one image, or as many as a line has room for."""
  text = " = ".join(str(example_id) for example_id in ids[:_SHOWN_IDS])
  if len(ids) > _SHOWN_IDS:
    text += f" = … ({len(ids):,} rows)"
  return text


def _advice(duplicates: Duplicates, info: CacheInfo, what: str) -> str:
  """Says what the duplicates mean for ε, and what to do about them."""
  # What protects an image that is there twice is a unit that has both rows.
  if info.unit == DISTINCT_IMAGE:
    return "all rows of one are protected together"
  if not info.has_units:
    return (
      "epsilon is about one row, and is more for these; with --units same-image"
      f" all rows of one {what} are protected together"
    )
  unit = info.unit.removesuffix(FIXED_GRAPH)
  if has_several_owners(info.unit):
    if not duplicates.across_units:
      return f"all rows of one {what} are of the same {unit}s"
    return (
      f"the rows of {duplicates.across_units:,} are not all of the same"
      f" {unit}s, and each is protected in its own rows alone: give all copies"
      " all owners, or leave them in once"
    )
  if not duplicates.across_units:
    return f"each within one {unit}, whose rows are protected together"
  return (
    f"{duplicates.across_units:,} are of several {unit}s, and each is"
    " protected in its own rows alone: give such rows one owner, or leave them"
    " in once"
  )
