"""Images as files: `root/<class>/<file>` or `root/<split>/<class>/<file>`.

The classes are the folders' names, sorted. A folder without images is an error:
a class that came and went with its last image would say whether that is there,
and class names are public. Files below a class count at any depth, as in
torchvision's ImageFolder; links are followed. What is hidden (.name) or an
archive's litter (`__MACOSX`) is passed over.
"""

import collections
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.progress import counted
from oneshot_dp.extract.sources.example import Example, number_of, shortened
from oneshot_dp.extract.sources.file_list import FileList, parsed
from oneshot_dp.extract.sources.units import units_of_files
from oneshot_dp.extract.storage import anywhere
from oneshot_dp.extract.storage.fetch_ahead import Buffer

_Scan = Callable[[str], list[Any]]

EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif")

# Folders of these names are splits, not classes: a root that has them, but not
# the one that was asked for, must not be read with "test" as a class.
_SPLIT_NAMES = frozenset(
  ("train", "training", "test", "testing", "val", "valid", "validation")
)
_LITTER = frozenset(("__MACOSX", "@eaDir", "lost+found"))


class FolderExamples:
  """A folder of image files as a `Source`.

  Formal guarantees: the index is the place of the file's path, relative to the
  folder of classes, by code point: the order of `find * | LC_ALL=C sort` on
  every machine. So is `example_id`, unless it is the number in the file's name.
  An image that is not counted (a broken link, a file beside the class folders)
  is an error; other files are passed over. Each file that is read has the size
  with which it was listed; with a `listing` no folder is looked into.
  """

  version = ""

  def __init__(
    self,
    config: extract_config.ImageFolderSource,
    split: str,
    listing: Buffer | None = None,
  ) -> None:
    root = os.path.expanduser(config.root).rstrip("/") or "/"
    scanned = functools.cache(_scan)  # No folder is listed twice.
    if not anywhere.is_folder(root, scanned):
      raise InputError(
        f"source.root={config.root!r} is not a folder: give the one that holds "
        "the class folders, or a folder of them per split."
      )
    self._folder = _split_folder(root, split, scanned)
    self.name = config.name or os.path.basename(os.path.abspath(root))
    if listing is None:
      images = _images(self._folder, scanned)
      names = _class_names(self._folder, scanned, config.class_names, images)
      units = []
      if config.units is not None:
        prefix = "" if self._folder == root else f"{split}/"
        paths = [prefix + path for path, _ in images]
        units = [units_of_files(config.units, paths, prefix)]
      listing = images.after(names, *units)
      del images  # The listing has them.
    self.listing = listing
    (names, *units), self._images = parsed(listing)
    self.privacy_unit, owners = (*units, (extract_config.EXAMPLE_UNIT, None))[0]
    self._units = None if owners is None else np.array(owners, np.int64)
    self.class_names: tuple[str, ...] = tuple(names)
    self.id_source, self._ids = extract_config.POSITION_IDS, None
    if config.id_from_name:
      self.id_source = "file name"
      self._ids = _numbers(self._folder, self._images)
    self._labels = {name: label for label, name in enumerate(names)}

  def __len__(self) -> int:
    return len(self._images)

  def __getitem__(self, index: int) -> Example:
    """Returns the bytes and the class of the file at `index`."""
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    path, size = self._images[index]
    try:
      image = anywhere.read_file(os.path.join(self._folder, path))
      if len(image) != size:
        raise OSError(0, f"it had {size} bytes, now {len(image)}")
    except OSError as error:
      raise RunError(
        f"{self.where(index)!r} was there when the folder was listed and "
        f"cannot be read: {error.strerror}."
      ) from error
    return Example(
      example_id=index if self._ids is None else int(self._ids[index]),
      label=self._labels[path.split("/", 1)[0]],
      image=image,
      unit_id=None if self._units is None else int(self._units[index]),
    )

  def where(self, index: int) -> str:
    return os.path.join(self._folder, self._images[index][0])


def images_below(folder: str) -> list[str]:
  """The paths of all images in a folder, however deep, by code point."""
  return [os.path.join(folder, path) for path, _ in _images(folder, _scan)]


def files_below(folder: str) -> tuple[list[str], list[str]]:
  """Paths in a folder of what is named as an image, and of other files."""
  files = [path for path, _ in _files(folder, _scan)]
  others = [path for path in files if not _is_image(path)]
  return [path for path in files if _is_image(path)], others


def warn_of_heic(folder: str, others: Iterable[str]) -> None:
  """Says of photographs that they are passed over as if they were none."""
  count = sum(name.lower().endswith((".heic", ".heif")) for name in others)
  if count:
    print(
      f"warning: {folder}: {counted(count, 'HEIC image')} passed over:"
      " convert to JPEG what is to count.",
      file=sys.stderr,
    )


def is_split(name: str) -> bool:
  """Whether a folder is named after a split, and so is no class."""
  return name.lower() in _SPLIT_NAMES


def _numbers(folder: str, images: FileList) -> Int64[np.ndarray, " n"]:
  """Returns the number in the name of each file, which no other has."""
  found = (number_of(path, os.path.join(folder, path)) for path, _ in images)
  numbers = np.fromiter(found, np.int64, len(images))
  order = np.argsort(numbers, kind="stable")
  for again in np.flatnonzero(np.diff(numbers[order]) == 0):
    first, second = (images[i][0] for i in order[again:][:2].tolist())
    raise InputError(
      f"{folder!r}: {first!r} and {second!r} both have the number"
      f" {numbers[order[again]]}, so it names neither: leave"
      " source.id_from_name out."
    )
  return numbers


def _is_image(path: str) -> bool:
  return path.lower().endswith(EXTENSIONS)


def _scan(folder: str) -> list[Any]:
  """Returns what counts of a folder's entries, as `os.DirEntry` has it."""
  try:
    entries = anywhere.scan(folder)
  except OSError as error:
    raise InputError(f"{folder!r} cannot be read: {error.strerror}.") from error
  return [e for e in entries if e.name[:1] != "." and e.name not in _LITTER]


def folders_in(folder: str, listed: _Scan = _scan) -> list[str]:
  """The sorted names of the folders right in one: of classes, or of splits."""
  return sorted(entry.name for entry in listed(folder) if entry.is_dir())


def _split_folder(root: str, split: str, listed: _Scan) -> str:
  """Returns `root/<split>` if there is one, else `root`, which is all."""
  if not re.fullmatch(r"\w[\w.-]*", split):
    raise InputError(
      f"split={split!r} must be the name of a folder in {root!r}, or 'all' if"
      " it has no splits; only TFDS data sets can be sliced by position."
    )
  folder = os.path.join(root, split)
  if anywhere.is_folder(folder, listed):
    return folder
  if splits := [name for name in folders_in(root, listed) if is_split(name)]:
    raise InputError(
      f"{root!r} has no split {split!r}: it has {', '.join(splits)}. (Classes "
      f"of such names go into {folder!r}.)"
    )
  if split != "all":
    raise InputError(
      f"{root!r} has no folder {split!r}, nor any other split, and its images"
      " may not pass for several: give --split all, or a part such as"
      " 'all[:80%]' and 'all[80%:]'."
    )
  return root


def _class_names(
  folder: str, listed: _Scan, stated: tuple[str, ...], images: FileList
) -> list[str]:
  """Returns the sorted names of the class folders, or those that are stated."""
  names = folders_in(folder, listed)
  if not names:
    raise InputError(
      f"{folder!r} has no class folders: put each class's images in a folder "
      "named after the class."
    )
  if strays := [path for path, _ in images if "/" not in path]:
    raise InputError(
      f"{folder!r} has {len(strays)} images outside any class folder, such as "
      f"{strays[0]!r}: move them into the folder of their class."
    )
  if not images:
    raise InputError(
      f"{folder!r} has {len(names)} class folders ({shortened(names)}) but no"
      f" image in them: images end in {', '.join(EXTENSIONS)}."
    )
  if stated:
    if others := sorted(set(names) - set(stated)):
      raise InputError(
        f"{folder!r} has folders that source.class_names does not name:"
        f" {shortened(others)}."
      )
    return sorted(set(stated))
  shown = {path.split("/", 1)[0] for path, _ in images}
  if empty := sorted(set(names) - shown):
    raise InputError(
      f"{folder!r} has classes without an image: {shortened(empty)}; remove"
      " such a folder, or name all classes with source.class_names, as some may"
      " then be without."
    )
  return names


def _images(folder: str, listed: _Scan) -> FileList:
  """Returns path and bytes of the images below a folder, in their order."""
  broken, others = [], collections.Counter[str]()

  def found() -> Iterator[tuple[str, int]]:
    for path, size in _files(folder, listed):
      if not _is_image(path):
        others[os.path.splitext(path)[1]] += 1
        continue
      if size < 0:
        broken.append(path)
      yield path, size

  images = FileList.of(found())
  if broken:
    raise InputError(
      f"{folder!r} has images that are no files (broken links?):"
      f" {shortened(broken)}; mend or remove them."
    )
  warn_of_heic(folder, others.elements())
  if images and others:
    kinds = ", ".join(sorted(others))
    passed = f"{counted(others.total(), 'file')} ({kinds}) passed over"
    print(f"{folder}: {passed}, see `oneshot-dp inspect`", file=sys.stderr)
  return images


def _files(
  folder: str,
  listed: _Scan,
  prefix: str = "",
  parents: frozenset[str | tuple[int, int]] = frozenset(),
) -> Iterator[tuple[str, int]]:
  """Yields path, with "/" in between, and bytes of the files below `folder`.

  They come sorted by path: a folder is where its name and "/" would be.
  The bytes are -1 of an image that is no file, and 0 of what is no image.
  """
  identity = folder
  if not anywhere.is_url(folder):
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
  if identity in parents:
    raise InputError(
      f"{folder!r} is a link to a folder that it is in, so the images would "
      "never end: remove the link."
    )
  entries = [(prefix + e.name + "/" * e.is_dir(), e) for e in listed(folder)]
  entries.sort(key=lambda each: each[0], reverse=True)
  while entries:  # What an entry knows goes with it.
    path, entry = entries.pop()
    if entry.is_dir():  # Nobody else looks into it: it need not be remembered.
      yield from _files(entry.path, _scan, path, parents | {identity})
    elif not _is_image(entry.name):
      yield path, 0
    else:
      yield path, entry.stat().st_size if entry.is_file() else -1
