"""Images without labels, as `predict` and `inspect` are given them."""

import bisect
import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.folder import folder_of
from oneshot_dp.extract.sources.listed_files import IMAGES, TABLES, File
from oneshot_dp.extract.sources.open_source import open_table
from oneshot_dp.extract.sources.source import Image, Source

_MANY = (".npz", *TABLES)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Unlabelled(Source):
  """Images of one made-up class, part by part."""

  parts: tuple[Source, ...]
  name: str = "unlabelled"
  split: str = "all"
  class_names: tuple[str, ...] = ("unlabelled",)

  @functools.cached_property
  def _starts(self) -> list[int]:
    return [0, *itertools.accumulate(map(len, self.parts))]

  def __len__(self) -> int:
    return self._starts[-1]

  def image(self, index: int) -> Image:
    part, row = self._at(index)
    return part.image(row)

  def place(self, index: int) -> str:
    part, row = self._at(index)
    return part.place(row)

  name_of = place
  """What an image is called in a table of answers."""

  def _at(self, index: int) -> tuple[Source, int]:
    part = bisect.bisect_right(self._starts, index) - 1
    return self.parts[part], index - self._starts[part]


def unlabelled(paths: Sequence[str], image: str | None = None) -> Unlabelled:
  """The images of files, folders at any depth, npz, Parquet files and tars.

  They come in the order of the paths, those of a folder in that of their names
  by code point, those of a file in that of its rows. `image` is the array,
  column or extension that has them, where several can. InputError: a path is
  none of these, or has no image.
  """
  parts: list[Source] = []
  for has_many, group in itertools.groupby(
    listed_files.expanded(paths),
    lambda p: listed_files.is_folder(p) or p.lower().endswith(_MANY),
  ):
    if has_many:
      parts += [part for path in group for part in _parts(path, image)]
    else:
      parts.append(files_of("", [listed_files.file_at(path) for path in group]))
  return Unlabelled(parts=tuple(parts))


def files_of(root: str, files: Sequence[File]) -> Source:
  """Image files as a source without labels."""
  names = {"name": root, "split": "all", "class_names": ("unlabelled",)}
  return folder_of(root, files, [0] * len(files), **names)


def _parts(path: str, image: str | None) -> list[Source]:
  settings = SourceSettings(location=(path,), image=image)
  if not listed_files.is_folder(path):
    if path.lower().endswith(".npz"):
      from oneshot_dp.extract.sources.npz import open_npz

      return [open_npz(settings, path, labelled=False)]
    return [open_table(settings, [path], False, name=path, split="all")]
  files = listed_files.files_in(path)
  listed_files.refuse_broken(path, files)
  if images := [f for f in files if listed_files.is_image(f.path)]:
    return [files_of(path, images)]
  tables = [f.path for f in files if f.path.lower().endswith(TABLES)]
  if not tables:
    raise InputError(
      f"{path!r} has no images: they end in {', '.join(IMAGES)}, or are in"
      f" {', '.join(TABLES)} files."
    )
  inner = [os.path.join(path, table) for table in tables]
  return [part for each in inner for part in _parts(each, image)]
