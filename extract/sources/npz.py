"""Images in an npz: plain arrays, as numpy.savez writes them.

`image` is uint8 [n, h, w, 3 or 1] or [n, h, w], `label` integers or strings [n]
or [n, 1], `class_names` strings [K], and there may be an array of whose each
image is. With several splits in one file the arrays are `train_image`,
`train_label` and so on; `images` and `labels` are understood as well. Arrays of
Python objects are never unpickled.
"""

import zipfile
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.npy import (
  HEADER_BYTES,
  open_archive,
  read_array,
  read_header,
)
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.annotations.split_columns import (
  may_say_split,
  refuse_differing_splits,
  warn_of_indices,
)
from oneshot_dp.extract.sources.file_format import FileRows
from oneshot_dp.extract.sources.limits import (
  MAX_ARRAY_BYTES,
  MAX_COLUMN_BYTES,
  MAX_FEW_WORDS_BYTES,
  check_bytes,
  check_rows,
)
from oneshot_dp.extract.sources.listed_files import File, format_names
from oneshot_dp.extract.threads import ByteCache

_DARKEST_WHITE = 32
_NPZ = "npz of plain arrays"
_arrays: ByteCache[np.ndarray] = ByteCache(MAX_ARRAY_BYTES, lambda a: a.nbytes)


def read_row(file: File, name: str, row: int, _: int = 0) -> np.ndarray:
  """Pixels of an image, of an array that stays in memory.

  Args:
    file: as it was listed.
    name: of the array of images.
    row: the index of the image.
    _: not used; other formats need two numbers to find an image.

  Returns:
    uint8 [h, w, 1 or 3], a view of the array: it must not be changed.

  Raises:
    RunError: the file is not what was listed.
  """

  def read() -> np.ndarray:
    with listed_files.reopened(file, _NPZ) as content:
      return Npz(content, file.path).array(name, MAX_ARRAY_BYTES)

  pixels = _arrays.get((file, name), read)[row]
  if pixels.ndim == 2:  # gray without a channel
    return pixels[..., None]
  return pixels


def npz_rows(config: SourceConfig, file: File, *, labeled: bool) -> FileRows:
  """The images of an npz, with their labels and owners.

  Args:
    config: names the split and the arrays, where they are not called as usual.
    file: as it was listed.
    labeled: whether labels are wanted; without them, neither split nor names of
      classes are looked for.

  Returns:
    The rows. Their images stay in memory, for the first job that reads them.

  Raises:
    InputError: an array is missing, or is not as it should be.
  """
  # Labels and owners are read now, images too, as an npz cannot be read in
  # parts: all of an array or nothing.
  label_key = config.label or "label"
  labels: list[Any] = []
  class_names: list[Any] = []
  units: list[Any] = []
  splits: dict[str, list[Any]] = {}
  other_columns: list[str] = []
  with listed_files.opened(file, _NPZ) as content:
    npz = Npz(content, file.path)
    is_split = labeled and config.split in npz.splits()
    prefix = f"{config.split}_" if is_split else ""
    image_key = npz.singular_or_plural(prefix + (config.image or "image"))
    images = npz.array(image_key, MAX_ARRAY_BYTES)
    _check_images(file.path, image_key, images)
    rows = len(images)
    if labeled:
      label_key = npz.singular_or_plural(prefix + label_key)
      named = (image_key, label_key)
      refuse_differing_splits(file.path, config.split, named)
      labels = npz.column(label_key, "iuU", rows)
      # Of an npz with arrays for each split the prefix has said it all.
      if not is_split:
        used = (image_key, label_key, config.units)
        splits = _split_values(npz, file.path, used, rows)
      if "class_names" in npz.names:
        class_names = npz.column("class_names", "U")
      used = (image_key, label_key, "class_names")
      for name in npz.names:
        if name.startswith(prefix) and name not in used:
          other_columns.append(name.removeprefix(prefix))
    if config.units is not None:
      unit_key = prefix + config.units
      if unit_key not in npz.names:
        unit_key = f"{prefix}unit_id"
      units = npz.column(unit_key, "iuU", rows)
  # The first job to read them finds them there.
  _arrays.get((file, image_key), lambda: images)
  locations = np.zeros((rows, 2), np.int64)
  locations[:, 0] = np.arange(rows)
  return FileRows(
    column=image_key,
    locations=locations,
    label_column=label_key,
    class_names=class_names,
    labels=labels,
    units=units,
    splits=splits,
    other_columns=other_columns,
  )


def _split_values(
  npz: "Npz", path: str, used: Sequence[str | None], rows: int
) -> dict[str, list[Any]]:
  """The values of arrays that nothing else uses, and that may say splits."""
  warn_of_indices(path, npz.names)
  values: dict[str, list[Any]] = {}
  for name in npz.names:
    if name not in used and (may_say_split(name) or npz.has_few_words(name)):
      values[name] = npz.plain_values(name, rows)
  return values


def array_splits(file: File) -> list[str]:
  """The splits in an npz; none where its arrays are not named so."""
  with listed_files.opened(file, _NPZ) as content:
    return Npz(content, file.path).splits()


class Npz:
  """The arrays of an open npz, each of which is bounded before it is read.

  Attributes:
    names: of the arrays.
  """

  def __init__(self, content: BinaryIO, path: str):
    # A single array, as numpy.save writes it, is no archive: that mistake has a
    # fix of its own.
    if not zipfile.is_zipfile(content):
      raise ValueError("use numpy.savez")
    self._zip = open_archive(content)
    self._path = path
    self.names = [n.removesuffix(".npy") for n in self._zip.namelist()]

  def splits(self) -> list[str]:
    """Names of the splits: those that have images and labels."""
    splits: list[str] = []
    names = set(self.names)
    for name in self.names:
      split = name.removesuffix("s").removesuffix("_image")
      has_labels = {f"{split}_label", f"{split}_labels"} & names
      if f"{split}_image" in name and has_labels and split not in splits:
        splits.append(split)
    return splits

  def singular_or_plural(self, name: str) -> str:
    """The name of an array, or with an s where only that one is there."""
    plural = f"{name}s"
    if name not in self.names and plural in self.names:
      return plural
    return name

  def array(self, name: str, max_bytes: int) -> np.ndarray:
    """An array of at most so many bytes.

    Args:
      name: of the array.
      max_bytes: more are refused by the header, before they are unpacked.

    Raises:
      InputError: there is none of this name, or it is larger.
      ValueError: it is damaged, or has Python objects, which run code.
    """
    if name not in self.names:
      present = format_names(self.names) or "none at all"
      advice = ""
      if any(other.endswith("embedding") for other in self.names):
        advice = "; embeddings are for `oneshot-dp import`"
      raise InputError(
        f"{self._path!r} has no array {name!r}: has {present}{advice}."
      )
    # Of a member no more is ever unpacked than the archive states here.
    info = self._zip.getinfo(f"{name}.npy")
    check_bytes(
      self._path, f"array {name!r}", info.file_size, max_bytes + HEADER_BYTES
    )
    with self._zip.open(info) as member:
      return read_array(member, info.file_size)

  def column(
    self, name: str, kinds: str, rows: int | None = None
  ) -> list[int] | list[str]:
    """The values of a list of integers or strings, one for each row.

    Args:
      name: of the array.
      kinds: letters of NumPy's kinds of dtypes that are accepted: "i" and "u"
        are integers, "U" strings.
      rows: how many values there must be; None for any number.

    Raises:
      InputError: it is missing, too large, of another dtype, shape or length.
    """
    values = self.array(name, MAX_COLUMN_BYTES)
    if values.ndim == 2 and values.shape[1] == 1:  # as in MedMNIST
      values = values[:, 0]
    if values.dtype.kind not in kinds or values.ndim != 1:
      raise InputError(
        f"{self._path!r}: {name!r} is {values.dtype} {list(values.shape)}: it"
        " must be a list of integers, or of strings."
      )
    check_rows(self._path, len(values))
    if rows is not None and len(values) != rows:
      raise InputError(
        f"{self._path!r} is damaged: {len(values)} of {rows} rows have a"
        f" {name!r}."
      )
    return values.tolist()

  def has_few_words(self, name: str) -> bool:
    """Whether an array is of strings, and so small that it is worth a look."""
    info = self._zip.getinfo(f"{name}.npy")
    with self._zip.open(info) as member:
      header = read_header(member)
    return header.dtype.kind in "US" and info.file_size <= MAX_FEW_WORDS_BYTES

  def plain_values(self, name: str, rows: int) -> list[Any]:
    """The strings, numbers or truth values of an array, one for each row.

    There are none of an array of another kind, or of another length.

    Args:
      name: of the array.
      rows: how many values there must be.

    Raises:
      InputError: the array is too large.
    """
    # By the header, as other arrays may be large: those of test images, say.
    with self._zip.open(f"{name}.npy") as member:
      header = read_header(member)
    if header.dtype.kind not in "USiubf" or header.shape not in (
      (rows,),
      (rows, 1),
    ):
      return []
    values = self.array(name, MAX_COLUMN_BYTES).reshape(rows)
    if values.dtype.kind == "S":
      values = np.char.decode(values, "utf-8", "replace")
    return values.tolist()


def _check_images(path: str, name: str, images: np.ndarray) -> None:
  shape = images.shape
  # (An array [h, w, 3] is one image, and not h images of a width of 3.)
  is_gray = len(shape) == 3 and shape[2] > 4
  is_image = is_gray or (len(shape) == 4 and shape[3] in (1, 3))
  if images.dtype != np.uint8 or not is_image or 0 in shape:
    raise InputError(
      f"{path!r}: {name!r} is {images.dtype} {list(shape)}: images must be"
      " uint8 [n, h, w, 3], [n, h, w, 1] or [n, h, w], and not empty."
    )
  check_rows(path, len(images))
  # Pixels of 0 to 1, or 0 to 16 as scikit-learn's digits have them, are black
  # in all images alike, which no photographs are.
  brightest = int(images.max())
  if brightest < _DARKEST_WHITE:
    raise InputError(
      f"{path!r}: no pixel of {name!r} is above {brightest}, and 255 is white:"
      " scale them to 0 to 255."
    )
