"""Looks at the names in a folder of images: are they classes, and images?

Whoever unpacks an archive, or has a program make small copies, gets folders
that are no classes and files that are no photographs of their own. All of it
would be read without an error: test images as a class, a photograph as several
rows. What is almost surely a mistake is refused, the rest is warned of.
"""

import itertools
import operator
import os
import re
import sys
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.file_table import FileTable
from oneshot_dp.extract.sources.annotations.splits import is_split, split_words
from oneshot_dp.extract.sources.listed_files import format_names

# Programs name what they make of an image after it: x_mask.png, x_mask_1.png,
# x-150x150.jpg, x.thumb.jpg, or put it into a folder of its own: thumbs/x.jpg.
_DERIVED = re.compile(
  r"[ _.-](mask|seg|segmentation|gt|groundtruth|thumb|thumbnail|\d+x\d+)"
  r"([ _.-]?\d+)?\.[^./]+\Z"
)
_DERIVED_FOLDER = re.compile(
  r"(?:(?<=/)|\A)((annotations?|labels?|masks?|trimaps?|depths?"
  r"|segmentations?|segmentation(class|object)|gt|ground_?truth"
  r"|thumb(nail)?s?)/)+"
)
_FOLD = re.compile(r"(k?fold|cv)[ _=-]?\d+", re.IGNORECASE)
_IMAGE_FOLDERS = (
  *("", "image/", "images/", "jpegimages/", "img/", "imgs/", "jpg/", "rgb/"),
  *("photos/", "originals/"),
)
# Copies of the image itself are x (1).jpg, x - copy.jpg, x_flip.jpg, x~2.jpg,
# x_aug_2.jpg and, by a program that makes several of each,
# x_jpg.rf.0a1b2c3d.jpg; or Copy of x.jpg, and IMG_E1.jpg of IMG_1.jpg.
_COPY = re.compile(
  r"([ _.-](-[ ])?(copy|kopie|copie|c[o\u00f3]pia|edited|resized|rotated|rot"
  r"|mirrored|mirror|[hv]?flip(ped)?|aug|augmented)([ _.-]?\d+)?"
  r"|[ ]?\(\d{1,3}\)|~\d{1,3}|\.rf\.[0-9a-f]+)\.[^./]+\Z"
)
_COPY_OF = re.compile(r"(?<=/)(copy of |img_e(?=\d))")
# What a stem has without its last word: x1_left.jpg and x1_right.jpg have one,
# and x1.jpg as well. Numbers tell photographs apart, and words seldom do.
_WITHOUT_LAST_WORD = re.compile(
  r"(.*\d.*?)[ _.~@-]+\d?[a-z]+|(.*\d)[a-z]", re.IGNORECASE
)
_MOST_OF = 1 / 2
_FEWEST_VIEWS = 4
# The split that the name of a file says, and not that of its folder.
_NAMED_SPLITS = {
  word: re.compile(
    rf"(?:\A|[/_. -]){word}(ing|ation|id)?(?=[_. -]|\d)[^/\n]*$", re.MULTILINE
  )
  for word in ("train", "test", "val")
}
# Each name that one of the expressions above finds has one of these in it. To
# look for them in some thousand names at once takes a tenth of the time.
_HINT = re.compile(
  r"mask|seg|g(t[^a-z]|round)|thumb|copy|edited|r(esized|ot)|mirror|flip|aug"
  r"|\(|\.rf\.|x\d|~| - |img_e"
)
_NAMES_AT_ONCE = 4096


class _Names(NamedTuple):
  """What the names of images say.

  Attributes:
    inner_of: for each class, the folders directly in it.
    is_deep: whether no image lies directly in its class.
    derived: images that are named after what a program makes of an image, and
      the names without suffix that this image may have.
    copies: images that are named as copies of an image, and its name without
      suffix.
    same_stem: images that have the name of the one before, but for the suffix.
    views: two of many images whose names differ in the last word alone.
    splits: that names of images, and not of folders, say.
  """

  inner_of: dict[str, set[str]]
  is_deep: bool
  derived: dict[str, Sequence[str]]
  copies: dict[str, str]
  same_stem: list[tuple[str, str]]
  views: tuple[str, ...]
  splits: set[str]


def check_layout(
  config: SourceConfig,
  root: str,
  folders: Sequence[str],
  images: FileTable,
) -> None:
  """Checks that folders are classes, and that images are their own.

  It warns of images that are named as copies of others, where no unit says
  which of them belong together.

  Args:
    config: has the flags; classes that a flag names are classes.
    root: the folder, for messages.
    folders: the names of the class folders.
    images: all images in them.

  Raises:
    InputError: the folders are splits, or hold splits or other classes; or
      there are masks or small copies beside their images.
  """
  if not config.class_names:
    _refuse_named_splits(root, folders)
  names = _read_names(folders, images)
  if names.inner_of:
    _refuse_inner_folders(config, root, names.inner_of, names.is_deep)
  _warn_of_named_splits(root, names.splits)
  path_of: dict[str, str] = {}  # by stems in lower case
  if names.derived or names.copies:  # which most folders have not
    for path in images.paths():
      path_of[os.path.splitext(path.lower())[0]] = path
  _refuse_derived(root, names.derived, path_of)
  if config.units is None:
    _warn_of_copies(root, names, path_of)


def _read_names(folders: Sequence[str], images: FileTable) -> _Names:
  """Reads all names once: over those of millions of images each pass counts."""
  inner_of: dict[str, set[str]] = {}
  is_deep = True
  derived: dict[str, Sequence[str]] = {}
  copies: dict[str, str] = {}
  same_stem: list[tuple[str, str]] = []
  last: list[str] = []
  splits: set[str] = set()
  has_derived = any(
    _DERIVED_FOLDER.match(f"{folder.lower()}/") for folder in folders
  )
  paths = images.paths()
  batch = list(itertools.islice(paths, _NAMES_AT_ONCE))
  # Names are sorted, so the first thousands tell how an image's views are
  # called.
  views = _find_views(batch)
  while batch:
    text = "\n".join(batch)
    # In most folders all images lie directly in their classes, where a path has
    # one slash; all have one at least.
    if text.count("/") == len(batch):
      is_deep = False
    else:
      is_deep = _add_inner_folders(batch, inner_of) and is_deep
    same_stem += _neighbors_of_one_stem(last + batch)
    text = text.lower()
    splits |= _named_splits(text)
    if has_derived or _HINT.search(text):
      for path in batch:
        _add_originals(path, derived, copies)
    last = batch[-1:]
    batch = list(itertools.islice(paths, _NAMES_AT_ONCE))
  return _Names(inner_of, is_deep, derived, copies, same_stem, views, splits)


def _find_views(paths: Sequence[str]) -> tuple[str, ...]:
  """Two images of one name but for its last word, if most images are so."""
  group_of: dict[str, list[str]] = {}
  for path in paths:
    folder, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    match = _WITHOUT_LAST_WORD.fullmatch(stem)
    if match is not None:
      stem = match[1] or match[2]
    group_of.setdefault(f"{folder}/{stem}", []).append(path)
  groups = [group for group in group_of.values() if len(group) > 1]
  num_views = sum(map(len, groups))
  if num_views < max(_FEWEST_VIEWS, _MOST_OF * len(paths)):
    return ()
  return tuple(groups[0][:2])


def _named_splits(text: str) -> set[str]:
  """The splits that names of files in a text say; without train, none."""
  splits: set[str] = set()
  if "train" in text:
    for word, pattern in _NAMED_SPLITS.items():
      if word in text and pattern.search(text):
        splits.add(word)
  return splits


def _add_inner_folders(
  paths: Sequence[str], inner_of: dict[str, set[str]]
) -> bool:
  """Adds the folders in classes; returns whether all images are in such."""
  all_are_deep = True
  for path in paths:
    if path.count("/") == 1:  # the image is directly in its class
      all_are_deep = False
    else:
      folder, inner, _ = path.split("/", 2)
      inner_of.setdefault(folder, set()).add(inner)
  return all_are_deep


def _neighbors_of_one_stem(paths: Sequence[str]) -> list[tuple[str, str]]:
  """Pairs of paths that follow each other, alike but for the suffix."""
  stems = [path.rpartition(".")[0] for path in paths]
  # Mostly no two are equal, and this says so without a loop.
  if all(map(operator.ne, stems, stems[1:])):
    return []
  pairs: list[tuple[str, str]] = []
  for place, (stem, following) in enumerate(itertools.pairwise(stems)):
    if stem == following:
      pairs.append((paths[place], paths[place + 1]))
  return pairs


def _add_originals(
  path: str,
  derived: dict[str, Sequence[str]],
  copies: dict[str, str],
) -> None:
  """Adds an image whose name says that it was made of another."""
  # Images/1.jpg and Masks/1.png: originals are looked for in lower case.
  name = path.lower()
  match = _DERIVED.search(name)
  if match is not None:
    derived[path] = [name[: match.start()]]
    return
  match = _DERIVED_FOLDER.search(name)
  if match is not None:
    before = name[: match.start()]
    after = os.path.splitext(name[match.end() :])[0]
    derived[path] = [f"{before}{folder}{after}" for folder in _IMAGE_FOLDERS]
    return
  match = _COPY.search(name)
  if match is not None:
    copies[path] = name[: match.start()]
    return
  match = _COPY_OF.search(name)
  if match is not None:
    before = "img_" if match[0] == "img_e" else ""
    original = name[: match.start()] + before + name[match.end() :]
    copies[path] = os.path.splitext(original)[0]


def _refuse_named_splits(root: str, folders: Sequence[str]) -> None:
  """Refuses folders of one name but for the split: seg_train, seg_test."""
  # (A class of bullet_train beside test_tube is none of it.)
  splits_of: dict[str, dict[str, str]] = {}
  for folder in folders:
    splits = split_words(folder)
    if len(splits) == 1:
      ((word, split),) = splits.items()
      rest = folder.replace(word, "", 1).lower()
      splits_of.setdefault(rest, {})[split] = folder
  for named in splits_of.values():
    if len(named) > 1:
      names = sorted(named.values())
      raise InputError(
        f"{root!r} has folders that are called after splits, not classes:"
        f" {format_names(names)}; give one of them at a time, or name the"
        " classes with --class-names if they are."
      )


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
  only = next(iter(inner_of)) if is_deep and len(inner_of) == 1 else None
  if len(splits) > 1:
    advice = f"put classes into splits, such as {splits[0]}/{min(inner_of)}"
    if only is not None:
      advice = f"give {os.path.join(root, only)!r}"
    raise InputError(
      f"{root!r} has splits in its classes: {format_names(splits)}; {advice}."
    )
  if config.class_names:
    return
  # An archive that was unpacked into a folder of its own name has its classes
  # one folder further down.
  if only is not None:
    raise InputError(
      f"{root!r} has one class, {only!r}, whose images are in the folders"
      f" {format_names(names)}: if these are the classes, give"
      f" {os.path.join(root, only)!r}; if not, name the class with"
      " --class-names."
    )
  # Folds, cameras or hospitals that have all classes each would be read as the
  # classes themselves.
  if not is_deep or len(inner_of) == 1:
    return
  folders = list(inner_of)
  common = sorted(set.intersection(*inner_of.values()))
  if len(common) > 1:
    raise InputError(
      f"{root!r}: the folders {format_names(folders)} all have the folders"
      f" {format_names(common)}: if these are the classes, give one of the"
      " former at a time, or merge them; if not, name the classes with"
      " --class-names."
    )
  if all(_FOLD.fullmatch(folder) for folder in folders):
    raise InputError(
      f"{root!r} has folders that are called after folds, not classes:"
      f" {format_names(folders)}; give one of them at a time, or merge them."
    )
  # Letters of the alphabet and groups of classes are read as classes as well,
  # and may be just these.
  print(
    f"note: {escaped(root)}: the classes are {format_names(folders)}, and not"
    f" the folders in them, such as {format_names(names[:3])}.",
    file=sys.stderr,
  )


def _refuse_derived(
  root: str,
  derived: Mapping[str, Sequence[str]],
  path_of: Mapping[str, str],
) -> None:
  """Refuses masks and thumbnails whose images are there, too.

  Each would be a row of its own, and a photograph be in several.
  """
  beside: list[str] = []
  for path, originals in derived.items():
    if any(path_of.get(stem, path) != path for stem in originals):
      beside.append(path)
  if beside:
    raise InputError(
      f"{root!r} has masks or small copies beside their images:"
      f" {format_names(beside)}; move them out of the folder, or rename them if"
      " they are photographs of their own."
    )


def _warn_of_named_splits(root: str, splits: Set[str]) -> None:
  """Warns of files that are named after several splits, as one is read."""
  if len(splits) > 1:
    print(
      f"WARNING: {escaped(root)}: names of images say the splits"
      f" {format_names(sorted(splits))}, and all are read as one: if they are"
      " splits, move each into a folder of its own.",
      file=sys.stderr,
    )


def _warn_of_copies(
  root: str, names: _Names, path_of: Mapping[str, str]
) -> None:
  """Warns of images that are one photograph, as their names say."""
  # Files of equal bytes are counted once all have been read. These differ in
  # their bytes, and nothing but their names tells of it.
  pairs = list(names.same_stem)
  first_of: dict[str, str] = {}
  for path, original in names.copies.items():
    first = first_of.setdefault(original, path)
    if original in path_of:
      pairs.append((path_of[original], path))
    elif first != path and not path[len(original) :].startswith((" (", "(")):
      # (Windows renames many files at once to cat (1), cat (2) and so on.)
      pairs.append((first, path))
  if pairs:
    shown = ", ".join(f"{a!r} and {b!r}" for a, b in pairs[:3])
    print(
      f"WARNING: {escaped(root)}: images that are named as copies of others:"
      f" {len(pairs):,}, such as {shown}; if they are, epsilon says too little"
      " about a photograph that is there several times: leave one of each, or"
      " protect them together with --units.",
      file=sys.stderr,
    )
  elif names.views:
    print(
      f"WARNING: {escaped(root)}: images whose names differ in the last word"
      f" alone, such as {' and '.join(map(repr, names.views))}: if these are of"
      " one photograph or person, epsilon says too little about it: leave one"
      " of each, or protect them together with --units.",
      file=sys.stderr,
    )
