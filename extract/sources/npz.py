"""Images as arrays in an npz: `image`, `label`, `class_names`, whose it is.

`image` is uint8 [n, h, w, 3 or 1], `label` integers [n], `class_names` texts
[K]. With several splits in one file the arrays are `train_image`, `train_label`
and so on.
"""

import contextlib
import dataclasses
import functools
import hashlib
import pathlib
import threading
import tokenize
import zlib
from collections.abc import Iterator, Sequence
from typing import Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Shaped, UInt8

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  SourceSettings,
  check_unit_name,
)
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import class_names, shortened
from oneshot_dp.extract.sources.owners import units_of_column
from oneshot_dp.extract.sources.source import Listed

# zipfile and zlib say so of what they cannot unpack, NumPy of headers.
UNREADABLE = (
  *(OSError, ValueError, EOFError, BadZipFile, zlib.error, MemoryError),
  *(NotImplementedError, RuntimeError, KeyError, TypeError, SyntaxError),
  *(OverflowError, tokenize.TokenError, AttributeError, IndexError),
)
_loading = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Npz(Listed):
  """The images of one array, which stay in memory."""

  path: str
  array: str
  sha256: str

  def image(self, index: int) -> UInt8[np.ndarray, "h w c"]:
    with _loading:
      return self._images[index]

  def place(self, index: int) -> str:
    return f"{self.path}[{index}]"

  @functools.cached_property
  def _images(self) -> np.ndarray:
    """As they are in the file that was listed, in this process."""
    with opened_npz(self.path) as (npz, sha256):
      if sha256 != self.sha256:
        raise RunError(f"{self.path!r} was changed since the job was started.")
      return npz[self.array]


def open_npz(settings: SourceSettings, path: str, labelled: bool = True) -> Npz:
  """An npz of images as a source; without labels, all are of class 0.

  Raises:
    InputError: it is no npz, or an array is not as it should be.
  """
  with opened_npz(path) as (npz, sha256):
    split, prefix = _split(npz.files, path, settings.split, labelled)
    keys = [prefix + (settings.image or "image")]
    keys += [prefix + (settings.label or "label")] * labelled
    if unit := settings.units:
      check_unit_name(unit)
      keys += [
        prefix + unit if prefix + unit in npz.files else f"{prefix}unit_id"
      ]
    elif labelled and f"{prefix}unit_id" in npz.files:
      raise InputError(
        f"{path!r} has an array '{prefix}unit_id': say with --units what it"
        " numbers, such as user."
      )
    if missing := [key for key in keys if key not in npz.files]:
      raise InputError(
        f"{path!r} has no array {shortened(missing)}: it has"
        f" {shortened(npz.files) or 'none at all'}."
      )
    image, *columns = (npz[key] for key in keys)
    named = npz["class_names"] if "class_names" in npz.files else None
  rows = len(_checked_images(image, f"{path}[{keys[0]}]"))
  names, labels, unit_ids = ("unlabelled",), np.zeros(rows, np.int32), None
  if labelled:
    names = class_names(
      None if named is None else _texts(named, f"{path}[class_names]"),
      settings.class_names,
      settings.num_classes,
      path,
    )
    labels = integers(columns[0], f"{path}[{keys[1]}]", rows)
    outside = (labels < 0) | (labels >= len(names))
    if outside.any():
      raise InputError(
        f"{path!r}: {keys[1]}[{outside.argmax()}] is not one of the"
        f" {len(names)} classes: labels run from 0 to {len(names) - 1}."
      )
  if unit:
    where = f"{path}[{keys[-1]}]"
    owners = columns[-1]
    if owners.dtype.kind == "U" and owners.shape == (rows,):
      owners = units_of_column(owners.tolist(), unit, f"{where}[{{}}]".format)
    unit_ids = integers(np.asarray(owners), where, rows)
  source = Npz(
    name=settings.name or pathlib.PurePath(path).stem,
    split=split,
    class_names=names,
    unit=unit or EXAMPLE,
    labels=labels.astype(np.int32),
    unit_ids=unit_ids,
    path=path,
    array=keys[0],
    sha256=sha256,
  )
  vars(source)["_images"] = image  # read already
  return source


@contextlib.contextmanager
def opened_npz(path: str) -> Iterator[tuple[Any, str]]:
  """Opens an npz, without pickles; yields it and the SHA-256 of its bytes.

  Raises:
    InputError: something in it cannot be read, also by who was given it.
  """
  file = listed_files.file_at(path)
  try:
    with listed_files.seekable(file) as opened:
      npz = np.load(opened, allow_pickle=False)
      if not isinstance(npz, np.lib.npyio.NpzFile):
        raise InputError(
          f"{path!r} holds a single array: save image, label and class_names"
          " together with numpy.savez."
        )
      opened.seek(0)
      yield npz, hashlib.file_digest(opened, "sha256").hexdigest()
  except (InputError, RunError):
    raise
  except UNREADABLE as error:
    reason = escaped(" ".join(str(error).split())[:200])
    raise InputError(
      f"{path!r} is not a readable npz of plain arrays: {reason}."
    ) from error


def splits_of_npz(path: str) -> list[str | None]:
  """The splits of a file; [None] where its arrays are not named so."""
  with opened_npz(path) as (npz, _):
    return [*_splits(npz.files)] or [None]


def _splits(arrays: Sequence[str]) -> list[str]:
  found = [name.removesuffix("_image") for name in arrays if "_image" in name]
  return [name for name in found if f"{name}_label" in arrays]


def _split(
  arrays: Sequence[str], path: str, split: str | None, labelled: bool
) -> tuple[str, str]:
  """The split, and what the names of its arrays start with."""
  splits = _splits(arrays) if labelled else []
  if not splits:
    return split or "all", ""
  if split is None and len(splits) == 1:
    split = splits[0]
  if split not in splits:
    raise InputError(
      f"{path!r} has several splits: give --split {' or '.join(splits)}."
      if split is None
      else f"{path!r} has no split {split!r}: it has {shortened(splits)}."
    )
  return split, f"{split}_"


def _texts(array: Shaped[np.ndarray, "..."], place: str) -> list[str]:
  if array.dtype.kind != "U" or array.ndim != 1 or not array.size:
    raise InputError(
      f"{place!r} is {array.dtype} {list(array.shape)}: it must be a list of"
      " texts, one for each class."
    )
  return array.tolist()


def _checked_images(
  array: Shaped[np.ndarray, "..."], place: str
) -> UInt8[np.ndarray, "n h w c"]:
  if (
    array.dtype != np.uint8
    or array.ndim != 4
    or array.shape[-1] not in (1, 3)
    or not array.size
  ):
    raise InputError(
      f"{place!r} is {array.dtype} {list(array.shape)}: it must be uint8"
      " [n, h, w, 3] or [n, h, w, 1], values 0 to 255, none of them empty."
    )
  return array


def integers(
  array: Shaped[np.ndarray, "..."], place: str, rows: int
) -> np.ndarray:
  """The array as int64, if it has an integer for each row.

  Raises:
    InputError: it has not; calls it `place`.
  """
  if array.dtype.kind not in "iu" or array.shape != (rows,):
    raise InputError(
      f"{place!r} is {array.dtype} {list(array.shape)}: it must be integers,"
      f" one for each row, [{rows}]."
    )
  if array.max(initial=0) > np.iinfo(np.int64).max:
    raise InputError(f"{place!r} has a number that no int64 holds.")
  return array.astype(np.int64)
