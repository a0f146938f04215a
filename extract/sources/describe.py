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
from oneshot_dp.configs.extract_config import EXAMPLE, SourceSettings
from oneshot_dp.extract.cache.keys import image_key
from oneshot_dp.extract.images.decode import DecodeError, decode_image
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import NamelessClassesError
from oneshot_dp.extract.sources.folder import is_split, open_folder
from oneshot_dp.extract.sources.listed_files import TABLES, Found, is_image
from oneshot_dp.extract.sources.npz import splits_of_npz
from oneshot_dp.extract.sources.open_source import open_source, tables_of
from oneshot_dp.extract.sources.source import Listed
from oneshot_dp.extract.sources.unlabelled import (
  Unlabelled,
  files_of,
  unlabelled,
)

_AT_ONCE = 1024
"""Images in flight: what is kept of each is small, its pixels are not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagesReport:
  """What is at a location, escaped for a terminal; all but `facts` PRIVATE.

  Attributes:
    name: the location.
    num_images: all that were looked at.
    classes: of each split the number of images of each class.
    sizes: width and height, of the smallest, median and largest.
    faults: what an extraction refuses: broken images, strays, links, owners.
    passed_over: files that are no images.
    duplicates: images of the same bytes, or pixels.
    owners: of each split the number of owners, and of images of the largest.
    notes: what has to be said by a flag.
  """

  name: str
  num_images: int
  classes: dict[str, dict[str, int]]
  sizes: tuple[tuple[int, int], ...]
  faults: tuple[str, ...]
  passed_over: tuple[str, ...]
  duplicates: tuple[str, ...]
  owners: dict[str, tuple[int, int]]
  notes: tuple[str, ...]

  @property
  def facts(self) -> dict[str, Any]:
    """What is public: the names of splits and classes."""
    classes = {split: list(counts) for split, counts in self.classes.items()}
    return {"location": self.name, "classes": classes}

  @property
  def text(self) -> str:
    """All of it, for the owner of the images."""
    return "\n".join(self._lines())

  def _lines(self) -> Iterator[str]:
    yield f"{self.name}: PRIVATE but for the names of its classes"
    for split, counts in self.classes.items():
      yield f"split {split}: {sum(counts.values()):,} images in classes"
      wide = max(map(len, counts), default=0)
      for name, count in counts.items():
        yield f"  {name:{wide}}  {count:,}"
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
  paths = listed_files.expanded(location)
  found, others = Found(files=(), folders=(), broken=()), []
  if len(paths) == 1 and listed_files.is_folder(paths[0]):
    found = listed_files.found_in(paths[0])
    others = [file.path for file in found.files if not is_image(file.path)]
  looked_at, classes, owners, faults, notes = [], {}, {}, [], []
  faults += [f"{path!r}: leads nowhere or back" for path in found.broken]
  if len(others) < len(found.files):
    source, splits, strays, counts = _folder(paths[0], found)
    looked_at.append(source)
    faults += [f"{path!r}: in no class folder" for path in strays]
    sound = [f for f in found.files if f.path not in strays]
    found = dataclasses.replace(found, files=sound, broken=())
    classes = counts
  else:
    tables = [path for path in others if path.lower().endswith(TABLES)]
    if tables:
      others = sorted(set(others) - set(tables))
      paths = [os.path.join(paths[0], path) for path in tables]
    splits = [split or None for split in tables_of(paths)] or [None]
    for path in paths:
      try:
        looked_at.append(unlabelled([path], settings.image))
        splits = splits_of_npz(path) if path.endswith(".npz") else splits
      except InputError as error:
        faults.append(str(error))
  for split in splits if looked_at else ():
    asked = dataclasses.replace(settings, split=split)
    try:
      if classes:
        opened = open_folder(asked, paths[0], found)
      else:
        opened = open_source(dataclasses.replace(asked, location=tuple(paths)))
    except NamelessClassesError as error:
      notes.append(str(error))
    except (InputError, RunError) as error:
      faults.append(str(error))
    else:
      classes[opened.split] = _counts(opened)
      if opened.unit != EXAMPLE:
        _, sizes = np.unique(opened.unit_ids, return_counts=True)
        owners[opened.split] = len(sizes), int(sizes.max(initial=0))
  images = Unlabelled(
    parts=tuple(part for source in looked_at for part in source.parts)
  )
  sizes, broken, keys = _look_at(images)
  return ImagesReport(
    name=escaped(" ".join(location)),
    num_images=len(images),
    classes=classes,
    sizes=sizes,
    faults=tuple(escaped(fault) for fault in (*faults, *broken)),
    passed_over=tuple(map(escaped, others)),
    duplicates=tuple(_duplicates(images, keys)),
    owners=owners,
    notes=tuple(map(escaped, notes)),
  )


def _folder(
  root: str, found: Found
) -> tuple[Unlabelled, list[str | None], set[str], dict[str, dict[str, int]]]:
  """All images of a folder, its splits, strays, and counts of its classes."""
  images = [file for file in found.files if is_image(file.path)]
  top = [path for path in found.folders if "/" not in path]
  splits: list[str | None] = [name for name in top if is_split(name)]
  depth = 2 if splits else 1
  strays = {f.path for f in images if f.path.count("/") < depth}
  counts = {}
  for split in splits or [None]:
    part = found.inside(split) if split else found
    names = [
      file.path.split("/")[0] for file in part.files if is_image(file.path)
    ]
    number = collections.Counter(names)
    counts[split or "all"] = {
      escaped(name): number[name] for name in part.folders if "/" not in name
    }
  return (
    Unlabelled(parts=(files_of(root, images),)),
    splits or [None],
    strays,
    counts,
  )


def _counts(source: Listed) -> dict[str, int]:
  counts = np.bincount(source.labels, minlength=len(source.class_names))
  return dict(zip(source.class_names, counts.tolist(), strict=True))


def _look_at(
  images: Unlabelled,
) -> tuple[tuple[tuple[int, int], ...], list[str], UInt64[np.ndarray, "n 2"]]:
  """Sizes, broken images, and the keys of the others (zeros of the broken)."""
  from tqdm import tqdm

  def look(index: int) -> tuple[np.ndarray, tuple[int, int]] | str:
    try:
      example = images[index]
      height, width, _ = decode_image(example.image).shape
    except (InputError, RunError) as error:
      return str(error)
    except DecodeError as error:
      return f"{example.where}: {error}"
    return image_key(example.image), (width, height)

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
      yield " = ".join(escaped(images.name_of(i)) for i in group.tolist())
