"""What an extraction would meet at a location, for `inspect`."""

import concurrent.futures
import dataclasses
import os
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import UInt64

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.cache.keys import image_key
from oneshot_dp.extract.images.decode import DecodeError, decode_image
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import NamelessClassesError
from oneshot_dp.extract.sources.folder import is_split, open_folder
from oneshot_dp.extract.sources.listed_files import has_rows, is_image
from oneshot_dp.extract.sources.npz import array_splits
from oneshot_dp.extract.sources.open_source import open_source, splits_of
from oneshot_dp.extract.sources.source import Source, together
from oneshot_dp.extract.sources.unlabelled import images_of, unlabelled

_AT_ONCE = 1024
"""Images in flight: what is kept of each is small, its pixels are not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagesReport:
  """What is at a location, escaped for a terminal.

  Of each split that can be extracted: the images of each class; how many owners
  there are, and how many images one has. Of all images: how many, and smallest,
  median and largest sides. `faults` are what an extraction refuses: broken
  images, strays, links, owners; `notes` what has to be said by a flag.
  """

  location: str
  classes: dict[str, dict[str, int]]
  owners: dict[str, tuple[int, int]]
  num_images: int
  sizes: tuple[str, ...]
  faults: tuple[str, ...]
  passed_over: tuple[str, ...]
  duplicates: tuple[str, ...]
  notes: tuple[str, ...]

  @property
  def text(self) -> str:
    """All of it, PRIVATE but for the names of the classes."""
    return "\n".join(self._lines())

  def _lines(self) -> Iterator[str]:
    yield f"{self.location}: PRIVATE but for the names of its classes"
    for split, counts in self.classes.items():
      yield f"split {split}: {sum(counts.values()):,} images in classes"
      wide = max(map(len, counts))
      yield from (f"  {name:{wide}}  {n:,}" for name, n in counts.items())
      if split in self.owners:
        yield "  owners: {:,}; one has {:,} images".format(*self.owners[split])
    yield f"all images: {self.num_images:,}"
    if self.sizes:
      yield "width x height: least {}, median {}, most {}".format(*self.sizes)
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

  In memory are the names of files, and 24 bytes for each image. `settings` has
  what else is said of it. InputError: nothing is there, or it is tfds:NAME.
  """
  settings = settings or SourceSettings(location=tuple(location))
  paths, files = listed_files.expanded(location), []
  if len(paths) == 1 and listed_files.is_folder(paths[0]):
    files = listed_files.files_in(paths[0])
  faults = [f"{f.path!r}: leads nowhere or back" for f in files if f.size < 0]
  files = [file for file in files if file.size >= 0]
  others = [file.path for file in files if not is_image(file.path)]
  parts, notes, splits, classes, owners = [], [], [], {}, {}
  if is_folder := len(others) < len(files):
    splits += filter(is_split, listed_files.folders_in(paths[0], files))
    images = [file for file in files if is_image(file.path)]
    strays = {f for f in images if f.path.count("/") < 1 + bool(splits)}
    faults += [f"{file.path!r}: in no class folder" for file in sorted(strays)]
    parts.append(images_of(images, paths[0]))
    files = [file for file in files if file not in strays]
  else:
    if tables := list(filter(has_rows, others)):
      others = [path for path in others if not has_rows(path)]
      paths = [os.path.join(paths[0], table) for table in tables]
    for path in paths:
      try:
        splits = list(filter(None, splits_of(paths)))
        arrays = array_splits(path) if path.lower().endswith(".npz") else []
        splits = arrays or splits
        for key in [f"{split}_image" for split in arrays] or [settings.image]:
          parts.append(unlabelled([path], key))
      except InputError as error:
        faults.append(str(error))
  for split in (splits or [None]) if parts else ():
    asked = dataclasses.replace(settings, split=split, location=tuple(paths))
    try:
      source = open_folder(asked, paths[0], files) if is_folder else None
      source = source or open_source(asked)
      names, labels = source.class_names, source.labels
      counts = np.bincount(labels, minlength=len(names)).tolist()
      classes[source.split] = dict(zip(names, counts, strict=True))
      if source.unit_ids is not None:
        _, each = np.unique(source.unit_ids, return_counts=True)
        owners[source.split] = len(each), int(each.max(initial=0))
    except NamelessClassesError as error:
      notes.append(str(error))
    except (InputError, RunError) as error:
      faults.append(str(error))
  everything = together(parts)
  sizes, broken, keys = _look_at(everything)
  return ImagesReport(
    location=_shown(" ".join(location)),
    classes=classes,
    owners=owners,
    num_images=len(everything),
    sizes=sizes,
    faults=tuple(map(_shown, (*faults, *broken))),
    passed_over=tuple(map(_shown, others)),
    duplicates=tuple(_duplicates(everything, keys)),
    notes=tuple(map(_shown, notes)),
  )


def _shown(text: str) -> str:
  return escaped(text, but="")


def _look_at(
  images: Source,
) -> tuple[tuple[str, ...], list[str], UInt64[np.ndarray, "n 2"]]:
  """Sizes, broken images, and the keys of the others (zeros of the broken)."""
  from tqdm import tqdm

  def look(index: int) -> tuple[np.ndarray, tuple[int, int]] | str:
    try:
      image = images.image(index)
      height, width, _ = decode_image(image).shape
    except (InputError, RunError, DecodeError) as error:
      return f"{images.name_of(index)}: {error}"
    return image_key(image), (width, height)

  n, broken = len(images), []
  keys, sizes = np.zeros((n, 2), np.uint64), np.zeros((n, 2), np.int32)
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
  if not len(known := sizes[sizes[:, 0] > 0]):
    return (), broken, keys
  some = np.percentile(known, [0, 50, 100], axis=0, method="nearest")
  return tuple(f"{w} x {h}" for w, h in some), broken, keys


def _duplicates(
  images: Source, keys: UInt64[np.ndarray, "n 2"]
) -> Iterator[str]:
  order = np.lexsort((keys[:, 1], keys[:, 0]))
  ends = np.flatnonzero((np.diff(keys[order], axis=0) != 0).any(axis=1)) + 1
  for group in np.split(order, ends):
    if len(group) > 1 and keys[group[0]].any():
      yield " = ".join(_shown(images.name_of(i)) for i in group.tolist())
