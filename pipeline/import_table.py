"""`oneshot-dp import`: makes a cache of embeddings that you have.

Files, splits, classes, labels and owners follow the rules of `extract`, by the
same code: see `extract/sources/`.
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from oneshot_dp.configs.errors import (
  InputError,
  check_name,
  check_num_classes,
)
from oneshot_dp.configs.extract_config import (
  DISTINCT_IMAGE,
  EXAMPLE,
  NumClassesSource,
  check_unit_name,
)
from oneshot_dp.extract.cache.format import CacheInfo, Rows
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.extract.cache.write import write_cache
from oneshot_dp.extract.sources.annotations.labels import (
  MissingFlagError,
  class_names,
  label_numbers,
  warn_of_labels_from_one,
  warn_of_one_class,
)
from oneshot_dp.extract.sources.annotations.owner_names import (
  check_owner_names,
  check_owners,
  refuse_mixed_owners,
  units_of_column,
)
from oneshot_dp.extract.sources.annotations.split_columns import (
  check_splits,
  warn_of_indices,
)
from oneshot_dp.pipeline.import_columns import (
  Columns,
  ImportRequest,
  check_unused_columns,
  embedding_blocks,
  embedding_dtype,
  find_columns,
  stated_splits,
  whole_numbers,
)
from oneshot_dp.pipeline.import_files import list_files
from oneshot_dp.pipeline.vector_files import VectorFile, read_column

_MOST_SHARD_BYTES = 1 << 28
_LABELS_SOURCE: NumClassesSource = "labels (treated as public)"


class _Table(NamedTuple):
  """One file with its columns, but for the embeddings, in memory.

  Attributes:
    file: the open file, from which the embeddings are read.
    columns: the names of its columns.
    label: class indices [r].
    is_label_number: whether they were given as numbers, whose first is 0 or 1
      for all that is known.
    class_names: names of the classes; empty where nobody names or counts them.
    example_id: [r], or None.
    unit_id: [r], or None.
  """

  file: VectorFile
  columns: Columns
  label: np.ndarray
  is_label_number: bool
  class_names: tuple[str, ...]
  example_id: np.ndarray | None
  unit_id: np.ndarray | None


def import_table(
  file: Path,
  out: Path,
  *,
  dataset_name: str | None = None,
  split: str | None = None,
  embedding: str | None = None,
  label: str | None = None,
  num_classes: int | None = None,
  class_names: Sequence[str] = (),
  unit_name: str | None = None,
  units: Literal["same-image"] | None = None,
  backbone_name: str = "imported features",
) -> FeatureCache:
  """Writes the vectors of npz or Parquet files as a feature cache.

  The files have the columns `embedding` [n, d], floats; `label` [n], class
  indices or names of classes; perhaps `example_id` [n], else a row's place is
  its id; and, with a unit's name, a column of that name or `unit_id`, of whole
  numbers or strings. In an npz all may have the split's name before them
  (`train_label`), and there may be `class_names` [K]. Memory holds a few
  thousand vectors, and the other columns.

  *Privacy*: a row is a privacy unit, unless `unit_name` or `units` says what
  is. K is public: it is the number of class names, or `num_classes`; with
  neither it is the largest label + 1, with a warning and a mark in the cache.

  Args:
    file: FILE.npz, FILE.parquet, a folder of such files, or a pattern.
    out: the cache to write.
    dataset_name: public name of the data set (default: the file's).
    split: which split to import. It is found by the names of files and folders,
      and of an npz's arrays; where these tell of none it names the split
      (default: the only split; that of X_test, say, where `embedding` is; or
      "train").
    embedding: name of the column of embeddings (default: embedding).
    label: name of the column of labels (default: label).
    num_classes: K, where classes have no names.
    class_names: of the labels 0, 1, …, where the file does not name them.
    unit_name: name of the privacy unit that owns several rows ("patient").
    units: "same-image" makes all rows of one embedding a unit, instead.
    backbone_name: name of what computed the embeddings.

  Returns:
    The finished cache.

  Raises:
    InputError: a file or `out` is not as it should be, and nothing was written.
      The message may name a row, but never its label or vector.
  """
  request = ImportRequest(
    location=str(file),
    split=split,
    embedding=embedding,
    label=label,
    unit_name=unit_name,
    num_classes=num_classes,
    class_names=tuple(class_names),
  )
  unit = unit_name or EXAMPLE
  if unit_name is not None:
    check_unit_name(unit_name)
  if units is not None:
    if unit_name is not None:
      raise InputError("--unit-name and --units: give one of them.")
    unit = DISTINCT_IMAGE
  # Everything but the vectors is read and checked before the first byte is
  # written; vectors are read in blocks while the cache is.
  name, split_name, files = list_files(request)
  dataset = dataset_name or name
  check_name("--dataset-name", dataset)
  tables = _open_tables(request, split_name, files)
  names, num_classes_source = _resolve_classes(request, tables)
  warn_of_one_class(request.location, names)
  example_id, id_source = _example_ids(request.location, tables)
  # The first block says the width of all: `write_cache` refuses others.
  first = next(embedding_blocks(tables[0].file, tables[0].columns))
  info = CacheInfo(
    dataset=dataset,
    split=split_name,
    source_num_examples=len(example_id),
    feature_dim=first.shape[1],
    class_names=names,
    num_classes_source=num_classes_source,
    backbone={"name": backbone_name},
    embedding_dtype=embedding_dtype(
      [(table.file, table.columns) for table in tables]
    ),
    unit=unit,
    id_source=id_source,
    shard_rows=_shard_rows(first.shape[1]),
  )
  return write_cache(out, info, _blocks(tables, example_id))


def _shard_rows(feature_dim: int) -> int:
  """Rows of a shard, which memory holds: fewer of very wide vectors."""
  most = _MOST_SHARD_BYTES // (4 * feature_dim)
  return max(1, min(CacheInfo.shard_rows, most))


def _open_tables(
  request: ImportRequest, split: str, files: Sequence[VectorFile]
) -> list[_Table]:
  """Reads all columns but the embeddings; the rules are those of `extract`."""
  columns_of = [find_columns(file, request, split) for file in files]
  _check_splits(request, split, files, columns_of)
  tables: list[_Table] = []
  unit_names: dict[int, str] = {}
  # All files of a split have the same classes in the same order, or a label
  # would mean one class in one file and another in the next.
  for file, columns in zip(files, columns_of, strict=True):
    check_unused_columns(file, request, columns, split)
    _check_lengths(file, columns)
    names = _class_names(request, file, columns)
    if tables and names != tables[0].class_names:
      raise InputError(
        f"{file.path!r} defines different classes from the other files."
      )
    # Ids of the file's own tell rows apart in messages and across files.
    # Without them a row's place is its id.
    example_id = None
    if columns.example_id is not None:
      values = read_column(file, columns.example_id)
      example_id = whole_numbers(file.path, "example_id", values)
    label, is_label_number = _labels(file, columns, names)
    tables.append(
      _Table(
        file=file,
        columns=columns,
        label=label,
        is_label_number=is_label_number,
        class_names=names,
        example_id=example_id,
        unit_id=_units(request, file, columns, unit_names),
      )
    )
  labels = np.concatenate([table.label for table in tables])
  if all(table.is_label_number for table in tables):
    num_classes = len(tables[0].class_names) or int(labels.max()) + 1
    warn_of_labels_from_one(request.location, labels, num_classes)
  unit = request.unit_name or EXAMPLE
  check_owner_names(unit_names.values(), unit)
  units = [table.unit_id for table in tables if table.unit_id is not None]
  if units:
    unit_ids = np.concatenate(units)
    refuse_mixed_owners(unit, unit_ids, unit_names)
    check_owners(unit, unit_ids, labels.astype(np.int32))
  return tables


def _check_splits(
  request: ImportRequest,
  split: str,
  files: Sequence[VectorFile],
  columns_of: Sequence[Columns],
) -> None:
  """Looks at columns of the files that may say the split of each row."""
  # A file of each split is the mistake, too, where their names do not say it.
  splits: dict[str, set[Any]] = {}
  for file, columns in zip(files, columns_of, strict=True):
    warn_of_indices(file.path, file.shapes)
    for name, values in stated_splits(file, columns).items():
      splits.setdefault(name, set()).update(values)
  for name, values in splits.items():
    check_splits(request.location, split, name, values)


def _check_lengths(file: VectorFile, columns: Columns) -> None:
  """InputError: columns of a file have different numbers of rows, or none."""
  lengths = {name: file.shapes[name][0] for name in columns if name is not None}
  if len(set(lengths.values())) > 1 or not lengths[columns.label]:
    shown = ", ".join(f"{rows} of {name!a}" for name, rows in lengths.items())
    raise InputError(f"{file.path} has {shown}: give each row one of each.")


def _class_names(
  request: ImportRequest, file: VectorFile, columns: Columns
) -> tuple[str, ...]:
  """The class names by the rule of `extract`; empty if nothing names them."""
  in_file = file.class_names(columns.label)
  try:
    return class_names(in_file, request.source_config, file.path)
  except MissingFlagError:
    return ()


def _labels(
  file: VectorFile, columns: Columns, names: Sequence[str]
) -> tuple[np.ndarray, bool]:
  """Class indices by the rule of `extract`, or whole numbers without names.

  Also returns whether they were given as numbers, and not said to be indices.
  """
  values = read_column(file, columns.label)
  # Strings are looked up among the names of classes. Without names they are not
  # collected from the column: which strings there are follows from private
  # rows.
  is_text = values.dtype.kind in "UO"
  if not names:
    if is_text:
      raise InputError(
        f"{file.path}: label is of strings: name all classes with"
        " --class-names."
      )
    return whole_numbers(file.path, "label", values), True
  if not is_text:
    values = whole_numbers(file.path, "label", values)
  are_indices = file.are_indices(columns.label)
  numbers = label_numbers(
    values.tolist(),
    names,
    columns.label,
    lambda row: f"{file.path}[{row}]",
    are_indices=are_indices,
  )
  return np.array(numbers, np.int64), not (is_text or are_indices)


def _units(
  request: ImportRequest,
  file: VectorFile,
  columns: Columns,
  unit_names: dict[int, str],
) -> np.ndarray | None:
  """The unit that owns each row, by the rule of `extract`."""
  if columns.unit_id is None or request.unit_name is None:
    return None
  values = read_column(file, columns.unit_id)
  if values.dtype.kind in "UO":
    numbers = units_of_column(
      values.tolist(),
      request.unit_name,
      lambda row: f"{file.path}[{row}]",
      unit_names,
    )
    return np.array(numbers, np.int64)
  return whole_numbers(file.path, request.unit_name, values)


def _resolve_classes(
  request: ImportRequest, tables: Sequence[_Table]
) -> tuple[tuple[str, ...], NumClassesSource]:
  """Returns the names of all classes, and where K is known from."""
  names = tables[0].class_names
  if names:
    in_file = tables[0].file.class_names(tables[0].columns.label)
    return names, "class_names" if in_file else "flag"
  # Nothing states K, so a private label decides it. The cache is marked, and
  # every receipt says so: the guarantee then does not cover K, nor the shape of
  # what has K columns.
  largest = max(int(table.label.max()) for table in tables)
  k = largest + 1
  check_num_classes(
    k, f"{request.location}: without --num-classes, the largest label"
  )
  warnings.warn(
    f"{request.location}: no class names and no --num-classes, so K = {k} is"
    " taken from the labels, which are private, and is treated as public; give"
    " --num-classes to keep the guarantee.",
    stacklevel=3,
  )
  return tuple(str(i) for i in range(k)), _LABELS_SOURCE


def _example_ids(
  place: str, tables: Sequence[_Table]
) -> tuple[np.ndarray, str]:
  """The id of each row of all files, and where ids come from."""
  given = [table.example_id for table in tables if table.example_id is not None]
  if not given:
    total = sum(len(table.label) for table in tables)
    return np.arange(total), "position"
  if len(given) < len(tables):
    raise InputError(f"{place}: some of its files have no example_id.")
  ids = np.concatenate(given)
  if len(np.unique(ids)) < len(ids):
    raise InputError(f"{place}: an example_id is there twice; ids differ.")
  return ids, "example_id"


def _blocks(tables: Sequence[_Table], example_id: np.ndarray) -> Iterator[Rows]:
  """All rows, in the order of the files."""
  # Ids and labels of all files are in memory; of the vectors, one block.
  first_of_file = 0
  for table in tables:
    start = 0
    for vectors in embedding_blocks(table.file, table.columns):
      stop = start + len(vectors)
      ids = example_id[first_of_file + start : first_of_file + stop]
      rows = {
        "embedding": vectors,
        "label": table.label[start:stop].astype(np.int32),
        "example_id": ids,
      }
      if table.unit_id is not None:
        rows["unit_id"] = table.unit_id[start:stop]
      yield rows
      start = stop
    first_of_file += len(table.label)
