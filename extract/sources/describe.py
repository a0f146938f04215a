"""What an extraction would meet at a location, for `inspect`."""

import bisect
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.cache.format import image_key
from oneshot_dp.extract.images import DecodeError, decode_image
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.archives import array_splits
from oneshot_dp.extract.sources.folder import is_split, open_folder
from oneshot_dp.extract.sources.labels import MissingFlagError
from oneshot_dp.extract.sources.listed_files import File, is_image, is_table
from oneshot_dp.extract.sources.open_source import (
  images_of,
  open_source,
  splits_of,
)
from oneshot_dp.extract.sources.source import Source
from oneshot_dp.extract.threads import prefetch_map


@dataclasses.dataclass(kw_only=True)
class ImagesReport:
  """What is at a location, escaped for a terminal.

  Of each split that can be extracted: the images of each class, and, by the
  name of the unit, how many images its owners have. Of all images: how many,
  and smallest, median and largest sides; `faults` are what an extraction
  refuses.
  """

  location: str
  classes: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
  owners: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
  num_images: int = 0
  sizes: list[str] = dataclasses.field(default_factory=list)
  faults: list[str] = dataclasses.field(default_factory=list)
  passed_over: list[str] = dataclasses.field(default_factory=list)
  duplicates: list[str] = dataclasses.field(default_factory=list)
  notes: list[str] = dataclasses.field(default_factory=list)

  @property
  def text(self) -> str:
    """All of it, PRIVATE but for the names of the classes."""
    lines = [f"{self.location}: PRIVATE but for the names of its classes"]
    for split, counts in self.classes.items():
      lines.append(f"split {split}: {sum(counts.values()):,} images in classes")
      wide = max(map(len, counts))
      lines += [f"  {name:{wide}}  {n:,}" for name, n in counts.items()]
      if of := self.owners.get(split):
        said = "  owners ({unit}): {number:,}, of {most:,} images at most"
        lines.append(said.format(**of))
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


def describe_images(location: Sequence[str], **flags: Any) -> ImagesReport:
  """Looks at every image of every split once, on all cores.

  `flags` are those of `SourceConfig` that an extraction would be given. In
  memory are the names of files, and 24 bytes for each image. InputError:
  nothing is there, or it is tfds:NAME.
  """
  root, *more = paths = listed_files.expanded(location)
  files = [] if more else listed_files.files_in(root)
  report = ImagesReport(
    location=escaped(" ".join(location), but=""),
    faults=[f"{f.path!r}: leads nowhere or back" for f in files if f.size < 0],
  )
  files = [file for file in files if file.size >= 0]
  images = [file for file in files if is_image(file.path)]
  others = [file.path for file in files if not is_image(file.path)]
  kept: list[File] = []
  if images:
    splits = list(filter(is_split, listed_files.folders_in(root, files)))
    strays = {f for f in images if f.path.count("/") < 1 + bool(splits)}
    report.faults += [f"{f.path!r}: in no class folder" for f in sorted(strays)]
    parts = [images_of([listed_files.below(root, f) for f in images])]
    kept = [file for file in files if file not in strays]
  else:
    if tables := list(filter(is_table, others)):
      others = [path for path in others if not is_table(path)]
      paths = [os.path.join(root, table) for table in tables]
    parts, splits = _tables(paths, report)
  for split in (splits or [None]) if parts else ():
    try:
      asked = SourceConfig(location=tuple(paths), split=split, **flags)
      found = open_folder(asked, root, kept) if images else open_source(asked)
      _count(found, report)
    except MissingFlagError as error:
      report.notes.append(str(error))
    except (InputError, RunError) as error:
      report.faults.append(str(error))
  _look(parts, report)
  report.passed_over += others
  for some in vars(report).values():
    if isinstance(some, list):
      some[:] = [escaped(each, but="") for each in some]
  return report


def _tables(
  paths: Sequence[str], report: ImagesReport
) -> tuple[list[Source], list[str]]:
  """The images of files of rows, of one after another, and their splits."""
  parts, splits = [], []
  for path in paths:
    try:
      splits = list(filter(None, splits_of(paths)))
      file, is_npz = listed_files.file_at(path), path.lower().endswith(".npz")
      arrays = array_splits(file) if is_npz else []
      splits = arrays or splits
      keys = [f"{split}_image" for split in arrays] or [None]
      parts += [images_of([file], key) for key in keys]
    except InputError as error:
      report.faults.append(str(error))
  return parts, splits


def _count(source: Source, report: ImagesReport) -> None:
  """Adds the images of each class of a split, and of its owners."""
  names, labels = source.class_names, source.labels
  counts = np.bincount(labels, minlength=len(names)).tolist()
  report.classes[source.split] = dict(zip(names, counts, strict=True))
  if source.unit_ids is not None:
    _, each = np.unique(source.unit_ids, return_counts=True)
    of = {"unit": source.unit, "number": len(each), "most": int(max(each))}
    report.owners[source.split] = of


def _look(parts: Sequence[Source], report: ImagesReport) -> None:
  """Adds what all images are like: broken, of which size, which are equal."""
  starts = np.cumsum([0, *map(len, parts)]).tolist()
  report.num_images = total = starts[-1]
  keys = np.zeros((total, 2), np.uint64)  # of broken images they stay so
  sides = np.zeros((total, 2), np.int32)
  broken: dict[int, str] = {}

  def place(index: int) -> tuple[Source, int]:
    part = bisect.bisect(starts, index) - 1
    return parts[part], index - starts[part]

  def name_of(index: int) -> str:
    part, at = place(index)
    return part.name_of(at)

  def look(index: int) -> None:
    part, at = place(index)
    try:
      image = part.image(at)
      sides[index] = decode_image(image).shape[1::-1]
      keys[index] = image_key(image)
    except (InputError, RunError, DecodeError) as error:
      broken[index] = f"{name_of(index)}: {error}"

  with tqdm(total=total, desc="inspect", unit="image", disable=None) as bar:
    for _ in prefetch_map(look, range(total), 1024, os.cpu_count() or 1, 8):
      bar.update()
  report.faults += [broken[index] for index in sorted(broken)]
  if len(known := sides[sides[:, 0] > 0]):
    sizes = np.percentile(known, [0, 50, 100], axis=0, method="nearest")
    report.sizes += [f"{width} x {height}" for width, height in sizes]
  order = np.lexsort((keys[:, 1], keys[:, 0]))
  ends = np.flatnonzero((np.diff(keys[order], axis=0) != 0).any(axis=1)) + 1
  report.duplicates += [
    " = ".join(map(name_of, group.tolist()))
    for group in np.split(order, ends)
    if len(group) > 1 and keys[group[0]].any()
  ]
