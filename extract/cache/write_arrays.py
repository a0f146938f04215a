"""A feature cache of embeddings that are already in memory."""

import numbers
import os
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Shaped

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  EXAMPLE_UNIT,
  EmbeddingDtype,
  check_unit_name,
)
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.identity import (
  BackboneIdentity,
  CacheIdentity,
  numbered_class_names,
)
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.extract.cache.rows_in_memory import write_rows

Numbers = Shaped[np.ndarray | jax.Array, "..."]


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
  through `oneshot-dp import-features` give the same bytes.

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
  embedding = _matrix(np.asarray(embeddings))
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
    label=_column("labels", labels, len(embedding)),
    example_id=np.arange(len(embedding)),
    unit_id=(
      None
      if unit_ids is None
      else _column("unit_ids", unit_ids, len(embedding))
    ),
  )
  if not write_rows(out, identity, rows):
    raise InputError(
      f"{out} is a finished cache already: read it with open_cache, or choose"
      " another directory."
    )
  return open_cache(out)


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


def _matrix(array: np.ndarray) -> np.ndarray:
  if array.ndim != 2 or not array.size:
    raise InputError(
      f"embeddings have shape {array.shape}: give [n, d], n and d at least 1."
    )
  return array


def _column(name: str, values: Numbers, rows: int) -> np.ndarray:
  column = np.asarray(values)
  if column.dtype.kind not in "iu" or column.shape != (rows,):
    raise InputError(
      f"{name} are {column.dtype} {list(column.shape)}: give integers, one for"
      f" each of the {rows} embeddings."
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
