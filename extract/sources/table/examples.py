"""Labelled images in rows: Parquet, Hugging Face data sets on disk, tars."""

import bisect
import itertools
import json
import os
import typing
from collections.abc import Callable, Sequence
from typing import Any

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.extract.sources.example import Example, classes, shortened
from oneshot_dp.extract.sources.table.files import EXTENSIONS, files_of
from oneshot_dp.extract.sources.table.recent import Recent, row_groups
from oneshot_dp.extract.sources.units import numbers_of
from oneshot_dp.extract.storage.anywhere import is_folder, state_of
from oneshot_dp.extract.storage.fetch_ahead import Buffer

if typing.TYPE_CHECKING:
  from oneshot_dp.extract.sources.table.parquet import ParquetImages
  from oneshot_dp.extract.sources.table.tars import TarImages

_KIND = b"table\n"
"""Before the listing, which is no other source's."""
_OPEN_FILES = 64
_File = dict[str, Any]
"""What the listing has of one file."""


def open_images(
  path: str,
  key: str | None = None,
  members: Sequence[Any] | None = None,
  groups: Recent | None = None,
) -> "TarImages | ParquetImages":
  """The images of one file of any kind in `EXTENSIONS`.

  `key` says which, where a row has several; `members` are the index of a tar,
  `groups` what is kept of Parquet files, by default two row groups of this one.
  """
  if path.lower().endswith(".tar"):
    from oneshot_dp.extract.sources.table.tars import TarImages

    return TarImages(path, key, members)
  from oneshot_dp.extract.sources.table.parquet import ParquetImages

  return ParquetImages(path, key, groups)


class TableExamples:
  """Rows of files as a `Source`; `TableSource` says what it reads.

  Formal guarantees: files come in the order of their names by code point, rows
  as in the file. Labels and units are read once, where the job is launched, and
  are part of its listing, as is of each file its size with the SHA-256 of its
  last MiB (Parquet, Arrow), or the place and header of each image (tar).
  """

  version = ""
  id_source = extract_config.POSITION_IDS

  def __init__(
    self,
    config: extract_config.TableSource,
    split: str,
    listing: Buffer | None = None,
  ) -> None:
    path = os.path.expanduser(config.path).rstrip("/")
    self._folder, name = path, os.path.basename(os.path.abspath(path))
    if name.endswith(EXTENSIONS):
      name = os.path.splitext(name)[0]
      if not is_folder(path):  # Spark and Dask write folders x.parquet
        self._folder = os.path.dirname(path)
    self.name = config.name or name
    self.privacy_unit = config.unit_name or extract_config.EXAMPLE_UNIT
    if listing is None:
      listed = _listed(config, self._folder, files_of(path, split))
      listing = _KIND + json.dumps(listed).encode()
    self.listing = listing
    names, self._labels, self._units, self._files = json.loads(
      bytes(listing).removeprefix(_KIND)
    )
    self.class_names: tuple[str, ...] = tuple(names)
    rows = (file["rows"] for file in self._files)
    self._starts = [0, *itertools.accumulate(rows)]
    self._key = config.image_key
    self._open = Recent[Any](_OPEN_FILES)
    self._groups = row_groups()

  def __len__(self) -> int:
    return self._starts[-1]

  def __getitem__(self, index: int) -> Example:
    """Returns the undecoded image and the label of row `index`."""
    file, row = self._place(index)
    try:
      image = self._open.get(file, lambda: self._opened(file))[row]
    except OSError as error:
      raise RunError(
        f"{self.where(index)} was there when the files were listed and cannot"
        f" be read: {error.strerror or error}."
      ) from error
    return Example(
      example_id=index,
      label=self._labels[index],
      image=image,
      unit_id=self._units and self._units[index],
    )

  def where(self, index: int) -> str:
    file, row = self._place(index)
    return _where(self._folder, self._files[file], row)

  def _place(self, index: int) -> tuple[int, int]:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    file = bisect.bisect_right(self._starts, index) - 1
    return file, index - self._starts[file]

  def _opened(self, file: int) -> "TarImages | ParquetImages":
    """Opens a file, if it is still the one that was listed."""
    listed = self._files[file]
    path = os.path.join(self._folder, listed["file"])
    try:
      images = open_images(path, self._key, listed["members"], self._groups)
      there = state_of(path)[0], images.stamp
    except (OSError, InputError) as error:
      raise RunError(f"{path!r} cannot be read any more: {error}") from error
    if there != (listed["bytes"], listed["stamp"]):
      raise RunError(f"{path!r} was changed since the files were listed.")
    return images


def _where(folder: str, file: _File, row: int) -> str:
  name = file["members"][row][0] if file["members"] else row
  return f"{os.path.join(folder, file['file'])}[{name}]"


def _listed(
  config: extract_config.TableSource, folder: str, names: Sequence[str]
) -> tuple[tuple[str, ...], list[int], list[int] | None, list[_File]]:
  """Class names, labels, units and files of a split."""
  files: list[_File] = []
  labels, units, kinds = [], [], []
  with step_bar("read labels", "file", len(names)) as bar:
    for name in names:
      path = os.path.join(folder, name)
      images = open_images(path, config.image_key)
      key = images.label_key(config.label_key)
      kinds.append((key, images.class_names(key)))
      if kinds[-1] != kinds[0]:
        raise InputError(
          f"{path!r} has other labels or classes than {names[0]!r}: they are no"
          " one data set."
        )
      labels += images.values(key)
      if config.unit_name is not None:
        units += images.values(config.unit_name)
      files.append(
        {
          "file": name,
          "bytes": state_of(path)[0],
          "stamp": images.stamp,
          "rows": len(images),
          "members": getattr(images, "members", None),
        }
      )
      bar.update()
  starts = [0, *itertools.accumulate(file["rows"] for file in files)]

  def where(index: int) -> str:
    file = bisect.bisect_right(starts, index) - 1
    return _where("", files[file], index - starts[file])

  key, named = kinds[0]
  stated = list(config.class_names)
  if named and stated not in ([], named):
    raise InputError(
      f"{config.path!r} names its classes {shortened(named)}: leave"
      " source.class_names out."
    )
  given = named or stated or None
  class_names = classes(given, config.num_classes, config.path)
  owners = None
  if config.unit_name is not None:
    owners = _owners(units, config.unit_name, where)
  return class_names, _numbered(labels, class_names, key, where), owners, files


def _numbered(
  values: Sequence[Any],
  class_names: Sequence[str],
  key: str | None,
  where: Callable[[int], str],
) -> list[int]:
  """Labels as class indices; texts are names of classes, or else numbers."""
  index = {name: label for label, name in enumerate(class_names)}
  # Where 2 is the name of class 0, a text cannot be both.
  may_count = all(n == str(i) for n, i in index.items() if n.isdecimal())

  def number(text: str) -> int:
    is_number = may_count and text.isdecimal() and len(text) < 19
    return index.get(text, int(text) if is_number else -1)

  labels = [number(v) if isinstance(v, str) else v for v in values]
  k = len(class_names)
  if wrong := [
    where(i)
    for i, label in enumerate(labels)
    if not (isinstance(label, int) and 0 <= label < k)
  ]:
    n = len(wrong)
    have = "1 image has" if n == 1 else f"{n:,} images have"
    raise InputError(
      f"{have} no label {key!r} among the {k} classes, by"
      f" name or from 0 to {k - 1}: {shortened(wrong)}."
    )
  return [int(label) for label in labels]


def _owners(
  values: Sequence[Any], unit: str, where: Callable[[int], str]
) -> list[int]:
  """Units as numbers; they may be names."""
  kinds = {type(value) for value in values} - {type(None)}
  if kinds == {int} and None not in values:
    if min(values) >= -(2**63) and max(values) < 2**63:
      return list(values)
  elif kinds <= {str} or (kinds == {int} and None in values):
    names = [None if value is None else str(value) for value in values]
    return numbers_of(names, unit, where)
  raise InputError(
    f"source.unit_name={unit!r} must be all integers of 64 bits, or all"
    f" strings, and is {', '.join(sorted(kind.__name__ for kind in kinds))}."
  )
