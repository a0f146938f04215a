"""`oneshot-dp import-features`: a feature cache from an npz of embeddings."""

import dataclasses
import os
import pathlib
import warnings
import zipfile
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int, Int64
from numpy.lib.npyio import NpzFile

from configs.errors import InputError
from configs.schema import (
  EXAMPLE_UNIT,
  POSITION_IDS,
  EmbeddingDtype,
  check_unit_name,
)
from extract.block_builder import BlockBuilder, Rows
from extract.cache_block import BLOCK_ROWS, Block
from extract.cache_identity import (
  BackboneIdentity,
  CacheIdentity,
  NumClassesSource,
  numbered_class_names,
)
from extract.cache_reader import FeatureCache, open_cache
from extract.cache_writer import begin, finish, write_shard


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Arrays:
  embedding: Float[np.ndarray, "n d"]
  label: Int[np.ndarray, " n"]
  example_id: Int64[np.ndarray, " n"]
  unit_id: Int64[np.ndarray, " n"] | None
  class_names: tuple[str, ...] | None
  id_source: str

  def rows(self, indices: range) -> Iterator[Rows]:
    for start in range(indices.start, indices.stop, BLOCK_ROWS):
      part = slice(start, min(start + BLOCK_ROWS, indices.stop))
      yield Rows(
        embedding=self.embedding[part],
        label=self.label[part],
        example_id=self.example_id[part],
        unit_id=None if self.unit_id is None else self.unit_id[part],
      )


def import_features(
  npz_path: str | os.PathLike,
  out_dir: str | os.PathLike,
  *,
  split: str = "train",
  dataset_name: str | None = None,
  num_classes: int | None = None,
  backbone_name: str | None = None,
  unit_name: str | None = None,
  embedding_dtype: EmbeddingDtype | None = None,
  shard_rows: int = 2048,
) -> FeatureCache:
  """Writes the arrays of an npz file as a feature cache.

  The file holds `embedding` float [n, d] and `label` int [n], and may hold
  `example_id` int [n] (default: the row), `unit_id` int [n] and `class_names`
  str [K]. Without `embedding`, `{split}_embedding`, `{split}_label`,
  `{split}_example_id` and `{split}_unit_id` are read.

  *Privacy*: a row is a privacy unit, unless `unit_id` says whose it is. K must
  be public: it is the length of `class_names`, or `num_classes`. With neither,
  the largest label + 1 is taken, which is private, with a warning and a mark in
  the cache.

  An interrupted import starts again from the first row; importing into a
  finished cache checks that it holds these very rows and leaves it as it is.

  Args:
    npz_path: the file.
    out_dir: the cache to write.
    split: public name of the split.
    dataset_name: public name of the data set; None is the file's stem.
    num_classes: K.
    backbone_name: what made the embeddings; a head fits caches with the same
      name and d.
    unit_name: public name of what `unit_id` numbers ("user", "patient").
    embedding_dtype: precision in the cache; None keeps the file's own
      (float32 for float64).
    shard_rows: rows per shard.

  Returns:
    The cache.

  Raises:
    InputError: anything about the file or `out_dir` that is not as above.
    RunError: a full or broken disk.

  Warns:
    UserWarning: K is taken from the labels.
  """
  path = pathlib.Path(npz_path)
  arrays = _checked(path, _load(path, split))
  _check_unit(path, arrays, unit_name)
  class_names, source = _class_names(path, arrays, num_classes)
  stored_as = embedding_dtype or (
    "float16" if arrays.embedding.dtype == np.float16 else "float32"
  )
  identity = CacheIdentity(
    dataset=dataset_name or path.stem,
    split=split,
    source_num_examples=len(arrays.label),
    feature_dim=arrays.embedding.shape[1],
    class_names=class_names,
    num_classes_source=source,
    backbone=BackboneIdentity(name=backbone_name or "imported features"),
    embedding_dtype=stored_as,
    shard_rows=shard_rows,
    privacy_unit=unit_name or EXAMPLE_UNIT,
    id_source=arrays.id_source,
  )
  if begin(out_dir, identity):
    # Finished shards are not kept: they may be of another file, and nothing
    # in the identity can tell, since it must not depend on private rows.
    for i in range(identity.num_shards):
      write_shard(out_dir, identity, i, arrays.rows(identity.shard_range(i)))
    finish(out_dir, identity)
    return open_cache(out_dir)
  cache = open_cache(out_dir)
  _refuse_other_rows(cache, arrays)
  return cache


def _load(path: pathlib.Path, split: str) -> dict[str, np.ndarray]:
  """The arrays that matter, by their names without the split."""
  wanted = ("embedding", "label", "example_id", "unit_id")
  if not path.is_file():
    raise InputError(f"{path}: no such file.")
  try:
    # (Given the path, np.load leaves the file open where it is malformed.)
    with path.open("rb") as raw:
      file = np.load(raw, allow_pickle=False)
      if not isinstance(file, NpzFile):
        raise InputError(f"{path}: one array, not an npz; use numpy.savez.")
      present = sorted(file.files)
      prefix = "" if "embedding" in present else f"{split}_"
      other = f"{split}_unit_id" if not prefix else "unit_id"
      if other in present:
        raise InputError(
          f"{path}: {other} does not go with {prefix}embedding, and would be"
          f" left out of the guarantee; call it {prefix}unit_id."
        )
      missing = [n for n in wanted[:2] if prefix + n not in present]
      if missing:
        raise InputError(
          f"{path}: no array {' or '.join(missing)} (or {split}_"
          f"{f' or {split}_'.join(missing)}); present: "
          f"{', '.join(present) or 'none'}."
        )
      found = {n: file[prefix + n] for n in wanted if prefix + n in present}
      if "class_names" in present:
        found["class_names"] = file["class_names"]
      return found
  except InputError:
    raise
  except (OSError, ValueError, EOFError, zipfile.BadZipFile) as e:
    reason = (
      "it holds Python objects; save plain arrays"
      if "allow_pickle" in str(e) and zipfile.is_zipfile(path)
      else f"not a readable npz ({type(e).__name__})"
    )
    raise InputError(f"{path}: {reason}.") from e


def _checked(path: pathlib.Path, found: dict[str, np.ndarray]) -> _Arrays:
  embedding, label = found["embedding"], found["label"]
  if embedding.dtype not in (np.float16, np.float32, np.float64):
    raise InputError(
      f"{path}: embedding has dtype {embedding.dtype}; save it as float16, "
      "float32 or float64."
    )
  if embedding.ndim != 2 or 0 in embedding.shape:
    raise InputError(
      f"{path}: embedding has shape {embedding.shape}; it must be [n, d] with "
      "n and d at least 1."
    )
  n = len(embedding)
  example_id = found.get("example_id", np.arange(n))
  columns = {"label": label, "example_id": example_id}
  if "unit_id" in found:
    columns["unit_id"] = found["unit_id"]
  for name, array in columns.items():
    if array.dtype.kind not in "iu":
      raise InputError(
        f"{path}: {name} has dtype {array.dtype}; save it as integers."
      )
    if array.shape != (n,):
      raise InputError(
        f"{path}: {name} has shape {array.shape}, embedding has {n} rows; "
        f"{name} must be [{n}]."
      )
    if array.max() > np.iinfo(np.int64).max:
      raise InputError(f"{path}: {name} has values that int64 does not hold.")
  columns = {name: array.astype(np.int64) for name, array in columns.items()}
  label, example_id = columns["label"], columns["example_id"]
  unique, counts = np.unique(example_id, return_counts=True)
  if len(unique) < n:
    raise InputError(
      f"{path}: example_id {unique[counts > 1][0]} comes more than once; an "
      "example may be counted only once."
    )
  for bad, what in (
    (~np.isfinite(embedding).all(axis=1), "an embedding that is not finite"),
    (label < 0, "a negative label"),
  ):
    if bad.any():
      raise InputError(
        f"{path}: example_id {example_id[bad][0]} has {what}; mend or "
        "remove the row."
      )
  names = found.get("class_names")
  if names is not None:
    if names.dtype.kind not in "US" or names.ndim != 1 or not len(names):
      raise InputError(
        f"{path}: class_names has dtype {names.dtype} and shape {names.shape}; "
        "it must be strings [K]."
      )
    names = np.char.decode(names) if names.dtype.kind == "S" else names
    if len(set(names.tolist())) < len(names):
      raise InputError(f"{path}: class_names holds a name twice.")
  return _Arrays(
    embedding=embedding,
    label=label,
    example_id=example_id,
    unit_id=columns.get("unit_id"),
    class_names=None if names is None else tuple(names.tolist()),
    id_source="example_id" if "example_id" in found else POSITION_IDS,
  )


def _check_unit(
  path: pathlib.Path, arrays: _Arrays, unit_name: str | None
) -> None:
  if unit_name is not None:
    check_unit_name(unit_name)
  if arrays.unit_id is not None and unit_name is None:
    raise InputError(
      f"{path}: unit_id says that a privacy unit may have many rows; name the"
      " unit with --unit-name (user, patient ...), or remove the array if every"
      " example is a unit of its own."
    )
  if arrays.unit_id is None and unit_name is not None:
    raise InputError(
      f"{path}: unit_name={unit_name!r}, but there is no unit_id array to say"
      " whose each row is; add it, or leave the name out."
    )


def _class_names(
  path: pathlib.Path, arrays: _Arrays, num_classes: int | None
) -> tuple[tuple[str, ...], NumClassesSource]:
  names = arrays.class_names
  source: NumClassesSource
  if num_classes is not None and num_classes < 1:
    raise InputError(f"num_classes={num_classes} must be at least 1.")
  if names is not None:
    if num_classes not in (None, len(names)):
      raise InputError(
        f"{path}: num_classes={num_classes} but class_names has {len(names)}; "
        "give one of them, or make them agree."
      )
    source = "class_names"
  elif num_classes is not None:
    names, source = numbered_class_names(num_classes), "flag"
  else:
    k = int(arrays.label.max()) + 1
    warnings.warn(
      f"{path}: no class_names and no num_classes, so K = {k} is taken from "
      "the labels, which are private, and is treated as public; give "
      "num_classes to keep the guarantee.",
      stacklevel=3,
    )
    names, source = numbered_class_names(k), "labels (treated as public)"
  outside = arrays.label >= len(names)
  if outside.any():
    raise InputError(
      f"{path}: example_id {arrays.example_id[outside][0]} has a label outside "
      f"[0, {len(names)}); mend the labels or the class names."
    )
  return names, source


def _refuse_other_rows(cache: FeatureCache, arrays: _Arrays) -> None:
  """The finished cache of the same identity must hold the same rows."""
  for i in range(len(cache.shards)):
    builder = BlockBuilder(cache.info, cache.shards[i].file)
    now = builder.blocks(arrays.rows(cache.info.shard_range(i)))
    for old, new in zip(cache.shard_blocks(i), now, strict=True):
      if not _same(old, new):
        raise InputError(
          f"{cache.path} holds other rows than the file; choose another "
          "--out, or delete it to import again."
        )


def _same(one: Block, other: Block) -> bool:
  # (The identity has seen to it that both have a unit_id, or neither.)
  columns = [f.name for f in dataclasses.fields(Block)]
  return all(
    getattr(one, name).tobytes() == getattr(other, name).tobytes()
    for name in columns
    if getattr(one, name) is not None
  )
