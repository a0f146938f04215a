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
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  SourceSettings,
  check_unit_name,
)
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import class_names
from oneshot_dp.extract.sources.listed_files import shortened
from oneshot_dp.extract.sources.owners import units_of_column
from oneshot_dp.extract.sources.source import Listed

UNREADABLE = (
  *(OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError),
  *(NotImplementedError, RuntimeError, KeyError, TypeError, SyntaxError),
  *(OverflowError, tokenize.TokenError, AttributeError, IndexError),
)
"""What zipfile and zlib say of what they cannot unpack, NumPy of headers."""
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
  unit, unit_ids = settings.units, None
  with opened_npz(path) as (npz, sha256):
    split, prefix = _split(npz.files, path, settings.split, labelled)

    def array(name: str, kinds: str, shape: Sequence[int | None]) -> np.ndarray:
      return _array(npz, path, prefix + name, kinds, shape)

    image = array(settings.image or "image", "u", (None, None, None, None))
    n, names, labels = len(image), ("unlabelled",), np.zeros(len(image), int)
    if (
      image.dtype != np.uint8 or image.shape[3] not in (1, 3) or not image.size
    ):
      raise InputError(
        f"{path!r}: images are {image.dtype} {list(image.shape)}: they must be"
        " uint8 [n, h, w, 3] or [n, h, w, 1], values 0 to 255, none of them"
        " empty."
      )
    if labelled:
      named = []
      if "class_names" in npz.files:
        named = _array(npz, path, "class_names", "U", (None,)).tolist()
      names = class_names(named, settings, path)
      labels = array(settings.label or "label", "iu", (n,))
      if ((labels < 0) | (labels >= len(names))).any():
        raise InputError(
          f"{path!r} has labels that are none of the {len(names)} classes: they"
          f" run from 0 to {len(names) - 1}."
        )
    if labelled and unit is None and f"{prefix}unit_id" in npz.files:
      raise InputError(
        f"{path!r} has an array unit_id: say with --units what it numbers, such"
        " as user."
      )
    if unit is not None:
      check_unit_name(unit)
      key = unit if prefix + unit in npz.files else "unit_id"
      owners = array(key, "iuU", (n,)).tolist()
      ids = units_of_column(owners, unit, f"{path}[{key}][{{}}]".format)
      unit_ids = np.array(ids, np.int64)
  source = Npz(
    name=settings.name or pathlib.PurePath(path).stem,
    split=split,
    class_names=names,
    unit=unit or EXAMPLE,
    labels=labels.astype(np.int32),
    unit_ids=unit_ids,
    path=path,
    array=prefix + (settings.image or "image"),
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
  file: Any = listed_files.seekable(listed_files.file_at(path))
  try:
    with file:
      npz = np.load(file, allow_pickle=False)
      if not isinstance(npz, np.lib.npyio.NpzFile):
        raise InputError(
          f"{path!r} holds a single array: save image, label and class_names"
          " together with numpy.savez."
        )
      file.seek(0)
      yield npz, hashlib.file_digest(file, "sha256").hexdigest()
  except (InputError, RunError):
    raise
  except UNREADABLE as error:
    raise InputError(
      f"{path!r} is not a readable npz of plain arrays: {one_line(error)}."
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
  split = splits[0] if split is None and len(splits) == 1 else split
  if split not in splits:
    raise InputError(
      f"{path!r} has several splits, or not this: give --split"
      f" {' or '.join(map(repr, splits))}."
    )
  return split, f"{split}_"


def _array(
  npz: Any, path: str, name: str, kinds: str, shape: Sequence[int | None]
) -> np.ndarray:
  """An array of one of NumPy's kinds, of a shape where None is any size."""
  if name not in npz.files:
    raise InputError(
      f"{path!r} has no array {name!r}: it has"
      f" {shortened(npz.files) or 'none at all'}."
    )
  array = npz[name]
  fits = len(shape) == array.ndim and all(
    wanted in (None, found)
    for wanted, found in zip(shape, array.shape, strict=True)
  )
  if array.dtype.kind not in kinds or not fits:
    kind = {"u": "uint8", "iu": "integers", "U": "texts"}.get(kinds, "names")
    sides = ", ".join("n" if side is None else str(side) for side in shape)
    raise InputError(
      f"{path!r}: {name!r} is {array.dtype} {list(array.shape)}: it must be"
      f" {kind}, [{sides}]."
    )
  return array
