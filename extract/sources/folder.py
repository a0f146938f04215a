"""Images as files: `root/<class>/<file>` or `root/<split>/<class>/<file>`.

The classes are the folders' names, sorted. A folder without images is an error:
a class that came and went with its last image would say whether that is there,
and class names are public. Files below a class count at any depth, as in
torchvision's ImageFolder; they come in the order of their paths by code point,
that of `find * | LC_ALL=C sort` on every machine.
"""

import os
import re
from collections.abc import Sequence

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE, SourceConfig
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.labels import class_names, units_of_files
from oneshot_dp.extract.sources.listed_files import File, format_names, is_image
from oneshot_dp.extract.sources.source import Source

# Folders of these names are splits, not classes: a root that has them, but not
# the one that was asked for, must not be read with "test" as a class.
_SPLIT_NAMES = frozenset(
  ("train", "training", "test", "testing", "val", "valid", "validation")
)


def open_folder(
  settings: SourceConfig, root: str, files: Sequence[File]
) -> Source:
  """A folder that was listed, as a source.

  InputError: it is not a folder of a folder of images for each class.
  """
  folders = listed_files.folders_in(root, files)
  name, split = _name_and_split(settings, root, folders)
  prefix = ""
  if split in folders:
    root, prefix = os.path.join(root, split), f"{split}/"
    inner = [file for file in files if file.path.startswith(prefix)]
    files = [f._replace(path=f.path[len(prefix) :]) for f in inner]
    folders = listed_files.folders_in(root, files)
  listed_files.refuse_broken(root, files)
  images = [file for file in files if is_image(file.path)]
  if strays := [file.path for file in images if "/" not in file.path]:
    raise InputError(
      f"{root!r} has images outside any class folder:"
      f" {format_names(strays)}; move"
      " them into the folder of their class."
    )
  of = [file.path.partition("/")[0] for file in images]
  names = _classes(settings, root, folders, of)
  unit, unit_ids = EXAMPLE, None
  if settings.units is not None:
    others = [prefix + f.path for f in files if not is_image(f.path)]
    paths = [prefix + file.path for file in images]
    unit, numbers = units_of_files(settings.units, paths, others, prefix)
    unit_ids = np.array(numbers, np.int64)
  index = {name: label for label, name in enumerate(names)}
  whole = [(i, 0, file.size) for i, file in enumerate(images)]
  return Source(
    name=settings.name or name,
    split=split,
    class_names=names,
    unit=unit,
    labels=np.array([index[folder] for folder in of], np.int32),
    unit_ids=unit_ids,
    root=root,
    files=tuple(images),
    columns=("",) * len(images),
    at=np.array(whole, np.int64),
  )


def is_split(name: str) -> bool:
  """Whether a folder is named after a split, and so is no class."""
  return name.lower() in _SPLIT_NAMES


def _name_and_split(
  settings: SourceConfig, root: str, folders: Sequence[str]
) -> tuple[str, str]:
  """The data set's name, and the split: `photos/train` is one of `photos`."""
  above, name = os.path.split(os.path.abspath(root))
  splits, split = list(filter(is_split, folders)), settings.split
  if not splits and is_split(name) and split in (None, name):
    return os.path.basename(above) or name, name
  if split is None:
    split = splits[0] if len(splits) == len(folders) == 1 else "all"
  if not re.fullmatch(r"\w[\w.-]*", split) or (
    split not in folders and (splits or split != "all")
  ):
    fix = "leave it out, and choose parts at reading: `train --rows '[:80%]'`"
    fix = f"give --split {' or '.join(splits)}" if splits else fix
    raise InputError(f"{root!r} has no --split {split!r}: {fix}.")
  return name, split


def _classes(
  settings: SourceConfig, root: str, folders: Sequence[str], of: Sequence[str]
) -> tuple[str, ...]:
  """The sorted names of the class folders, or those that are stated."""
  found, stated = set(of), settings.class_names
  if not found:
    raise InputError(f"{root!r} must have a folder of images for each class.")
  if others := sorted(set(folders) - set(stated or folders)):
    raise InputError(
      f"{root!r} has folders that --class-names does not name:"
      f" {format_names(others)}."
    )
  if not stated and (empty := sorted(set(folders) - found)):
    raise InputError(
      f"{root!r} has classes without an image: {format_names(empty)};"
      " remove such"
      " a folder, or name all classes with --class-names, as some may then be"
      " without."
    )
  return tuple(sorted(class_names(stated or folders, settings, root)))
