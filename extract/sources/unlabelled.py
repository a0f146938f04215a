"""Images without labels, as `predict` is given them."""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.folder import Folder, refuse_broken
from oneshot_dp.extract.sources.listed_files import IMAGES, TABLES, File
from oneshot_dp.extract.sources.open_source import opener_of, refuse_packed
from oneshot_dp.extract.sources.source import Example, Listed, Source

_NO_CLASSES = ("unlabelled",)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Unlabelled(Source):
  """Images of one made-up class, as a `Source`.

  In the order of the paths: those of a folder in that of their names by code
  point, those of a file in that of its rows.
  """

  parts: tuple[Listed, ...]
  name: str = "unlabelled"
  split: str = "all"
  class_names: tuple[str, ...] = _NO_CLASSES

  @functools.cached_property
  def _starts(self) -> list[int]:
    return [0, *itertools.accumulate(map(len, self.parts))]

  def __len__(self) -> int:
    return self._starts[-1]

  def __getitem__(self, index: int) -> Example:
    part, row = self._at(index)
    return part[row]

  def name_of(self, index: int) -> str:
    """What an image is called in a table of answers: a path, FILE[row]."""
    part, row = self._at(index)
    return part.place(row)

  def _at(self, index: int) -> tuple[Listed, int]:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    part = bisect.bisect_right(self._starts, index) - 1
    return self.parts[part], index - self._starts[part]


def unlabelled(paths: Sequence[str], image: str | None = None) -> Unlabelled:
  """The images of files, folders at any depth, npz, Parquet files and tars.

  Args:
    paths: where they are.
    image: the array, column or extension that has them, where several can.

  Raises:
    InputError: one is none of these, or has no image.
  """
  parts: list[Listed] = []
  single: list[File] = []

  def flush() -> None:
    if single:
      parts.append(files_of("", single))
      single.clear()

  for path in listed_files.expanded(paths):
    kind = "." + path.lower().rpartition(".")[2]
    if listed_files.is_folder(path):
      flush()
      parts += _folder(path, image)
    elif kind == ".npz" or kind in TABLES:
      flush()
      parts.append(_rows(path, image))
    else:
      refuse_packed([path])
      single.append(listed_files.file_at(path))
  flush()
  return Unlabelled(parts=tuple(parts))


def _folder(path: str, image: str | None) -> list[Listed]:
  found = listed_files.found_in(path)
  refuse_broken(path, found)
  images = [f for f in found.files if listed_files.is_image(f.path)]
  if images:
    return [files_of(path, images)]
  tables = [f.path for f in found.files if f.path.lower().endswith(TABLES)]
  if not tables:
    raise InputError(
      f"{path!r} has no images: they end in {', '.join(IMAGES)}; nor"
      f" {', '.join(TABLES)} files."
    )
  return [_rows(f"{path.rstrip('/')}/{table}", image) for table in tables]


def files_of(root: str, files: Sequence[File]) -> Folder:
  """Image files as a source without labels."""
  return Folder.of(
    root,
    files,
    name="unlabelled",
    split="all",
    class_names=_NO_CLASSES,
    labels=np.zeros(len(files), np.int32),
  )


def _rows(path: str, image: str | None) -> Listed:
  settings = SourceSettings(location=(path,), image=image)
  if path.lower().endswith(".npz"):
    from oneshot_dp.extract.sources.npz import open_npz

    return open_npz(settings, path, labelled=False)
  return opener_of(path)(settings, path, "all", [path], labelled=False)
