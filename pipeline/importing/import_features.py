"""`oneshot-dp import`: a feature cache from an npz of embeddings."""

import contextlib
import os
import pathlib
import warnings
import zipfile

import numpy as np
from numpy.lib.npyio import NpzFile
from tqdm.utils import CallbackIOWrapper

from oneshot_dp.configs.errors import InputError, check_num_classes
from oneshot_dp.configs.extract_config import (
  EXAMPLE_UNIT,
  POSITION_IDS,
  EmbeddingDtype,
  check_unit_name,
)
from oneshot_dp.configs.split_part import SplitPart
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.content_keys import embedding_keys, in_part
from oneshot_dp.extract.cache.identity import (
  BackboneIdentity,
  CacheIdentity,
  NumClassesSource,
  numbered_class_names,
)
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.extract.cache.write_arrays import holds_rows, write_rows
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.extract.sources.arrays import (
  UNREADABLE,
  check_distinct,
  integers,
)
from oneshot_dp.extract.sources.units import numbers_of
from oneshot_dp.extract.storage.anywhere import opened

_Arrays = dict[str, np.ndarray]
_ROWS = ("embedding", "label", "example_id", "unit_id")


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

  See `oneshot-dp import --help` for the arrays and the arguments;
  without `example_id`, the row is one; `shard_rows` is rows per shard.

  *Privacy*: a row is a privacy unit, unless `unit_id` says whose it is. K must
  be public: it is the length of `class_names`, or `num_classes`. With neither,
  the largest label + 1 is taken, which is private, with a warning and a mark in
  the cache.

  An interrupted import starts again from the first row; importing into a
  finished cache checks that it holds these very rows and leaves it as it is.

  Raises:
    InputError: anything about the file or `out_dir` that is not as it says.
    RunError: a full or broken disk.

  Warns:
    UserWarning: K is taken from the labels.
  """
  path = pathlib.Path(npz_path)
  part = SplitPart.of(split)
  arrays = _load(path, part.split, unit_name)
  rows = _rows(path, arrays)
  inside = None
  if not part.is_whole:
    inside = in_part(part, embedding_keys(rows.embedding), rows.unit_id)
    if not inside.any():
      raise InputError(
        f"{path}: no row is in split {split!r}; ask for a larger part."
      )
  if unit_name is not None:
    check_unit_name(unit_name)
  elif rows.unit_id is not None:
    raise InputError(
      f"{path}: unit_id says that a privacy unit may have many rows; name the"
      " unit with --unit-name (user, patient ...), or remove the array if every"
      " example is a unit of its own."
    )
  class_names, source = _classes(path, arrays, num_classes)
  stored_as = embedding_dtype or (
    "float16" if rows.embedding.dtype == np.float16 else "float32"
  )
  identity = CacheIdentity(
    dataset=dataset_name or path.stem,
    split=split,
    source_num_examples=len(rows),
    feature_dim=rows.embedding.shape[1],
    class_names=class_names,
    num_classes_source=source,
    backbone=BackboneIdentity(name=backbone_name or "imported features"),
    embedding_dtype=stored_as,
    shard_rows=shard_rows,
    privacy_unit=unit_name or EXAMPLE_UNIT,
    id_source="example_id" if "example_id" in arrays else POSITION_IDS,
    parts_by=None if part.is_whole or unit_name is None else "unit",
  )
  with step_bar("import", "row", len(rows)) as bar:
    is_new = write_rows(
      out_dir, identity, rows, bar.update, origin=path, inside=inside
    )
  cache = open_cache(out_dir)
  if not is_new:
    with step_bar("compare", "row", len(rows)) as bar:
      if not holds_rows(cache, rows, bar.update, inside):
        raise InputError(
          f"{cache.path} holds other rows than the file; choose another "
          "--out, or delete it to import again."
        )
  return cache


def _load(path: pathlib.Path, split: str, unit_name: str | None) -> _Arrays:
  """The arrays of a file, by their names without a split's."""
  try:
    # (Given the path, np.load leaves the file open where it is malformed.)
    with (
      opened(os.fspath(path)) as raw,
      step_bar("read", "B", os.fstat(raw.fileno()).st_size) as bar,
    ):
      counted = CallbackIOWrapper(bar.update, raw, "read")
      file = np.load(counted, allow_pickle=False)
      if not isinstance(file, NpzFile):
        raise InputError(f"{path}: one array, not an npz; use numpy.savez.")
      names = _names(path, sorted(file.files), split, unit_name)
      _check_size(path, file, {*names.values()})
      if unit_name is None:
        _say_unused(path, file, {*names.values()})
      return {name: file[stored] for name, stored in names.items()}
  except InputError:
    raise
  except (FileNotFoundError, IsADirectoryError) as e:
    raise InputError(f"{path}: no such file.") from e
  except MemoryError as e:
    raise InputError(f"{path}: its arrays do not fit into memory.") from e
  except UNREADABLE as e:
    reason = (
      "it holds Python objects; save plain arrays"
      if "allow_pickle" in str(e) and zipfile.is_zipfile(path)
      else f"not a readable npz ({type(e).__name__})"
    )
    raise InputError(f"{path}: {reason}.") from e


def _check_size(path: pathlib.Path, file: NpzFile, used: set[str]) -> None:
  """Before memory is asked for: a small file may unpack to a huge one."""
  wanted = used | {f"{name}.npy" for name in used}
  assert file.zip is not None
  size = sum(i.file_size for i in file.zip.infolist() if i.filename in wanted)
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  if size > memory:
    raise InputError(
      f"{path}: its arrays take {size / 2**30:.1f} GiB, and there are"
      f" {memory / 2**30:.1f} GiB of memory; import it in parts."
    )


def _names(
  path: pathlib.Path, present: list[str], split: str, unit_name: str | None
) -> dict[str, str]:
  """What each array that is wanted is called in the file."""
  prefix = "" if "embedding" in present else f"{split}_"
  other = f"{split}_unit_id" if not prefix else "unit_id"
  if other in present:
    raise InputError(
      f"{path}: {other} does not go with {prefix}embedding, and would be"
      f" left out of the guarantee; call it {prefix}unit_id."
    )
  missing = [n for n in _ROWS[:2] if prefix + n not in present]
  if missing:
    raise InputError(
      f"{path}: no array {' or '.join(missing)} (or {split}_"
      f"{f' or {split}_'.join(missing)}); present: "
      f"{', '.join(present) or 'none'}."
    )
  names = {n: prefix + n for n in _ROWS} | {"class_names": "class_names"}
  if f"{prefix}{unit_name}" in present:
    names["unit_id"] = f"{prefix}{unit_name}"
  elif unit_name is not None and f"{prefix}unit_id" not in present:
    raise InputError(
      f"{path}: unit_name={unit_name!r}, but there is no array"
      f" {prefix}{unit_name} or {prefix}unit_id to say whose each row is;"
      f" present: {', '.join(present)}; name one, or leave the name out."
    )
  return {name: stored for name, stored in names.items() if stored in present}


def _say_unused(path: pathlib.Path, file: NpzFile, used: set[str]) -> None:
  """Warns of arrays of a value for each row, which may say whose it is."""
  (label,) = (name for name in used if name.endswith("label"))
  unused = [
    name
    for name in sorted({*file.files} - used)
    if name.startswith(label.removesuffix("label"))
    and _shape(file, name) == _shape(file, label)
  ]
  if unused:
    warnings.warn(
      f"{path}: {', '.join(unused)} not used; if one says whose each row is,"
      " name it, without the split, with --unit-name: else each row is"
      " protected by itself.",
      stacklevel=4,
    )


def _shape(file: NpzFile, name: str) -> tuple[int, ...] | None:
  """The shape of an array that is not read; None where its header is odd."""
  assert file.zip is not None
  with (
    contextlib.suppress(KeyError, ValueError),
    file.zip.open(f"{name}.npy") as raw,
  ):
    np.lib.format.read_magic(raw)
    return np.lib.format.read_array_header_1_0(raw)[0]
  return None


def _rows(path: pathlib.Path, arrays: _Arrays) -> Rows:
  """The rows; their values are checked where they are written."""
  embedding = arrays["embedding"]
  if embedding.ndim != 2 or 0 in embedding.shape:
    raise InputError(
      f"{path}: embedding has shape {embedding.shape}; it must be [n, d] with "
      "n and d at least 1."
    )
  if embedding.dtype.kind not in "fV":  # V: bfloat16
    raise InputError(
      f"{path}: embedding has dtype {embedding.dtype}; it must be a float: save"
      " it as float32."
    )
  n = len(embedding)
  columns = {"example_id": np.arange(n)}
  for name in arrays.keys() & {*_ROWS[1:]}:
    array = arrays[name]
    if name == "unit_id" and array.dtype.kind == "U" and array.shape == (n,):
      whose = numbers_of(array.tolist(), "owner", lambda i: f"{path}[{i}]")
      array = np.array(whose, np.int64)
    columns[name] = integers(array, f"{path}: {name}", n)
  # Here, as a shard only knows its own.
  check_distinct(columns["example_id"], f"{path}: example_id")
  return Rows(
    embedding=embedding,
    label=columns["label"],
    example_id=columns["example_id"],
    unit_id=columns.get("unit_id"),
  )


def _classes(
  path: pathlib.Path, arrays: _Arrays, num_classes: int | None
) -> tuple[tuple[str, ...], NumClassesSource]:
  """The names of the classes, and where their number comes from."""
  if num_classes is not None and num_classes < 1:
    raise InputError(f"num_classes={num_classes} must be at least 1.")
  check_num_classes(num_classes or 0, f"num_classes={num_classes}")
  if "class_names" in arrays:
    names = arrays["class_names"]
    if names.dtype.kind not in "US" or names.ndim != 1 or not len(names):
      raise InputError(
        f"{path}: class_names has dtype {names.dtype} and shape {names.shape}; "
        "it must be strings [K]."
      )
    names = np.char.decode(names) if names.dtype.kind == "S" else names
    if len(set(names.tolist())) < len(names):
      raise InputError(f"{path}: class_names holds a name twice.")
    if num_classes not in (None, len(names)):
      raise InputError(
        f"{path}: num_classes={num_classes} but class_names has {len(names)}; "
        "give one of them, or make them agree."
      )
    return tuple(names.tolist()), "class_names"
  if num_classes is not None:
    return numbered_class_names(num_classes), "flag"
  k = int(arrays["label"].max()) + 1
  row = int(arrays["label"].argmax())
  check_num_classes(k, f"{path}: without num_classes, the label of row {row}")
  warnings.warn(
    f"{path}: no class_names and no num_classes, so K = {k} is taken from "
    "the labels, which are private, and is treated as public; give "
    "num_classes to keep the guarantee.",
    stacklevel=3,
  )
  return numbered_class_names(k), "labels (treated as public)"
