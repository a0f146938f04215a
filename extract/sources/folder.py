"""Images as files: `root/<class>/<file>` or `root/<split>/<class>/<file>`.

The classes are the folders' names, sorted. A folder without images is an error:
a class that came and went with its last image would tell whether that image is
there, and class names are public. A bucket has no empty folders, so there the
class names do follow from the images: the cache and all receipts say so, unless
a flag states the classes. Files below a class count at any depth, as in
torchvision's ImageFolder. They come in the order of their paths by code point,
that of `find * | LC_ALL=C sort` on every machine.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  NumClassesSource,
  SourceConfig,
)
from oneshot_dp.extract import storage
from oneshot_dp.extract.file_table import FileTable
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.file_owners import units_of_files
from oneshot_dp.extract.sources.formats import is_image
from oneshot_dp.extract.sources.labels import class_names
from oneshot_dp.extract.sources.listed_files import format_names
from oneshot_dp.extract.sources.location import is_split
from oneshot_dp.extract.sources.source import Source

# What programs call that which they make of an image: x_mask.png,
# x_mask_1.png, x-150x150.jpg, x.thumb.jpg.
_DERIVED = re.compile(
  r"[ _.-](mask|seg|segmentation|gt|groundtruth|thumb|thumbnail|\d+x\d+)"
  r"([ _.-]?\d+)?\.[^./]+\Z"
)


def open_folder(config: SourceConfig, root: str, files: FileTable) -> Source:
  """Opens a folder that has a folder of images for each class.

  Args:
    config: which split, and the flags about names, classes and units.
    root: the folder.
    files: all files in it, as `files_in` lists them.

  Returns:
    The images of one split, in the order of their paths by code point; the
    label of an image is the place of its folder among the names of classes.

  Raises:
    InputError: it is not such a folder, or has no such split.
  """
  folders = listed_files.folders_in(root, files)
  name, split = _name_and_split(config, root, folders)
  prefix = ""
  if split in folders:
    root = os.path.join(root, split)
    prefix = f"{split}/"
    files = files.below(split)
    folders = listed_files.folders_in(root, files)
  # After the split was chosen: a broken link in another split is no concern of
  # this one.
  listed_files.refuse_broken(root, files)
  images = files.select(_are_images(files))
  rows_of = images.folders()
  _refuse_strays(root, images, rows_of)
  names = _class_names(config, root, folders, list(rows_of))
  _refuse_other_layouts(config, root, images)
  units = None
  if config.units is not None:
    paths = [prefix + path for path in images.paths()]
    others = [
      prefix + path for path in files.select(~_are_images(files)).paths()
    ]
    units = units_of_files(config.units, paths, others, prefix)
  # The label of an image is the number of its folder's name, in sorted order:
  # the same on every machine.
  label_of = {name: label for label, name in enumerate(names)}
  labels = np.empty(len(images), np.int32)
  for folder, rows in rows_of.items():
    labels[rows] = label_of[folder]
  return Source(
    name=config.name or name,
    split=split,
    class_names=names,
    num_classes_source=_num_classes_source(config, root),
    unit=EXAMPLE if units is None else units.unit,
    labels=labels,
    unit_ids=None if units is None else units.unit_ids,
    weight_divisors=None if units is None else units.weight_divisors,
    root=root,
    files=images,
    columns=(),
    locations=None,
  )


def _are_images(files: FileTable) -> Bool[np.ndarray, " n"]:
  return np.fromiter(map(is_image, files.paths()), bool, len(files))


def _refuse_strays(
  root: str, images: FileTable, rows_of: Mapping[str, slice]
) -> None:
  """InputError: an image is in none of the folders that have these rows."""
  if sum(rows.stop - rows.start for rows in rows_of.values()) == len(images):
    return
  strays = [path for path in images.paths() if "/" not in path]
  raise InputError(
    f"{root!r} has images outside any class folder: {format_names(strays)};"
    " move them into the folder of their class, or name the folder above, if"
    " this is one class (images without a class are for predict)."
  )


def _refuse_other_layouts(
  config: SourceConfig, root: str, images: FileTable
) -> None:
  """Refuses folders that are no classes, and files made of other images."""
  inner_of: dict[str, set[str]] = {}
  is_deep = True
  original_of: dict[str, str] = {}
  # One pass for both: over the names of millions of images each takes seconds.
  for path in images.paths():
    if path.count("/") == 1:  # the image is directly in its class
      is_deep = False
    else:
      folder, inner, _ = path.split("/", 2)
      inner_of.setdefault(folder, set()).add(inner)
    match = _DERIVED.search(path.lower())
    if match is not None:
      original_of[path] = path[: match.start()]
  # Most folders have neither.
  if inner_of:
    _refuse_inner_folders(config, root, inner_of, is_deep)
  if original_of:
    _refuse_derived(root, images, original_of)


def _refuse_inner_folders(
  config: SourceConfig,
  root: str,
  inner_of: Mapping[str, set[str]],
  is_deep: bool,
) -> None:
  """Refuses folders in class folders that say that these are no classes."""
  # Training and test images would be read as one split.
  names = sorted(set.union(*inner_of.values()))
  splits = [name for name in names if is_split(name)]
  if len(splits) > 1:
    raise InputError(
      f"{root!r} has splits in its classes: {format_names(splits)}; put classes"
      f" into splits, such as {splits[0]}/{min(inner_of)}."
    )
  # Folds, cameras or hospitals that have all classes each would be read as the
  # classes themselves.
  common = sorted(set.intersection(*inner_of.values()))
  is_doubtful = is_deep and len(inner_of) > 1 and len(common) > 1
  if is_doubtful and not config.class_names:
    raise InputError(
      f"{root!r}: the folders {format_names(list(inner_of))} all have the"
      f" folders {format_names(common)}: if these are the classes, give one of"
      " the former at a time, or merge them; if not, name the classes with"
      " --class-names."
    )


def _refuse_derived(
  root: str, images: FileTable, original_of: Mapping[str, str]
) -> None:
  """Refuses masks and thumbnails that lie beside their images.

  Each would be a row of its own, and a photograph be in several.
  """
  stems = {os.path.splitext(path)[0] for path in images.paths()}
  found = [path for path, stem in original_of.items() if stem in stems]
  if found:
    raise InputError(
      f"{root!r} has masks or small copies beside their images:"
      f" {format_names(found)}; move them out of the folder, or rename them if"
      " they are photographs of their own."
    )


def _name_and_split(
  config: SourceConfig, root: str, folders: Sequence[str]
) -> tuple[str, str]:
  """The data set's name, and the split: `photos/train` is one of `photos`.

  InputError: there is no such split, or one of several has to be chosen.
  """
  parent, name = os.path.split(os.path.abspath(root))
  splits = [folder for folder in folders if is_split(folder)]
  split = config.split
  if not splits and is_split(name) and split in (None, name):
    return os.path.basename(parent) or name, name
  if split is None:
    # Of folders that are all splits, an only one needs no flag.
    is_only = len(splits) == len(folders) == 1
    split = splits[0] if is_only else "all"
  is_there = split in folders
  is_whole = split == "all" and not splits
  if not re.fullmatch(r"\w[\w.-]*", split) or not (is_there or is_whole):
    fix = "leave it out, and choose parts at reading: `train --rows '[:80%]'`"
    if splits:
      fix = f"give --split {' or '.join(splits)}"
    raise InputError(f"{root!r} has no --split {split!r}: {fix}.")
  return name, split


def _num_classes_source(config: SourceConfig, root: str) -> NumClassesSource:
  """Where the classes are known from; warns where it is the images."""
  is_stated = config.class_names or config.num_classes is not None
  if is_stated or not storage.is_url(root):
    return "class_names"
  print(
    f"WARNING: {escaped(root)}: a bucket has no empty folders, so the class"
    " names follow from the images, which are private, and are treated as"
    " public; give --class-names to keep the guarantee.",
    file=sys.stderr,
  )
  return "labels (treated as public)"


def _class_names(
  config: SourceConfig,
  root: str,
  folders: Sequence[str],
  with_images: Sequence[str],
) -> tuple[str, ...]:
  """The sorted names of the class folders, or those that a flag states.

  Args:
    config: has the flags.
    root: the folder of the class folders, for messages.
    folders: all of them.
    with_images: those that have images.
  """
  # Which folders there are is public, which have images is not: a class that
  # disappears with its last image would tell of that image.
  stated = config.class_names
  if not with_images:
    raise InputError(f"{root!r} must have a folder of images for each class.")
  if not stated:
    empty = sorted(set(folders) - set(with_images))
    if empty:
      raise InputError(
        f"{root!r} has classes without an image: {format_names(empty)}; remove"
        " such a folder, or name all classes with --class-names, as some may"
        " then be without."
      )
    return tuple(sorted(class_names(folders, config, root)))
  others = sorted(set(folders) - set(stated))
  if others:
    raise InputError(
      f"{root!r} has folders that --class-names does not name:"
      f" {format_names(others)}."
    )
  return tuple(sorted(class_names(stated, config, root)))
