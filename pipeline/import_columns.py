"""The request of an import, and how its columns are found in a file."""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EmbeddingDtype, SourceConfig
from oneshot_dp.extract.sources.annotations.owner_names import (
  is_owner_column,
)
from oneshot_dp.extract.sources.annotations.split_columns import (
  may_say_split,
  refuse_differing_splits,
)
from oneshot_dp.pipeline.vector_files import CLASS_NAMES, VectorFile

MAX_FEATURE_DIM = 1 << 20
"""Width of an embedding: 4 MiB, several times that of any network's layer."""
_DTYPES: dict[str, EmbeddingDtype] = {t: t for t in get_args(EmbeddingDtype)}


class ImportRequest(NamedTuple):
  """The arguments of `import_table` that decide how files are read."""

  location: str
  split: str | None
  embedding: str | None
  label: str | None
  unit_name: str | None
  num_classes: int | None
  class_names: tuple[str, ...]

  @property
  def source_config(self) -> SourceConfig:
    """The request in the form that the code of `extract` takes."""
    return SourceConfig(
      location=(self.location,),
      num_classes=self.num_classes,
      class_names=self.class_names,
    )


class Columns(NamedTuple):
  """The names of the wanted columns in one file; None where it has none."""

  embedding: str
  label: str
  example_id: str | None
  unit_id: str | None


def candidates(asked: str | None, usual: str) -> tuple[str, ...]:
  """Lists the names that a column may have: the flag's, or the usual ones.

  Args:
    asked: the name that a flag gives; None if none does.
    usual: the usual name in the singular, such as "label"; its plural is looked
      for as well.

  Returns:
    Names in the order in which they are looked for.
  """
  # A name that was given is meant literally: no other column will do.
  if asked is not None:
    return (asked,)
  return (usual, f"{usual}s")


def find_columns(
  file: VectorFile, request: ImportRequest, split: str
) -> Columns:
  """Finds the wanted columns by their names.

  All have the prefix `SPLIT_`, or none has.

  Args:
    file: one of the files that are imported.
    request: has the names that a person gave.
    split: the split, of which columns may have the prefix.

  Returns:
    The names in this file; None for ids and units that it does not have.

  Raises:
    InputError: a column is missing; or the two that a person named are of
      different splits, as X_train and y_test are.
  """
  # One prefix for all columns: embeddings of train_ with labels of test_ would
  # have as many rows, perhaps, and mean nothing.
  embedding_names = candidates(request.embedding, "embedding")
  is_plain = any(name in file.shapes for name in embedding_names)
  prefixed = any(f"{split}_{name}" in file.shapes for name in embedding_names)
  prefix = f"{split}_" if prefixed and not is_plain else ""
  embedding = _required(file, prefix, embedding_names, split)
  label = _required(file, prefix, candidates(request.label, "label"), split)
  refuse_differing_splits(file.path, request.split, (embedding, label))
  return Columns(
    embedding=embedding,
    label=label,
    example_id=_first_present(file, prefix, ("example_id",)),
    unit_id=_unit_column(file, prefix, request.unit_name),
  )


def stated_splits(file: VectorFile, columns: Columns) -> dict[str, set[Any]]:
  """Returns what columns that nothing else uses say of the split of rows.

  Args:
    file: one of the files that are imported.
    columns: those that are used.

  Returns:
    Column → the values in it.
  """
  num_rows = file.shapes[columns.label][0]
  splits: dict[str, set[Any]] = {}
  for name, values in file.few_words().items():
    has_rows = file.shapes.get(name, (num_rows,))[0] == num_rows
    if has_rows and name not in columns:
      splits[name] = set(values)
  for name in file.shapes:
    is_one = file.shapes[name] in ((num_rows,), (num_rows, 1))
    if is_one and may_say_split(name) and name not in columns:
      splits[name] = set(file.plain_values(name))
  for name in file.inner_columns:
    if may_say_split(name):
      splits[name] = set(file.plain_values(name))
  return splits


def _first_present(
  file: VectorFile, prefix: str, names: Sequence[str]
) -> str | None:
  for name in names:
    if prefix + name in file.shapes:
      return prefix + name
  return None


def _required(
  file: VectorFile, prefix: str, names: Sequence[str], split: str
) -> str:
  found = [prefix + name for name in names if prefix + name in file.shapes]
  if len(found) > 1:
    raise InputError(
      f"{file.path} has {' and '.join(map(repr, found))}: name the one that is"
      f" meant with --{names[0]} {names[0]}, say."
    )
  if not found:
    present = ", ".join(ascii(name) for name in file.shapes) or "none"
    raise InputError(
      f"{file.path} has no column {names[0]} (or {split}_{names[0]}): it has"
      f" {present}; name the columns with --embedding and --label."
    )
  return found[0]


def _unit_column(
  file: VectorFile, prefix: str, unit_name: str | None
) -> str | None:
  if unit_name is None:
    return None
  # A person names the unit, "patient", which need not be the name of the
  # column: the caches of this package call it unit_id whatever the unit is.
  names = (unit_name, "unit_id")
  column = _first_present(file, prefix, names)
  if column is None:
    wanted = " or ".join(prefix + name for name in names)
    present = ", ".join(ascii(name) for name in file.shapes)
    raise InputError(
      f"{file.path} has no column {wanted} to say whose each row is: it has"
      f" {present}; name one with --unit-name, or leave it out."
    )
  return column


def check_unused_columns(
  file: VectorFile, request: ImportRequest, columns: Columns, split: str
) -> None:
  """Refuses, or warns of, unused columns that may name the owner of a row.

  Args:
    file: one of the files that are imported.
    request: has the name of the unit; with one, no column is looked at.
    columns: those that are used.
    split: the split, of which columns may have the prefix.

  Raises:
    InputError: there is a unit_id, and no name for what a unit is.
  """
  if request.unit_name is not None:
    return
  _refuse_unused_units(file, split)
  prefix = f"{split}_" if columns.embedding.startswith(f"{split}_") else ""
  _warn_of_unused_columns(file, prefix, columns)


def _refuse_unused_units(file: VectorFile, split: str) -> None:
  # A column that is passed over would make ε a promise about rows, where the
  # file itself says that people own several.
  if "unit_id" in file.shapes or f"{split}_unit_id" in file.shapes:
    raise InputError(
      f"{file.path}: unit_id says that a privacy unit may have many rows; name"
      " the unit with --unit-name (patient …), or remove the column."
    )


def _warn_of_unused_columns(
  file: VectorFile, prefix: str, columns: Columns
) -> None:
  """Warns of columns with one value per row, which may name its owner."""
  shape = file.shapes[columns.label]
  unused = []
  for name in file.shapes:
    is_used = name in columns or name == CLASS_NAMES
    if file.shapes[name] == shape and name.startswith(prefix) and not is_used:
      unused.append(ascii(name))
  advice = "name it with --unit-name"
  if not unused:
    advice = "write it as a column of its own for --unit-name"
  for name in file.inner_columns:
    if is_owner_column(name):
      unused.append(ascii(name))
  if unused:
    warnings.warn(
      f"{file.path}: {', '.join(sorted(unused))} not used; if one says whose"
      f" each row is, {advice}: else each row is protected by itself.",
      stacklevel=6,
    )


def whole_numbers(path: str, name: str, values: np.ndarray) -> np.ndarray:
  """Returns the values of a column as int64.

  Args:
    path: of the file, for the message.
    name: of the column, for the message.
    values: [n] of any dtype; or [n, 1], as in MedMNIST.

  Raises:
    InputError: they are not whole numbers [n], or do not fit into int64.
  """
  if values.ndim == 2 and values.shape[1] == 1:
    values = values[:, 0]
  # An unsigned number past int64 would turn negative: another id, or a class
  # that does not exist.
  is_whole = values.dtype.kind in "iu" and values.ndim == 1
  if not is_whole or (values > np.iinfo(np.int64).max).any():
    raise InputError(
      f"{path}: {name} has dtype {values.dtype!s:.60} and shape"
      f" {values.shape}; it must be whole numbers [n] of 64 bits: astype(int)"
      " of others, argmax(axis=1) of one-hot rows."
    )
  return values.astype(np.int64)


def embedding_blocks(
  file: VectorFile, columns: Columns
) -> Iterator[np.ndarray]:
  """Yields the vectors of a file in blocks, float [r, d].

  Args:
    file: the open file.
    columns: the names of its columns.

  Raises:
    InputError: they are not floats [r, d], or too wide.
  """
  import ml_dtypes

  path = file.path
  # Of an npz the width is known before a vector is read.
  _check_width(path, *file.shapes[columns.embedding][1:])
  for block in file.blocks(columns.embedding):
    vectors = block
    if vectors.dtype == np.dtype("V2"):  # as numpy.savez writes bfloat16
      vectors = vectors.view(ml_dtypes.bfloat16)
    is_float = vectors.dtype.kind == "f" or vectors.dtype == ml_dtypes.bfloat16
    if not is_float or vectors.ndim != 2 or not vectors.shape[1]:
      raise InputError(
        f"{path}: embedding has dtype {vectors.dtype!s:.60} and rows"
        f" of shape {vectors.shape[1:]}; it must be floats [n, d], d at least"
        " 1: save it as float32."
      )
    _check_width(path, vectors.shape[1])
    yield vectors


def _check_width(path: str, *shape: int) -> None:
  """InputError: a vector is so wide that no head can be trained on it."""
  width = math.prod(shape)
  if width > MAX_FEATURE_DIM:
    raise InputError(
      f"{path}: an embedding of {width:,} numbers, and {MAX_FEATURE_DIM:,} are"
      " the most: give embeddings of a network, not its pixels."
    )


def embedding_dtype(
  files: Sequence[tuple[VectorFile, Columns]],
) -> EmbeddingDtype:
  """Returns the dtype of all files; float32, which holds all, if they differ.

  The first file's would round what another file has in more digits.
  """
  # A parquet file's dtype is known once a block is read, so the first block of
  # each file is read here, and again later.
  dtypes = set()
  for file, columns in files:
    dtypes.add(next(embedding_blocks(file, columns)).dtype.name)
  if len(dtypes) > 1:
    return "float32"
  (dtype,) = dtypes
  return _DTYPES.get(dtype, "float32")
