"""What an extraction would meet at a location, for `inspect`.

PRIVATE, as the images are, but for the names of splits and classes.
"""

import collections
import concurrent.futures
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt64

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.cache.keys import image_key
from oneshot_dp.extract.images.decode import DecodeError, decode_image
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import NamelessClassesError
from oneshot_dp.extract.sources.folder import is_split, open_folder
from oneshot_dp.extract.sources.listed_files import TABLES, File, is_image
from oneshot_dp.extract.sources.npz import splits_of_npz
from oneshot_dp.extract.sources.open_source import open_source, tables_of
from oneshot_dp.extract.sources.unlabelled import (
  Unlabelled,
  files_of,
  unlabelled,
)

_AT_ONCE = 1024
"""Images in flight: what is kept of each is small, its pixels are not."""
_Counts = dict[str, dict[str, int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagesReport:
  """What is at a location, escaped for a terminal; all but `facts` PRIVATE.

  Attributes:
    location: as it was given.
    num_images: all that were looked at.
    classes: of each split the number of images of each class.
    sizes: width and height, of the smallest, median and largest.
    owners: of each split the number of owners, and of images of the largest.
    faults: what an extraction refuses: broken images, strays, links, owners.
    passed_over: files that are no images.
    duplicates: images of the same bytes, or pixels.
    notes: what has to be said by a flag.
  """

  location: str
  num_images: int
  classes: _Counts
  sizes: tuple[tuple[int, int], ...]
  owners: dict[str, tuple[int, int]]
  faults: tuple[str, ...]
  passed_over: tuple[str, ...]
  duplicates: tuple[str, ...]
  notes: tuple[str, ...]

  @property
  def facts(self) -> dict[str, Any]:
    """What is public: the names of splits and classes."""
    classes = {split: list(counts) for split, counts in self.classes.items()}
    return {"location": self.location, "classes": classes}

  @property
  def text(self) -> str:
    """All of it, for the owner of the images."""
    return "\n".join(self._lines())

  def _lines(self) -> Iterator[str]:
    yield f"{self.location}: PRIVATE but for the names of its classes"
    for split, counts in self.classes.items():
      yield f"split {split}: {sum(counts.values()):,} images in classes"
      wide = max(map(len, counts), default=0)
      yield from (f"  {name:{wide}}  {n:,}" for name, n in counts.items())
    for split, (number, most) in self.owners.items():
      yield f"owners, split {split}: {number:,}; one has {most:,} images"
    yield f"all images: {self.num_images:,}"
    if self.sizes:
      low, middle, high = (f"{w} x {h}" for w, h in self.sizes)
      yield f"width x height: {low} at least, {high} at most, median {middle}"
    for what, some in (
      ("an extraction refuses", self.faults),
      ("not images, passed over", self.passed_over),
      ("the same bytes", self.duplicates),
      ("to be said by flags", self.notes),
    ):
      yield f"{what}: {len(some):,}"
      yield from (f"  {each}" for each in some)


def describe_images(
  location: Sequence[str], settings: SourceSettings | None = None
) -> ImagesReport:
  """Looks at every image of every split once, on all cores.

  In memory are the names of files, and 28 bytes for each image.

  Args:
    location: as of `SourceSettings`, but no tfds:NAME.
    settings: what else is said of the source.

  Raises:
    InputError: nothing is there, or a folder cannot be read.
  """
  settings = settings or SourceSettings(location=tuple(location))
  paths, files = listed_files.expanded(location), []
  if len(paths) == 1 and listed_files.is_folder(paths[0]):
    files = listed_files.files_in(paths[0])
  faults = [f"{f.path!r}: leads nowhere or back" for f in files if f.size < 0]
  notes, parts, classes, splits, opened = [], [], {}, [None], []
  sound = [file for file in files if file.size >= 0]
  others = [file.path for file in sound if not is_image(file.path)]
  if is_folder := any(is_image(file.path) for file in files):
    strays, splits, classes = _of_folder(paths[0], sound)
    faults += [f"{path!r}: in no class folder" for path in sorted(strays)]
    parts.append(files_of(paths[0], [f for f in sound if is_image(f.path)]))
    sound = [file for file in sound if file.path not in strays]
  else:
    if files and (tables := [p for p in others if p.lower().endswith(TABLES)]):
      others = sorted(set(others) - set(tables))
      paths = [os.path.join(paths[0], table) for table in tables]
    splits = [split or None for split in tables_of(paths)] or [None]
    for path in paths:
      try:
        is_npz = path.lower().endswith(".npz")
        splits = (splits_of_npz(path) or [None]) if is_npz else splits
        for split in splits if is_npz else [None]:
          key = f"{split}_image" if split else settings.image
          parts += unlabelled([path], key).parts
      except InputError as error:
        faults.append(str(error))
  for split in splits if parts else ():
    asked = dataclasses.replace(settings, split=split, location=tuple(paths))
    try:
      source = open_folder(asked, paths[0], sound) if is_folder else None
      opened.append(source or open_source(asked))
    except NamelessClassesError as error:
      notes.append(str(error))
    except (InputError, RunError) as error:
      faults.append(str(error))
  everything = Unlabelled(parts=tuple(parts))
  sizes, broken, keys = _look_at(everything)
  return ImagesReport(
    location=escaped(" ".join(location)),
    num_images=len(everything),
    classes=classes or _of_rows(opened),
    sizes=sizes,
    owners=_owners(opened),
    faults=tuple(map(escaped, (*faults, *broken))),
    passed_over=tuple(map(escaped, others)),
    duplicates=tuple(_duplicates(everything, keys)),
    notes=tuple(map(escaped, notes)),
  )


def _of_folder(
  root: str, files: Sequence[File]
) -> tuple[set[str], list[str | None], _Counts]:
  """The strays of a folder, its splits, and the counts of their classes."""
  folders = listed_files.folders_in(root, files)
  splits: list[str | None] = list(filter(is_split, folders))
  images = [file.path for file in files if is_image(file.path)]
  strays = {path for path in images if path.count("/") < 1 + bool(splits)}
  counts = {}
  for split in splits or [None]:
    part = listed_files.inside(files, split) if split else files
    names = listed_files.folders_in(os.path.join(root, split or ""), part)
    of = (file.path.split("/")[0] for file in part if is_image(file.path))
    number = collections.Counter(of)
    counts[split or "all"] = {escaped(name): number[name] for name in names}
  return strays, splits or [None], counts


def _of_rows(opened: Sequence[Any]) -> _Counts:
  found = {}
  for source in opened:
    counts = np.bincount(source.labels, minlength=len(source.class_names))
    found[source.split] = dict(
      zip(source.class_names, counts.tolist(), strict=True)
    )
  return found


def _owners(opened: Sequence[Any]) -> dict[str, tuple[int, int]]:
  found = {}
  for source in opened:
    if source.unit_ids is not None:
      _, sizes = np.unique(source.unit_ids, return_counts=True)
      found[source.split] = len(sizes), int(sizes.max(initial=0))
  return found


def _look_at(
  images: Unlabelled,
) -> tuple[tuple[tuple[int, int], ...], list[str], UInt64[np.ndarray, "n 2"]]:
  """Sizes, broken images, and the keys of the others (zeros of the broken)."""
  from tqdm import tqdm

  def look(index: int) -> tuple[np.ndarray, tuple[int, int]] | str:
    try:
      image = images.image(index)
      height, width, _ = decode_image(image).shape
    except (InputError, RunError, DecodeError) as error:
      return f"{images.place(index)}: {error}"
    return image_key(image), (width, height)

  n = len(images)
  keys, sizes = np.zeros((n, 2), np.uint64), np.zeros((n, 2), np.int32)
  broken = []
  with (
    concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    tqdm(total=n, desc="inspect", unit="image", disable=None) as bar,
  ):
    for start in range(0, n, _AT_ONCE):
      some = range(start, min(start + _AT_ONCE, n))
      for index, seen in zip(some, pool.map(look, some), strict=True):
        if isinstance(seen, str):
          broken.append(seen)
        else:
          keys[index], sizes[index] = seen
      bar.update(len(some))
  known = sizes[sizes[:, 0] > 0]
  if not len(known):
    return (), broken, keys
  some = np.percentile(known, [0, 50, 100], axis=0, method="nearest")
  return tuple((int(w), int(h)) for w, h in some), broken, keys


def _duplicates(
  images: Unlabelled, keys: UInt64[np.ndarray, "n 2"]
) -> Iterator[str]:
  order = np.lexsort((keys[:, 1], keys[:, 0]))
  ends = np.flatnonzero((np.diff(keys[order], axis=0) != 0).any(axis=1)) + 1
  for group in np.split(order, ends):
    if len(group) > 1 and keys[group[0]].any():
      yield " = ".join(escaped(images.place(i)) for i in group.tolist())
