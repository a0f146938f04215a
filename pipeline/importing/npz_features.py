"""The arrays of an npz file of embeddings, checked."""

import dataclasses
import pathlib
import warnings
import zipfile

import numpy as np
from numpy.lib.npyio import NpzFile
from tqdm.utils import CallbackIOWrapper

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import POSITION_IDS, check_unit_name
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.identity import (
  NumClassesSource,
  numbered_class_names,
)
from oneshot_dp.extract.progress import step_bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureArrays:
  """The arrays of a file, checked; `id_source` is as in a cache."""

  rows: Rows
  class_names: tuple[str, ...] | None
  id_source: str


def read_arrays(path: pathlib.Path, split: str) -> FeatureArrays:
  """Reads a file; see `import_features` for what it may hold.

  Raises:
    InputError: anything about it that is not so.
  """
  return _checked(path, _load(path, split))


def _load(path: pathlib.Path, split: str) -> dict[str, np.ndarray]:
  wanted = ("embedding", "label", "example_id", "unit_id")
  if not path.is_file():
    raise InputError(f"{path}: no such file.")
  try:
    # (Given the path, np.load leaves the file open where it is malformed.)
    with (
      path.open("rb") as raw,
      step_bar("read", "B", path.stat().st_size) as bar,
    ):
      counted = CallbackIOWrapper(bar.update, raw, "read")
      file = np.load(counted, allow_pickle=False)
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


def _checked(path: pathlib.Path, found: dict[str, np.ndarray]) -> FeatureArrays:
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
  return FeatureArrays(
    rows=Rows(
      embedding=embedding,
      label=label,
      example_id=example_id,
      unit_id=columns.get("unit_id"),
    ),
    class_names=None if names is None else tuple(names.tolist()),
    id_source="example_id" if "example_id" in found else POSITION_IDS,
  )


def check_unit(
  path: pathlib.Path, arrays: FeatureArrays, unit_name: str | None
) -> None:
  """Refuses a `unit_id` without a name, and a name without a `unit_id`."""
  if unit_name is not None:
    check_unit_name(unit_name)
  if arrays.rows.unit_id is not None and unit_name is None:
    raise InputError(
      f"{path}: unit_id says that a privacy unit may have many rows; name the"
      " unit with --unit-name (user, patient ...), or remove the array if every"
      " example is a unit of its own."
    )
  if arrays.rows.unit_id is None and unit_name is not None:
    raise InputError(
      f"{path}: unit_name={unit_name!r}, but there is no unit_id array to say"
      " whose each row is; add it, or leave the name out."
    )


def find_class_names(
  path: pathlib.Path, arrays: FeatureArrays, num_classes: int | None
) -> tuple[tuple[str, ...], NumClassesSource]:
  """The classes, and where their number comes from.

  Raises:
    InputError: a number of classes that the file contradicts.

  Warns:
    UserWarning: K is taken from the labels.
  """
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
    k = int(arrays.rows.label.max()) + 1
    warnings.warn(
      f"{path}: no class_names and no num_classes, so K = {k} is taken from "
      "the labels, which are private, and is treated as public; give "
      "num_classes to keep the guarantee.",
      stacklevel=3,
    )
    names, source = numbered_class_names(k), "labels (treated as public)"
  outside = arrays.rows.label >= len(names)
  if outside.any():
    first = arrays.rows.example_id[outside][0]
    raise InputError(
      f"{path}: example_id {first} has a label outside "
      f"[0, {len(names)}); mend the labels or the class names."
    )
  return names, source
