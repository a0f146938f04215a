"""Images as files: `root/<class>/<file>` or `root/<split>/<class>/<file>`.

The classes are the folders' names, sorted. A folder without images is an error:
a class that came and went with its last image would say whether that is there,
and class names are public. Files below a class count at any depth, as in
torchvision's ImageFolder.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs.errors import InputError, check_name, escaped
from oneshot_dp.configs.extract_config import EXAMPLE, SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import class_names
from oneshot_dp.extract.sources.listed_files import File, is_image, shortened
from oneshot_dp.extract.sources.owners import units_of_files
from oneshot_dp.extract.sources.source import Source

# Folders of these names are splits, not classes: a root that has them, but not
# the one that was asked for, must not be read with "test" as a class.
_SPLIT_NAMES = frozenset(
  ("train", "training", "test", "testing", "val", "valid", "validation")
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Folder(Source):
  """Image files, in the order of their paths by code point.

  That is the order of `find * | LC_ALL=C sort` on every machine. Each file that
  is read has the size and the time of change with which it was listed.
  """

  root: str
  files: tuple[str, ...]
  sizes: Int64[np.ndarray, " n"]
  versions: Int64[np.ndarray, " n"]

  def image(self, index: int) -> bytes:
    size, version = int(self.sizes[index]), int(self.versions[index])
    return listed_files.read(File(self.place(index), size, version))

  def place(self, index: int) -> str:
    return os.path.join(self.root, self.files[index])


def folder_of(
  root: str, files: Sequence[File], labels: Sequence[int], **fields: Any
) -> Folder:
  """A source of files that were listed."""
  return Folder(
    root=root,
    files=tuple(file.path for file in files),
    sizes=np.array([file.size for file in files], np.int64),
    versions=np.array([file.version for file in files], np.int64),
    labels=np.array(labels, np.int32),
    **fields,
  )


def open_folder(
  settings: SourceSettings, root: str, files: Sequence[File]
) -> Folder:
  """A folder that was listed, as a source.

  InputError: it is not a folder of a folder of images for each class.
  """
  folders = listed_files.folders_in(root, files)
  name, split = _name_and_split(settings, root, folders)
  prefix = ""
  if split in folders:
    root, prefix = os.path.join(root, split), f"{split}/"
    files = listed_files.inside(files, split)
    folders = listed_files.folders_in(root, files)
  listed_files.refuse_broken(root, files)
  images = [file for file in files if is_image(file.path)]
  names = _classes(root, folders, settings, [file.path for file in images])
  unit, unit_ids = EXAMPLE, None
  if settings.units is not None:
    others = [prefix + f.path for f in files if not is_image(f.path)]
    paths = [prefix + file.path for file in images]
    unit, numbers = units_of_files(settings.units, paths, others, prefix)
    unit_ids = np.array(numbers, np.int64)
  index = {name: label for label, name in enumerate(names)}
  return folder_of(
    root,
    images,
    [index[file.path.partition("/")[0]] for file in images],
    name=settings.name or name,
    split=split,
    class_names=names,
    unit=unit,
    unit_ids=unit_ids,
  )


def is_split(name: str) -> bool:
  """Whether a folder is named after a split, and so is no class."""
  return name.lower() in _SPLIT_NAMES


def _name_and_split(
  settings: SourceSettings, root: str, folders: Sequence[str]
) -> tuple[str, str]:
  """The data set's name, and the split: `photos/train` is one of `photos`."""
  above, name = os.path.split(os.path.abspath(root))
  splits, split = list(filter(is_split, folders)), settings.split
  if not splits and is_split(name) and split in (None, name):
    name, split = os.path.basename(above) or name, name
  elif split is None:
    split = splits[0] if len(splits) == len(folders) == 1 else "all"
  elif split not in ("all", *folders) and not splits:
    raise InputError(
      f"{root!r} has no folder {split!r}, nor any other split: leave --split"
      " out, and choose parts at reading, as `train --rows '[:80%]'`."
    )
  if not re.fullmatch(r"\w[\w.-]*", split):
    raise InputError(f"--split {split!r} must be the name of a folder.")
  if splits and split not in folders:
    raise InputError(
      f"{root!r} has several splits, so it is no folder of classes: give"
      f" --split {' or '.join(splits)}."
    )
  return name, split


def tell_passed_over(root: str, files: Sequence[File]) -> None:
  """Says of files that they are passed over as if they were no images."""
  others = [file.path for file in files if not is_image(file.path)]
  kinds = sorted({os.path.splitext(path)[1].lower() for path in others})
  if others:
    is_photo = {".heic", ".heif", ".avif"} & set(kinds)
    advice = " Convert HEIC and AVIF to JPEG, if they are to count." * bool(
      is_photo
    )
    told = escaped(", ".join(filter(None, kinds)))[:200]
    said = f"files passed over: {len(others):,} ({told}).{advice}"
    print(f"{escaped(root)}: {said}", file=sys.stderr)


def _classes(
  root: str,
  folders: Sequence[str],
  settings: SourceSettings,
  images: Sequence[str],
) -> tuple[str, ...]:
  """The sorted names of the class folders, or those that are stated."""
  if strays := [path for path in images if "/" not in path]:
    raise InputError(
      f"{root!r} has images outside any class folder: {shortened(strays)}; move"
      " them into the folder of their class."
    )
  if not images:
    raise InputError(f"{root!r} must have a folder of images for each class.")
  for name in folders:
    check_name(f"{root!a}: folder", name)
  if stated := settings.class_names:
    if others := sorted(set(folders) - set(stated)):
      raise InputError(
        f"{root!r} has folders that --class-names does not name:"
        f" {shortened(others)}."
      )
    return tuple(sorted(class_names((), settings, root)))
  if empty := sorted(set(folders) - {p.partition("/")[0] for p in images}):
    raise InputError(
      f"{root!r} has classes without an image: {shortened(empty)}; remove such"
      " a folder, or name all classes with --class-names, as some may then be"
      " without."
    )
  return class_names(folders, settings, root)
