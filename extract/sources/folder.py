"""Images as files: `root/<class>/<file>` or `root/<split>/<class>/<file>`.

The classes are the folders' names, sorted. A folder without images is an error:
a class that came and went with its last image would say whether that is there,
and class names are public. Files below a class count at any depth, as in
torchvision's ImageFolder.
"""

import collections
import dataclasses
import os
import re
import sys
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs.errors import InputError, check_name, escaped
from oneshot_dp.configs.extract_config import EXAMPLE, SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import shortened
from oneshot_dp.extract.sources.listed_files import File, Found, is_image
from oneshot_dp.extract.sources.owners import units_of_files
from oneshot_dp.extract.sources.source import Listed

# Folders of these names are splits, not classes: a root that has them, but not
# the one that was asked for, must not be read with "test" as a class.
_SPLIT_NAMES = frozenset(
  ("train", "training", "test", "testing", "val", "valid", "validation")
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Folder(Listed):
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

  @classmethod
  def of(cls, root: str, files: Sequence[File], **fields: object) -> "Folder":
    """A source of files that were listed; `fields` are those of `Listed`."""
    return cls(
      root=root,
      files=tuple(file.path for file in files),
      sizes=np.array([file.size for file in files], np.int64),
      versions=np.array([file.version for file in files], np.int64),
      **fields,
    )


def open_folder(settings: SourceSettings, root: str, found: Found) -> Folder:
  """A folder that was listed, as a source.

  Raises:
    InputError: it is not a folder of a folder of images for each class.
  """
  name, split, prefix = name_and_split(settings, root, found)
  if prefix:
    found = found.inside(split)
    root = os.path.join(root, split)
  images = [file for file in found.files if is_image(file.path)]
  others = [f.path for f in found.files if not is_image(f.path)]
  refuse_broken(root, found)
  names = _class_names(root, found, settings, images)
  unit, unit_ids = EXAMPLE, None
  if settings.units is not None:
    paths = [prefix + file.path for file in images]
    passed_over = [prefix + path for path in others]
    unit, numbers = units_of_files(settings.units, paths, passed_over, prefix)
    unit_ids = np.array(numbers, np.int64)
  index = {name: label for label, name in enumerate(names)}
  labels = [index[file.path.partition("/")[0]] for file in images]
  return Folder.of(
    root,
    images,
    name=name,
    split=split,
    class_names=names,
    unit=unit,
    labels=np.array(labels, np.int32),
    unit_ids=unit_ids,
  )


def is_split(name: str) -> bool:
  """Whether a folder is named after a split, and so is no class."""
  return name.lower() in _SPLIT_NAMES


def name_and_split(
  settings: SourceSettings, root: str, found: Found
) -> tuple[str, str, str]:
  """The name, the split, and its folder with "/", where it has one.

  `photos/train` is the split `train` of `photos`.

  Raises:
    InputError: there is no such split, or several.
  """
  above, _, name = os.path.abspath(root).rpartition("/")
  folders = [path for path in found.folders if "/" not in path]
  splits = [folder for folder in folders if is_split(folder)]
  split = settings.split
  if split is None:
    split = splits[0] if splits == folders and len(splits) == 1 else "all"
    if not splits and is_split(name) and os.path.basename(above):
      name, split = os.path.basename(above), name
      return settings.name or name, split, ""
  if not re.fullmatch(r"\w[\w.-]*", split):
    raise InputError(
      f"--split {split!r} must be the name of a folder in {root!r}; only tfds:"
      " data sets are cut by position."
    )
  if split in folders:
    return settings.name or name, split, f"{split}/"
  if splits:
    raise InputError(
      f"{root!r} has no split {split!r}: give --split {' or '.join(splits)}."
      f" (Classes of such names go into {os.path.join(root, 'all')!r}.)"
    )
  if split != "all":
    raise InputError(
      f"{root!r} has no folder {split!r}, nor any other split: leave --split"
      " out, and choose parts at reading, as `train --rows '[:80%]'`."
    )
  return settings.name or name, split, ""


def refuse_broken(root: str, found: Found) -> None:
  """InputError: links that lead nowhere or back, pipes, devices."""
  if found.broken:
    raise InputError(
      f"{root!r} has links that lead nowhere or back into themselves, or what"
      f" is no file: {shortened(found.broken)}; mend or remove them."
    )


def tell_passed_over(root: str, found: Found) -> None:
  """Says of files that they are passed over as if they were no images."""
  kinds = collections.Counter(
    os.path.splitext(file.path)[1].lower()
    for file in found.files
    if not is_image(file.path)
  )
  photographs = kinds[".heic"] + kinds[".heif"] + kinds[".avif"]
  if kinds:
    told = escaped(", ".join(sorted(filter(None, kinds))) or "no extension")
    advice = " Convert HEIC and AVIF to JPEG, if they are to count."
    print(
      f"{escaped(root)}: files passed over: {kinds.total():,} ({told[:200]})."
      f"{advice if photographs else ''}",
      file=sys.stderr,
    )


def _class_names(
  folder: str, found: Found, settings: SourceSettings, images: Sequence[File]
) -> tuple[str, ...]:
  """The sorted names of the class folders, or those that are stated."""
  names = [path for path in found.folders if "/" not in path]
  if not names:
    raise InputError(
      f"{folder!r} has no class folders: put each class's images in a folder"
      " named after the class."
    )
  if strays := [file.path for file in images if "/" not in file.path]:
    raise InputError(
      f"{folder!r} has images outside any class folder, such as"
      f" {strays[0]!r} ({len(strays):,} in all): move them into the folder of"
      " their class."
    )
  if not images:
    raise InputError(
      f"{folder!r} has {len(names)} folders ({shortened(names)}) but no image"
      f" in them: images end in {', '.join(listed_files.IMAGES)}."
    )
  if settings.num_classes not in (None, len(settings.class_names or names)):
    raise InputError(
      f"--num-classes {settings.num_classes}, but {folder!r} has {len(names)}"
      " class folders: give --class-names, or leave it out."
    )
  if stated := settings.class_names:
    if others := sorted(set(names) - set(stated)):
      raise InputError(
        f"{folder!r} has folders that --class-names does not name:"
        f" {shortened(others)}."
      )
    return tuple(sorted(set(stated)))
  for name in names:
    check_name(f"{folder!a}: folder", name)
  shown = {file.path.partition("/")[0] for file in images}
  if empty := sorted(set(names) - shown):
    raise InputError(
      f"{folder!r} has classes without an image: {shortened(empty)}; remove"
      " such a folder, or name all classes with --class-names, as some may then"
      " be without."
    )
  return tuple(names)
