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
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.configs.extract_config import SourceSettings, check_unit_name
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import FileRows, listed_fields
from oneshot_dp.extract.sources.listed_files import shortened
from oneshot_dp.extract.sources.source import Source

UNREADABLE = (
  *(OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError),
  *(NotImplementedError, RuntimeError, KeyError, TypeError, SyntaxError),
  *(OverflowError, tokenize.TokenError, AttributeError, IndexError),
)
"""What zipfile and zlib say of what they cannot unpack, NumPy of headers."""
_loading = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Npz(Source):
  """The images of one array, which stay in memory."""

  path: str
  array: str
  sha256: str

  def image(self, index: int) -> np.ndarray:
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

  InputError: it is no npz, or an array is not as it should be.
  """
  unit = settings.units
  with opened_npz(path) as (npz, sha256):
    split, prefix = _split(npz, path, settings.split) if labelled else ("", "")
    array = prefix + (settings.image or "image")
    images = _array(npz, path, array)
    shape = images.shape
    if (
      images.dtype != np.uint8
      or not (len(shape) == 4 and shape[3] in (1, 3))
      or not images.size
    ):
      raise InputError(
        f"{path!r}: {array!r} is {images.dtype} {list(shape)}: images must be"
        " uint8 [n, h, w, 3] or [n, h, w, 1], and not empty."
      )
    label = prefix + (settings.label or "label")
    labels, owners, names = np.zeros(0), np.zeros(0), np.array([], str)
    if labelled:
      labels = _array(npz, path, label)
    if labelled and "class_names" in npz.files:
      names = _array(npz, path, "class_names")
    if labelled and unit is None and f"{prefix}unit_id" in npz.files:
      raise InputError(f"{path!r} has a unit_id: say by --units what it is of.")
    if unit is not None:
      check_unit_name(unit)
      key = prefix + (unit if prefix + unit in npz.files else "unit_id")
      owners = _array(npz, path, key)
  for found, kinds, what in (
    (names, "U", "class_names must be texts"),
    (labels, "iuUf" if not labelled else "iuU", f"{label!r} must be integers"),
    (owners, "iuU" if unit else "f", "owners must be integers or texts"),
  ):
    if found.dtype.kind not in kinds or found.ndim != 1:
      raise InputError(
        f"{path!r}: {what}, one each: {found.dtype} {list(found.shape)}."
      )
  rows = FileRows(
    path=path,
    rows=shape[0],
    where=f"{path}[{{}}]".format,
    key=label,
    named=names.tolist(),
    labels=[labels.tolist()],
    units=[owners.tolist()],
  )
  source = Npz(
    name=settings.name or pathlib.PurePath(path).stem,
    split=split or "all",
    path=path,
    array=array,
    sha256=sha256,
    **listed_fields(settings, [rows], labelled),
  )
  vars(source)["_images"] = images  # read already
  return source


@contextlib.contextmanager
def opened_npz(path: str) -> Iterator[tuple[Any, str]]:
  """Opens an npz, without pickles; yields it and the SHA-256 of its bytes.

  InputError: something in it cannot be read, also by who was given it.
  """
  file: Any = listed_files.seekable(listed_files.file_at(path))
  try:
    with file:
      npz = np.load(file, allow_pickle=False)
      if not isinstance(npz, np.lib.npyio.NpzFile):
        raise InputError(f"{path!r} holds a single array: use numpy.savez.")
      file.seek(0)
      yield npz, hashlib.file_digest(file, "sha256").hexdigest()
  except (InputError, RunError):
    raise
  except UNREADABLE as error:
    raise InputError(
      f"{path!r} is not a readable npz of plain arrays: {one_line(error)}."
    ) from error


def splits_of_npz(path: str) -> list[str]:
  """The splits of a file; none where its arrays are not named so."""
  with opened_npz(path) as (npz, _):
    return _splits(npz)


def _splits(npz: Any) -> list[str]:
  found = [
    name.removesuffix("_image") for name in npz.files if "_image" in name
  ]
  return [name for name in found if f"{name}_label" in npz.files]


def _split(npz: Any, path: str, split: str | None) -> tuple[str, str]:
  """The split, and what the names of its arrays start with."""
  if not (splits := _splits(npz)):
    return split or "all", ""
  split = splits[0] if split is None and len(splits) == 1 else split
  if split not in splits:
    raise InputError(
      f"{path!r} has several splits, or not this: give --split"
      f" {' or '.join(map(repr, splits))}."
    )
  return split, f"{split}_"


def _array(npz: Any, path: str, name: str) -> np.ndarray:
  if name not in npz.files:
    has = shortened(npz.files) or "none at all"
    raise InputError(f"{path!r} has no array {name!r}: it has {has}.")
  return npz[name]
