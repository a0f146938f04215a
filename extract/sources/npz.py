"""Images as arrays in an npz: `image`, `label`, `class_names`, whose it is.

`image` is uint8 [n, h, w, 3 or 1], `label` integers [n], `class_names` texts
[K]. With several splits in one file the arrays are `train_image`, `train_label`
and so on.
"""

import contextlib
import functools
import threading
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.labels import FileRows, MissingFlagError
from oneshot_dp.extract.sources.listed_files import File

_loading = threading.Lock()


def read_array(file: File, name: str) -> np.ndarray:
  """An array of the file that was listed, which stays in memory."""
  try:
    with _loading:
      return _kept(file, name)
  except InputError as error:
    raise RunError(str(error)) from error


@functools.lru_cache(maxsize=4)
def _kept(file: File, name: str) -> np.ndarray:
  with opened_npz(file) as npz:
    return _array(npz, file.path, name)


def npz_rows(settings: SourceSettings, file: File, labelled: bool) -> FileRows:
  """An npz of images; InputError: an array is not as it should be."""
  path, unit = file.path, settings.units
  label, labels, named, units = settings.label or "label", [], [], []
  with opened_npz(file) as npz:
    is_split = labelled and settings.split in _splits(npz)
    prefix = f"{settings.split}_" * is_split

    def column(name: str, kinds: str) -> list[Any]:
      values = _array(npz, path, name)
      if values.dtype.kind not in kinds or values.ndim != 1:
        raise InputError(
          f"{path!r}: {name!r} is {values.dtype} {list(values.shape)}: it must"
          " be a list of integers, of owners or names texts."
        )
      return values.tolist()

    if labelled:
      labels = column(prefix + label, "iuU")
      if "class_names" in npz.files:
        named = column("class_names", "U")
      if unit is None and f"{prefix}unit_id" in npz.files:
        raise MissingFlagError(f"{path!r} has a unit_id: name it with --units.")
    if unit is not None:
      is_named = prefix + unit in npz.files
      units = column(prefix + (unit if is_named else "unit_id"), "iuU")
  key = prefix + (settings.image or "image")
  with _loading:
    images = _kept(file, key)
  kind, shape = images.dtype, images.shape
  if (
    kind != np.uint8 or len(shape) != 4 or shape[3] not in (1, 3) or 0 in shape
  ):
    raise InputError(
      f"{path!r}: {key!r} is {kind} {list(shape)}: images must be uint8"
      " [n, h, w, 3] or [n, h, w, 1], and not empty."
    )
  at = np.stack([np.arange(len(images)), np.zeros(len(images), int)], axis=1)
  return FileRows(file, key, at, label, named, [labels], [units])


@contextlib.contextmanager
def opened_npz(file: File) -> Iterator[Any]:
  """Opens an npz, without pickles.

  InputError: something in it cannot be read, also by who was given it.
  """
  path = file.path
  try:
    with listed_files.seekable(file) as opened:
      if not zipfile.is_zipfile(opened):
        raise InputError(f"{path!r} is not a readable npz: use numpy.savez.")
      opened.seek(0)
      yield np.load(opened, allow_pickle=False)
  except (InputError, RunError):
    raise
  # zipfile, zlib and NumPy let through what damaged bytes make them stumble on.
  except Exception as error:
    raise InputError(
      f"{path!r} is not a readable npz of plain arrays: {one_line(error)}."
    ) from error


def array_splits(file: File) -> list[str]:
  """The splits in an npz; none where its arrays are not named so."""
  with opened_npz(file) as npz:
    return _splits(npz)


def _splits(npz: Any) -> list[str]:
  found = [n.removesuffix("_image") for n in npz.files if n.endswith("_image")]
  return [name for name in found if f"{name}_label" in npz.files]


def _array(npz: Any, path: str, name: str) -> np.ndarray:
  if name not in npz.files:
    has = listed_files.shortened(npz.files) or "none at all"
    raise InputError(f"{path!r} has no array {name!r}: it has {has}.")
  return npz[name]
