"""Rows that are all in memory, as a cache: all of them are written, or none."""

import itertools
import numbers
import os
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Bool, Shaped

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  EXAMPLE_UNIT,
  EmbeddingDtype,
  check_unit_name,
)
from oneshot_dp.extract.cache.block import BLOCK_ROWS, Block, columns, cut
from oneshot_dp.extract.cache.checked_rows import BlockBuilder, Outside, Rows
from oneshot_dp.extract.cache.identity import (
  BackboneIdentity,
  CacheIdentity,
  numbered_class_names,
)
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.extract.cache.shard_writer import write_shard
from oneshot_dp.extract.cache.writer import claim, finish, start_again

Numbers = Shaped[np.ndarray | jax.Array, "..."]
Inside = Bool[np.ndarray, " n"]


def write_cache(
  out: str | os.PathLike,
  embeddings: Numbers,
  labels: Numbers,
  *,
  dataset: str,
  num_classes: int,
  class_names: Sequence[str] | None = None,
  split: str = "train",
  backbone: str = "imported features",
  unit_ids: Numbers | None = None,
  unit_name: str | None = None,
) -> FeatureCache:
  """Writes arrays as a feature cache, for the command line to read.

  The cache is the private data: its directory has mode 0700. The same arrays
  through `oneshot-dp import` give the same bytes.

  >>> import tempfile
  >>> import numpy as np
  >>> import oneshot_dp
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   cache = oneshot_dp.write_cache(
  ...     f"{folder}/cache",
  ...     np.eye(4, dtype=np.float16),
  ...     np.array([0, 1, 1, 0]),
  ...     dataset="pets",
  ...     num_classes=2,
  ...   )
  >>> len(cache), cache.info.feature_dim, cache.info.embedding_dtype
  (4, 4, 'float16')

  Args:
    out: a directory that is not there yet.
    embeddings: [n, d] floats, in the order of the rows, whose places are their
      example ids. float16 and bfloat16 are kept, others stored as float32.
    labels: [n] integers in [0, K), private.
    dataset: public name of the data set: the ledger goes by it, so that the
      same data must have the same name everywhere.
    num_classes: K, public: known without the labels.
    class_names: K public names; None is "0", "1" ...
    split: public name of the split.
    backbone: what made the embeddings; a head fits caches with the same name
      and d.
    unit_ids: [n] integers, whose each row is, where a person may have many;
      None is a privacy unit per row.
    unit_name: public name of what they number ("user", "patient").

  Returns:
    The cache.

  Raises:
    InputError: rows that a cache cannot hold (the message names a row, never
      its label or embedding), names that are blank or do not fit, or an `out`
      that holds anything. Nothing is written then.
    RunError: a full or broken disk.
  """
  embedding = np.asarray(embeddings)
  if embedding.ndim != 2 or not embedding.size:
    raise InputError(
      f"embeddings have shape {embedding.shape}: give [n, d], n and d at least"
      " 1."
    )
  if (unit_ids is None) != (unit_name is None):
    raise InputError(
      f"unit_name={unit_name!r} and unit_ids go together: give both where a"
      " unit may have many rows, and neither elsewhere."
    )
  if unit_name is not None:
    check_unit_name(unit_name)
  identity = CacheIdentity(
    dataset=dataset,
    split=split,
    source_num_examples=len(embedding),
    feature_dim=embedding.shape[1],
    class_names=_class_names(class_names, num_classes),
    num_classes_source="flag" if class_names is None else "class_names",
    backbone=BackboneIdentity(name=backbone),
    embedding_dtype=_stored_as(embedding),
    privacy_unit=unit_name or EXAMPLE_UNIT,
  )
  rows = Rows(
    embedding=embedding,
    label=_column("labels", labels, embedding),
    example_id=np.arange(len(embedding)),
    unit_id=(
      None if unit_ids is None else _column("unit_ids", unit_ids, embedding)
    ),
  )
  if not write_rows(out, identity, rows):
    raise InputError(
      f"{out} is a finished cache already: read it with open_cache, or choose"
      " another directory."
    )
  return open_cache(out)


def write_rows(
  out: str | os.PathLike,
  identity: CacheIdentity,
  rows: Rows,
  on_rows: Callable[[int], object] = lambda rows: None,
  *,
  origin: str | os.PathLike | None = None,
  inside: Inside | None = None,
) -> bool:
  """Writes the cache of an identity: all of its rows, or nothing.

  Into a directory that is not there yet, or that an interrupted call left.
  `on_rows` is called with the number of rows of each shard written (progress);
  errors say that a row is of `origin`, or of `out` without one. `inside` are
  the rows of the part of the split; None is all of them. False: the finished
  cache of this identity is there, and is left alone.

  Raises:
    InputError: rows that the cache cannot hold (see `BlockBuilder.blocks`), a
      blank name, or an `out` that holds anything else.
    RunError: a full or broken disk.
  """
  for i in range(identity.num_shards):
    for _ in _blocks(identity, i, rows, origin or out, inside):
      pass  # they are only checked, before there is a shard to leave behind
  with claim(out, identity) as unfinished:
    if not unfinished:
      return False
    # All shards: those of an interrupted call may be of other rows, and nothing
    # in the identity can tell, since it must not depend on private rows.
    start_again(out)
    for i in range(identity.num_shards):
      indices = identity.shard_range(i)
      write_shard(out, identity, i, _parts(rows, indices, inside))
      on_rows(len(indices))
    finish(out, identity)
  return True


def holds_rows(
  cache: FeatureCache,
  rows: Rows,
  on_rows: Callable[[int], object] = lambda rows: None,
  inside: Inside | None = None,
) -> bool:
  """Whether a cache holds these very rows (as many as it has), to the bit."""
  for i in range(len(cache.shards)):
    now = _blocks(cache.info, i, rows, cache.path, inside)
    for old, new in itertools.zip_longest(cache.shard_blocks(i), now):
      if old is None or new is None:
        return False
      # (The identity has seen to it that both have a unit_id, or neither.)
      there, asked = columns(old), columns(new)
      if any(there[name].tobytes() != asked[name].tobytes() for name in there):
        return False
      on_rows(len(old))
  return True


def _blocks(
  identity: CacheIdentity,
  shard_index: int,
  rows: Rows,
  place: object,
  inside: Inside | None,
) -> Iterator[Block]:
  """The blocks of a shard, as it would hold them."""
  builder = BlockBuilder(identity, str(place))
  indices = identity.shard_range(shard_index)
  return builder.blocks(_parts(rows, indices, inside))


def _parts(
  rows: Rows, indices: range, inside: Inside | None
) -> Iterator[Rows | Outside]:
  for start in range(indices.start, indices.stop, BLOCK_ROWS):
    place = slice(start, min(start + BLOCK_ROWS, indices.stop))
    of_block = cut(rows, place)
    if inside is not None:
      yield Outside(int((~inside[place]).sum()))
      of_block = cut(of_block, inside[place])
    yield of_block


def _class_names(
  names: Sequence[str] | None, num_classes: int
) -> tuple[str, ...]:
  if not isinstance(num_classes, numbers.Integral) or num_classes < 1:
    raise InputError(
      f"num_classes={num_classes!r} must be at least 1 and whole."
    )
  if names is None:
    return numbered_class_names(num_classes)
  if isinstance(names, str):
    raise InputError(
      f"class_names={names!r} is one name: give a list of num_classes names."
    )
  if len(names) != num_classes:
    raise InputError(
      f"num_classes={num_classes} but class_names has {len(names)}."
    )
  for i, name in enumerate(names):
    if name in names[:i]:
      raise InputError(f"class_names has {name!r} twice.")
  return tuple(names)


def _column(name: str, values: Numbers, embedding: np.ndarray) -> np.ndarray:
  column = np.asarray(values)
  if column.dtype.kind not in "iu" or column.shape != embedding.shape[:1]:
    raise InputError(
      f"{name} are {column.dtype} {list(column.shape)}: give integers, one for"
      f" each of the {len(embedding)} embeddings."
    )
  return column


def _stored_as(embedding: np.ndarray) -> EmbeddingDtype:
  match embedding.dtype.name:
    case "float16" | "bfloat16" as name:
      return name
    case "float32" | "float64":
      return "float32"
    case other:
      raise InputError(
        f"embeddings are {other}: give float16, bfloat16, float32 or float64."
      )
