"""Images as arrays in an npz: `image`, `label`, `class_names` and ids."""

import contextlib
import hashlib
import os
import pathlib
import tokenize
import zlib
from collections.abc import Iterator
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Int64, Shaped, UInt8

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.example import Example, classes
from oneshot_dp.extract.sources.units import numbers_of
from oneshot_dp.extract.storage.anywhere import opened
from oneshot_dp.extract.storage.fetch_ahead import Buffer


class ArrayExamples:
  """An npz of images as a `Source`; `ArraysSource` has the layout.

  The arrays of the split, and no others, are read once and stay in memory.
  """

  def __init__(
    self,
    config: extract_config.ArraysSource,
    split: str,
    listing: Buffer | None = None,
  ) -> None:
    del listing  # The file is hashed wherever it is read.
    path = os.path.expanduser(config.path)
    self.name = config.name or pathlib.Path(path).stem
    self.version = ""
    with open_npz(path) as npz:
      prefix = _prefix(npz.files, path, split)
      named = f"{prefix}{config.unit_name}" in npz.files
      unit = config.unit_name if named else "unit_id"
      names = [f"{prefix}{n}" for n in ("image", "label", "example_id", unit)]
      if missing := [name for name in names[:2] if name not in npz.files]:
        raise InputError(
          f"{path!r} has no {' and no '.join(missing)} array: it has "
          f"{', '.join(npz.files) or 'none at all'}."
        )
      image, label = npz[names[0]], npz[names[1]]
      example_id, unit_id, class_names = (
        npz[name] if name in npz.files else None
        for name in (*names[2:], "class_names")
      )
    with opened(path) as file:
      self.listing = hashlib.file_digest(file, "sha256").hexdigest().encode()
    self.class_names = _class_names(class_names, config.num_classes, path)
    self._place = f"{path}:{split}" if prefix else path
    self._image = checked_images(image, f"{path}[{names[0]}]")
    rows = len(self._image)
    label_, id_, unit_ = (f"{path}[{name}]" for name in names[1:])
    self._label = integers(label, label_, rows)
    outside = (self._label < 0) | (self._label >= len(self.class_names))
    if outside.any():
      raise InputError(
        f"{label_}[{outside.argmax()}] is not one of the"
        f" {len(self.class_names)} classes: labels run from 0 to"
        f" {len(self.class_names) - 1}."
      )
    if example_id is None:
      self.id_source = extract_config.POSITION_IDS
      self._example_id = np.arange(rows, dtype=np.int64)
    else:
      self.id_source = "example_id"
      self._example_id = integers(example_id, id_, rows)
      check_distinct(self._example_id, id_)
    if (unit_id is None) != (config.unit_name is None):
      raise InputError(
        f"{path!r} has {'no ' if unit_id is None else ''}{names[3]} and"
        f" source.unit_name={config.unit_name!r}: name the unit (such as user)"
        " where a unit may have many images, and only there."
      )
    self.privacy_unit = config.unit_name or extract_config.EXAMPLE_UNIT
    self._unit_id = None
    if unit_id is not None and unit_id.dtype.kind == "U":
      whose = numbers_of(unit_id.ravel().tolist(), unit_, self.where)
      unit_id = np.array(whose, np.int64).reshape(unit_id.shape)
    if unit_id is not None:
      self._unit_id = integers(unit_id, unit_, rows)

  def __len__(self) -> int:
    return len(self._image)

  def __getitem__(self, index: int) -> Example:
    """Returns row `index`; its image is a view of the array."""
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    return Example(
      example_id=int(self._example_id[index]),
      label=int(self._label[index]),
      image=self._image[index],
      unit_id=None if self._unit_id is None else int(self._unit_id[index]),
    )

  def where(self, index: int) -> str:
    return f"{self._place}[{index}]"


# zipfile and zlib say so of what they cannot unpack, NumPy of headers.
UNREADABLE = (
  *(OSError, ValueError, EOFError, BadZipFile, zlib.error),
  *(NotImplementedError, RuntimeError, KeyError, TypeError, SyntaxError),
  *(OverflowError, tokenize.TokenError),
)


@contextlib.contextmanager
def open_npz(path: str) -> Iterator[np.lib.npyio.NpzFile]:
  """Opens an npz; whatever cannot be read in it is the input's fault."""
  try:
    with opened(path) as file:
      npz = np.load(file, allow_pickle=False)
      if not isinstance(npz, np.lib.npyio.NpzFile):
        raise InputError(
          f"{path!r} holds a single array: save image, label and class_names "
          "together with numpy.savez."
        )
      yield npz
  except InputError:
    raise
  except UNREADABLE as error:
    raise InputError(
      f"{path!r} is not a readable npz of plain arrays: {error}"
    ) from error


def _prefix(names: list[str], path: str, split: str) -> str:
  """Returns what the split's arrays start with: "", or "train_" and so on."""
  images = (name.removesuffix("_image") for name in names if "_image" in name)
  splits = [name for name in images if f"{name}_label" in names]
  if not splits:
    return ""
  if split not in splits:
    raise InputError(
      f"{path!r} has no split {split!r}: it has {', '.join(splits)}."
    )
  return f"{split}_"


def _class_names(
  array: Shaped[np.ndarray, "..."] | None, num_classes: int | None, path: str
) -> tuple[str, ...]:
  """Returns the public class names, from anything but the labels."""
  if array is None:
    return classes(None, num_classes, path)
  if array.dtype.kind != "U" or array.ndim != 1 or not array.size:
    raise InputError(
      f"{path}[class_names] is {array.dtype} {list(array.shape)}: it must be a "
      "list of strings, one per class."
    )
  return classes(array.tolist(), num_classes, path)


def checked_images(
  array: Shaped[np.ndarray, "..."], place: str
) -> UInt8[np.ndarray, "n h w c"]:
  """The array, if it holds images; errors call it `place`."""
  if (
    array.dtype != np.uint8
    or array.ndim != 4
    or array.shape[-1] not in (1, 3)
    or not array.size
  ):
    raise InputError(
      f"{place} is {array.dtype} {list(array.shape)}: it must be uint8 "
      "[n, h, w, 3] or [n, h, w, 1], values 0 to 255, none of them empty."
    )
  return array


def integers(
  array: Shaped[np.ndarray, "..."], place: str, rows: int
) -> Int64[np.ndarray, " n"]:
  """The array, if it holds a number for each row; errors call it `place`."""
  if array.dtype.kind not in "iu" or array.shape != (rows,):
    raise InputError(
      f"{place} is {array.dtype} {list(array.shape)}: it must be integers, one "
      f"per row, [{rows}]."
    )
  if array.max() > np.iinfo(np.int64).max:
    raise InputError(f"{place} has a number that is more than an int64 holds.")
  return array.astype(np.int64)


def check_distinct(ids: Int64[np.ndarray, " n"], place: str) -> None:
  """Refuses ids that come twice."""
  values, counts = np.unique(ids, return_counts=True)
  if len(values) < len(ids):
    raise InputError(
      f"{place} has {values[counts > 1][0]} more than once: every example "
      "needs an id of its own."
    )
