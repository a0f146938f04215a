"""What an extraction would meet at a location, for `inspect`."""

import bisect
import concurrent.futures
import dataclasses
import os
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.cache.keys import image_key
from oneshot_dp.extract.images import DecodeError, decode_image
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.folder import is_split, open_folder
from oneshot_dp.extract.sources.labels import MissingFlagError
from oneshot_dp.extract.sources.listed_files import file_at, has_rows, is_image
from oneshot_dp.extract.sources.npz import array_splits
from oneshot_dp.extract.sources.open_source import (
  images_of,
  open_source,
  splits_of,
)
from oneshot_dp.extract.sources.source import Source

_AT_ONCE = 1024
"""Images in flight: what is kept of each is small, its pixels are not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagesReport:
  """What is at a location, escaped for a terminal.

  Of each split that can be extracted: the images of each class. Of all images:
  how many, and smallest, median and largest sides; `faults` are what an
  extraction refuses.
  """

  location: str
  classes: dict[str, dict[str, int]]
  num_images: int
  sizes: tuple[str, ...]
  faults: tuple[str, ...]
  passed_over: tuple[str, ...]
  duplicates: tuple[str, ...]
  notes: tuple[str, ...]

  @property
  def text(self) -> str:
    """All of it, PRIVATE but for the names of the classes."""
    lines = [f"{self.location}: PRIVATE but for the names of its classes"]
    for split, counts in self.classes.items():
      lines.append(f"split {split}: {sum(counts.values()):,} images in classes")
      wide = max(map(len, counts))
      lines += [f"  {name:{wide}}  {n:,}" for name, n in counts.items()]
    lines.append(f"all images: {self.num_images:,}")
    if self.sizes:
      said = "width x height: least {}, median {}, most {}"
      lines.append(said.format(*self.sizes))
    for what, some in (
      ("an extraction refuses", self.faults),
      ("not images, passed over", self.passed_over),
      ("the same bytes", self.duplicates),
      ("to be said by flags", self.notes),
    ):
      lines += [f"{what}: {len(some):,}", *(f"  {each}" for each in some)]
    return "\n".join(lines)


def describe_images(location: Sequence[str]) -> ImagesReport:
  """Looks at every image of every split once, on all cores.

  In memory are the names of files, and 24 bytes for each image. InputError:
  nothing is there, or it is tfds:NAME.
  """
  paths, files = listed_files.expanded(location), []
  if len(paths) == 1 and listed_files.is_folder(root := paths[0]):
    files = listed_files.files_in(root)
  faults = [f"{f.path!r}: leads nowhere or back" for f in files if f.size < 0]
  files = [file for file in files if file.size >= 0]
  others = [file.path for file in files if not is_image(file.path)]
  parts, notes, splits, classes = [], [], [], {}
  if is_folder := len(others) < len(files):
    splits += filter(is_split, listed_files.folders_in(paths[0], files))
    images = [file for file in files if is_image(file.path)]
    strays = {f for f in images if f.path.count("/") < 1 + bool(splits)}
    faults += [f"{file.path!r}: in no class folder" for file in sorted(strays)]
    parts.append(images_of([listed_files.below(paths[0], f) for f in images]))
    files = [file for file in files if file not in strays]
  elif tables := list(filter(has_rows, others)):
    others = [path for path in others if not has_rows(path)]
    paths = [os.path.join(paths[0], table) for table in tables]
  for path in () if is_folder else paths:
    try:
      splits, file = list(filter(None, splits_of(paths))), file_at(path)
      arrays = array_splits(file) if path.lower().endswith(".npz") else []
      splits = arrays or splits
      for key in [f"{split}_image" for split in arrays] or [None]:
        parts.append(images_of([file], key))
    except InputError as error:
      faults.append(str(error))
  for split in (splits or [None]) if parts else ():
    settings = SourceSettings(location=tuple(paths), split=split)
    try:
      if is_folder:
        source = open_folder(settings, paths[0], files)
      else:
        source = open_source(settings)
      names, labels = source.class_names, source.labels
      counts = np.bincount(labels, minlength=len(names)).tolist()
      classes[source.split] = dict(zip(names, counts, strict=True))
    except MissingFlagError as error:
      notes.append(str(error))
    except (InputError, RunError) as error:
      faults.append(str(error))
  starts = np.cumsum([0, *map(len, parts)]).tolist()
  total, sizes = starts[-1], []

  def place(index: int) -> tuple[Source, int]:
    part = bisect.bisect(starts, index) - 1
    return parts[part], index - starts[part]

  def name_of(index: int) -> str:
    part, at = place(index)
    return _shown(part.name_of(at))

  keys = np.zeros((total, 2), np.uint64)  # of broken images they stay so
  sides = np.zeros((total, 2), np.int32)

  def look(index: int) -> None:
    part, at = place(index)
    try:
      image = part.image(at)
      sides[index] = decode_image(image).shape[1::-1]
      keys[index] = image_key(image)
    except (InputError, RunError, DecodeError) as error:
      broken[index] = f"{name_of(index)}: {error}"

  broken: dict[int, str] = {}
  with (
    concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    tqdm(total=total, desc="inspect", unit="image", disable=None) as bar,
  ):
    for start in range(0, total, _AT_ONCE):
      some = range(start, min(start + _AT_ONCE, total))
      bar.update(len([*pool.map(look, some)]))
  if len(known := sides[sides[:, 0] > 0]):
    sizes = np.percentile(known, [0, 50, 100], axis=0, method="nearest")
  order = np.lexsort((keys[:, 1], keys[:, 0]))
  ends = np.flatnonzero((np.diff(keys[order], axis=0) != 0).any(axis=1)) + 1
  alike = [
    " = ".join(map(name_of, group.tolist()))
    for group in np.split(order, ends)
    if len(group) > 1 and keys[group[0]].any()
  ]
  faults += [broken[index] for index in sorted(broken)]
  return ImagesReport(
    location=_shown(" ".join(location)),
    classes=classes,
    num_images=total,
    sizes=tuple(f"{width} x {height}" for width, height in sizes),
    faults=tuple(map(_shown, faults)),
    passed_over=tuple(map(_shown, others)),
    duplicates=tuple(alike),
    notes=tuple(map(_shown, notes)),
  )


def _shown(text: str) -> str:
  return escaped(text, but="")
