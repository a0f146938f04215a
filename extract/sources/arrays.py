"""Images as arrays in an npz: `image`, `label`, `class_names` and ids."""

import contextlib
import os
import pathlib
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64, Integer, Shaped, UInt8

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.example import Example


class ArrayExamples:
  """An npz of images as a `Source`; `ArraysSource` has the layout.

  The arrays of the split, and no others, are read once and stay in memory.

  Attributes:
    name: public name of the data set.
    version: "", an npz has none.
    class_names: the array of that name, or "0", "1", ... for `num_classes`.
    privacy_unit: what `unit_id` numbers, "example" where there is none.
    id_source: "example_id" where there is an array of that name, else
      "position".
  """

  def __init__(self, config: extract_config.ArraysSource, split: str) -> None:
    path = os.path.expanduser(config.path)
    self.name = config.name or pathlib.Path(path).stem
    self.version = ""
    with _npz(path) as npz:
      prefix = _prefix(npz.files, path, split)
      wanted = ("image", "label", "example_id", "unit_id")
      names = [f"{prefix}{name}" for name in wanted]
      missing = [name for name in names[:2] if name not in npz.files]
      if missing:
        raise InputError(
          f"{path!r} has no {' and no '.join(missing)} array: it has "
          f"{', '.join(npz.files) or 'none at all'}."
        )
      image, label = npz[names[0]], npz[names[1]]
      example_id = npz[names[2]] if names[2] in npz.files else None
      unit_id = npz[names[3]] if names[3] in npz.files else None
      class_names = npz["class_names"] if "class_names" in npz.files else None
    self.class_names = _class_names(class_names, config.num_classes, path)
    self._place = f"{path}:{split}" if prefix else path
    self._image = _images(image, f"{path}[{names[0]}]")
    rows = len(self._image)
    place = f"{path}[{names[1]}]"
    self._label = _labels(label, place, rows, len(self.class_names))
    self._example_id = (
      np.arange(rows, dtype=np.int64)
      if example_id is None
      else _example_ids(example_id, f"{path}[{names[2]}]", rows)
    )
    self.id_source = (
      extract_config.POSITION_IDS if example_id is None else "example_id"
    )
    if (unit_id is None) != (config.unit_name is None):
      raise InputError(
        f"{path!r} has {'no ' if unit_id is None else ''}{names[3]} and"
        f" source.unit_name={config.unit_name!r}: name the unit (such as user)"
        " where a unit may have many images, and only there."
      )
    self.privacy_unit = config.unit_name or extract_config.EXAMPLE_UNIT
    self._unit_id = (
      None if unit_id is None else _int64s(unit_id, f"{path}[{names[3]}]", rows)
    )

  def __len__(self) -> int:
    """Returns the number of rows."""
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
    """Returns `file.npz[index]`, or `file.npz:split[index]`."""
    return f"{self._place}[{index}]"


@contextlib.contextmanager
def _npz(path: str) -> Iterator[np.lib.npyio.NpzFile]:
  """Opens an npz; whatever cannot be read in it is the input's fault."""
  try:
    with open(path, "rb") as file:
      npz = np.load(file, allow_pickle=False)
      if not isinstance(npz, np.lib.npyio.NpzFile):
        raise InputError(
          f"{path!r} holds a single array: save image, label and class_names "
          "together with numpy.savez."
        )
      yield npz
  except InputError:
    raise
  except (
    OSError,
    EOFError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
  ) as error:
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
    if num_classes is None:
      raise InputError(
        f"{path!r} has no class_names array: add one, or give "
        "source.num_classes (labels are private, so neither is read off them)."
      )
    if num_classes < 1:
      raise InputError(f"source.num_classes={num_classes} must be positive.")
    return tuple(str(label) for label in range(num_classes))
  if array.dtype.kind != "U" or array.ndim != 1 or not array.size:
    raise InputError(
      f"{path}[class_names] is {array.dtype} {list(array.shape)}: it must be a "
      "list of strings, one per class."
    )
  names = tuple(array.tolist())
  if len(set(names)) < len(names):
    twice = next(name for name in names if names.count(name) > 1)
    raise InputError(f"{path}[class_names] has {twice!r} more than once.")
  if num_classes not in (None, len(names)):
    raise InputError(
      f"source.num_classes={num_classes} but {path!r} has {len(names)} "
      "class_names: leave num_classes out."
    )
  return names


def _images(
  array: Shaped[np.ndarray, "..."], place: str
) -> UInt8[np.ndarray, "n h w c"]:
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


def _integers(
  array: Shaped[np.ndarray, "..."], place: str, rows: int
) -> Integer[np.ndarray, " n"]:
  if array.dtype.kind not in "iu" or array.shape != (rows,):
    raise InputError(
      f"{place} is {array.dtype} {list(array.shape)}: it must be integers, one "
      f"per image, [{rows}]."
    )
  return array


def _labels(
  array: Shaped[np.ndarray, "..."], place: str, rows: int, num_classes: int
) -> Integer[np.ndarray, " n"]:
  labels = _integers(array, place, rows)
  outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
  if outside.size:
    row = outside[0]
    raise InputError(
      f"{place}[{row}] is not one of the {num_classes} classes: labels run "
      f"from 0 to {num_classes - 1}."
    )
  return labels


def _int64s(
  array: Shaped[np.ndarray, "..."], place: str, rows: int
) -> Int64[np.ndarray, " n"]:
  ids = _integers(array, place, rows)
  if ids.max() > np.iinfo(np.int64).max:
    raise InputError(f"{place} has {ids.max()}, more than an int64 holds.")
  return ids.astype(np.int64)


def _example_ids(
  array: Shaped[np.ndarray, "..."], place: str, rows: int
) -> Int64[np.ndarray, " n"]:
  ids = _int64s(array, place, rows)
  values, counts = np.unique(ids, return_counts=True)
  if len(values) < rows:
    raise InputError(
      f"{place} has {values[counts > 1][0]} more than once: every example "
      "needs an id of its own."
    )
  return ids
