"""`oneshot-dp import`: a cache of embeddings that something else computed."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from oneshot_dp.configs.errors import (
  InputError,
  check_name,
  check_num_classes,
  check_positive,
)
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  EmbeddingDtype,
  NumClassesSource,
  check_unit_name,
)
from oneshot_dp.extract.cache.format import CacheInfo, Rows
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.extract.cache.write import write_cache
from oneshot_dp.extract.sources.units import units_of_column
from oneshot_dp.pipeline.vector_files import Npz, Parquet, column, open_vectors

_DTYPES: dict[str, EmbeddingDtype] = {t: t for t in get_args(EmbeddingDtype)}


def import_table(
  file: Path,
  out: Path,
  *,
  dataset_name: str | None = None,
  split: str = "train",
  num_classes: int | None = None,
  class_names: Sequence[str] = (),
  unit_name: str | None = None,
  backbone_name: str = "imported features",
) -> FeatureCache:
  """Writes the vectors of an npz or of Parquet files as a feature cache.

  The columns: `embedding` [n, d] floats, `label` [n] whole numbers in [0, K)
  or, with class names, those; optional `example_id`, else a row's place; and,
  with a unit's name, a column of that name or `unit_id`, numbers or strings. In
  an npz all may have the split's name before them (`train_label`), and
  `class_names` [K] may be there. Memory holds a few thousand vectors, and 24
  bytes of every row.

  *Privacy*: a row is a privacy unit, unless `unit_name` says what is. K is
  public: it is the number of class names, or `num_classes`; with neither it is
  the largest label + 1, with a warning and a mark in the cache.

  InputError: anything about the file or `out` that is not as it says; names a
  row, never its label or vector. Nothing is written then.
  """
  check_positive("--num-classes", num_classes)
  check_num_classes(num_classes or 0, f"--num-classes {num_classes}")
  check_name("--dataset-name", dataset := dataset_name or file.stem)
  if unit_name is not None:
    check_unit_name(unit_name)
  table = open_vectors(file)
  names = _columns(table, split, unit_name)
  lengths = {name: table.shapes[name][0] for name in names.values()}
  n = lengths[names["label"]]
  if {*lengths.values()} != {n} or not n:
    said = ", ".join(f"{rows} of {name!a}" for name, rows in lengths.items())
    raise InputError(f"{file} has {said}: give each row one of each.")
  known = tuple(class_names) or table.class_names or ()
  label = column(table, names["label"])
  label, known, source = _classes(file, label, known, num_classes)
  first = _floats(file, next(table.vectors(names["embedding"])))
  info = CacheInfo(
    dataset=dataset,
    split=split,
    source_num_examples=n,
    feature_dim=first.shape[1],
    class_names=known,
    num_classes_source="flag" if class_names else source,
    backbone={"name": backbone_name},
    embedding_dtype=_DTYPES.get(first.dtype.name, "float32"),
    unit=unit_name or EXAMPLE,
    id_source="example_id" if "example_id" in names else "position",
  )
  example_id = np.arange(n)
  if "example_id" in names:
    found = column(table, names["example_id"])
    example_id = _integers(file, "example_id", found)
    if len(np.unique(example_id)) < n:
      raise InputError(f"{file}: an example_id is there twice; ids differ.")
  unit_id = None
  if unit_name is not None:
    unit_id = column(table, names["unit_id"])
    if unit_id.dtype.kind in "UO":
      whose = units_of_column(
        unit_id.tolist(), unit_name, lambda row: f"{file}[{row}]"
      )
      unit_id = np.array(whose, np.int64)
    unit_id = _integers(file, unit_name, unit_id)

  def blocks() -> Iterator[Rows]:
    start = 0
    for vectors in table.vectors(names["embedding"]):
      rows = slice(start, start := start + len(vectors))
      found = {
        "embedding": _floats(file, vectors),
        "label": label[rows].astype(np.int32),
        "example_id": example_id[rows],
      }
      yield found if unit_id is None else found | {"unit_id": unit_id[rows]}

  return write_cache(out, info, blocks())


def _columns(
  table: Npz | Parquet, split: str, unit_name: str | None
) -> dict[str, str]:
  """What each column that is wanted is called in the file."""
  present = table.shapes
  is_of_many = f"{split}_embedding" in present and "embedding" not in present
  prefix = f"{split}_" if is_of_many else ""
  they_are, names = ", ".join(map(ascii, present)) or "none", {}
  wanted = {name: (name, f"{name}s") for name in ("embedding", "label")}
  wanted |= {"example_id": ("example_id",)}
  if unit_name is not None:
    wanted["unit_id"] = unit_name, "unit_id"
  for name, alike in wanted.items():
    if found := [prefix + each for each in alike if prefix + each in present]:
      names[name] = found[0]
    elif name != "example_id":
      said = f"{name} (or {split}_{name}): it has {they_are}"
      if name == "unit_id":
        said = " or ".join(prefix + each for each in alike)
        said += f" to say whose each row is: it has {they_are}; name one with"
        said += " --unit-name, or leave it out"
      raise InputError(f"{table.place} has no column {said}.")
  if unit_name is not None:
    return names
  if "unit_id" in (*present, *(n.removeprefix(f"{split}_") for n in present)):
    raise InputError(
      f"{table.place}: unit_id says that a privacy unit may have many rows;"
      " name the unit with --unit-name (patient …), or remove the column."
    )
  alike = [n for n, each in present.items() if each == present[names["label"]]]
  others = {n for n in alike if n.startswith(prefix)} - {*names.values()}
  if others:
    warnings.warn(
      f"{table.place}: {', '.join(map(ascii, sorted(others)))} not used; if one"
      " says whose each row is, name it with --unit-name: else each row is"
      " protected by itself.",
      stacklevel=3,
    )
  return names


def _classes(
  file: Path, label: np.ndarray, known: tuple[str, ...], num_classes: int | None
) -> tuple[np.ndarray, tuple[str, ...], NumClassesSource]:
  """Labels in [0, K), the names of the classes, and whence K is known."""
  source: NumClassesSource = "class_names"
  if len(set(known)) < len(known):
    raise InputError(f"{file}: the class names hold a name twice.")
  if known and num_classes not in (None, len(known)):
    raise InputError(
      f"{file}: --num-classes {num_classes}, but {len(known)} class names."
    )
  if label.dtype.kind in "UO":
    if not known:
      said = "label is of strings: name all classes with --class-names"
      raise InputError(f"{file}: {said}.")
    places = {name: i for i, name in enumerate(known)}
    label = np.array([places.get(str(name), -1) for name in label])
  label, k = _integers(file, "label", label), num_classes or len(known)
  if num_classes is not None and not known:
    source = "flag"
  elif not known:
    k, source = int(label.max()) + 1, "labels (treated as public)"
    check_num_classes(k, f"{file}: without --num-classes, the largest label")
    warnings.warn(
      f"{file}: no class names and no --num-classes, so K = {k} is taken from"
      " the labels, which are private, and is treated as public; give"
      " --num-classes to keep the guarantee.",
      stacklevel=3,
    )
  return label, known or tuple(map(str, range(k))), source


def _integers(file: Path, name: str, values: np.ndarray) -> np.ndarray:
  is_whole = values.dtype.kind in "iu" and values.ndim == 1
  if not is_whole or (values > np.iinfo(np.int64).max).any():
    raise InputError(
      f"{file}: {name} has dtype {values.dtype!s:.60} and shape"
      f" {values.shape}; it must be whole numbers [n] of 64 bits."
    )
  return values.astype(np.int64)


def _floats(file: Path, vectors: np.ndarray) -> np.ndarray:
  import ml_dtypes

  if vectors.dtype == np.dtype("V2"):  # as numpy.savez writes bfloat16
    vectors = vectors.view(ml_dtypes.bfloat16)
  is_float = vectors.dtype.kind == "f" or vectors.dtype == ml_dtypes.bfloat16
  if not is_float or vectors.ndim != 2 or not vectors.shape[1]:
    raise InputError(
      f"{file}: embedding has dtype {vectors.dtype!s:.60} and rows of shape"
      f" {vectors.shape[1:]}; it must be floats [n, d], d at least 1: save it"
      " as float32."
    )
  return vectors
