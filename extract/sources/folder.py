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
from oneshot_dp.extract.sources.annotations.file_owners import units_of_files
from oneshot_dp.extract.sources.annotations.labels import (
  class_names,
  explain_differing_forms,
)
from oneshot_dp.extract.sources.annotations.splits import is_split
from oneshot_dp.extract.sources.formats import is_image
from oneshot_dp.extract.sources.layout import check_layout
from oneshot_dp.extract.sources.listed_files import format_names
from oneshot_dp.extract.sources.source import Source


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
  # Among others a folder may be a class that is called "all", as the whole of a
  # folder without splits is.
  is_class = config.split is None and not is_split(split) and len(folders) > 1
  if split in folders and not is_class:
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
  check_layout(config, root, folders, images)
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
    if config.split is None:
      raise InputError(f"{root!r} has splits: {fix}.")
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
      f" {format_names(others)}{explain_differing_forms(others, stated)}."
    )
  return tuple(sorted(class_names(stated, config, root)))
