"""Images in the tar files of WebDataset: KEY.jpg beside KEY.cls or KEY.json.

A sample is the files of one name up to its first dot; what follows the dot is
the column, as it were: jpg, cls, json, seg.png.
"""

import bisect
import dataclasses
import json
import operator
import tarfile
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs.errors import InputError, one_line
from oneshot_dp.configs.extract_config import EXAMPLE, SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import class_names, label_numbers
from oneshot_dp.extract.sources.listed_files import IMAGES, File, shortened
from oneshot_dp.extract.sources.owners import units_of_column
from oneshot_dp.extract.sources.source import Listed

_MOST_LABEL_BYTES = 1 << 20


class _Member(NamedTuple):
  name: str
  start: int
  size: int


_Sample = dict[str, _Member]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tars(Listed):
  """Samples of tars, in the order of the files, found by an index of members.

  Attributes:
    files: path, bytes, version and first row of each.
    members: name of the image of each sample.
    offsets, sizes: where it is in its file, bytes.
  """

  files: tuple[Sequence[Any], ...]
  members: tuple[str, ...]
  offsets: Int64[np.ndarray, " n"]
  sizes: Int64[np.ndarray, " n"]

  def image(self, index: int) -> bytes:
    start, size = int(self.offsets[index]), int(self.sizes[index])
    return listed_files.read(File(*self._file(index)[:3]), start, size)

  def place(self, index: int) -> str:
    return f"{self._file(index)[0]}[{self.members[index]}]"

  def _file(self, index: int) -> Sequence[Any]:
    at = bisect.bisect_right(self.files, index, key=operator.itemgetter(3))
    return self.files[at - 1]


def open_tars(
  settings: SourceSettings,
  name: str,
  split: str,
  paths: Sequence[str],
  labelled: bool = True,
) -> Tars:
  """WebDataset tars as a source; without labels, all are of class 0.

  Raises:
    InputError: one is none, or has no such members.
  """
  files, members, labels, owners = [], [], [], []
  key, unit = settings.label, settings.units
  for path in paths:
    file = listed_files.file_at(path)
    files.append((*file, len(members)))
    with listed_files.seekable(file) as opened:
      try:
        samples = _samples(opened, file)
        members += _images(samples, path, settings.image)
        if labelled:
          has_cls = any("cls" in sample for sample in samples)
          key = key or ("cls" if has_cls else "label")
          labels += _values(opened, samples, key, path)
        if unit:
          owners += _values(opened, samples, unit, path)
      except InputError:
        raise
      except (OSError, tarfile.TarError, ValueError, OverflowError) as error:
        raise InputError(
          f"{path!r} is no tar file: {one_line(error)}."
        ) from error
  names, numbers = ("unlabelled",), [0] * len(members)

  def where(row: int) -> str:
    return members[row].name

  if labelled:
    names = class_names((), settings, paths[0])
    numbers = label_numbers(labels, names, str(key), where)
  ids = units_of_column(owners, unit, where) if unit else []
  return Tars(
    name=name,
    split=split,
    class_names=names,
    unit=unit or EXAMPLE,
    labels=np.array(numbers, np.int32),
    unit_ids=np.array(ids, np.int64) if unit else None,
    files=tuple(files),
    members=tuple(member.name for member in members),
    offsets=np.array([member.start for member in members], np.int64),
    sizes=np.array([member.size for member in members], np.int64),
  )


def _samples(opened: BinaryIO, file: File) -> list[_Sample]:
  """The members of each sample, by extension, in the order of the file."""
  samples: dict[str, _Sample] = {}
  with tarfile.open(fileobj=opened, mode="r:") as tar:
    for info in tar:
      folder, _, name = info.name.removeprefix("./").rpartition("/")
      stem, dot, extension = name.partition(".")
      if info.isdir() or not (stem and dot) or listed_files.is_litter(folder):
        continue
      member = _Member(info.name, info.offset_data, info.size)
      if (
        not info.isreg()
        or info.issparse()
        or member.start + member.size > file.size
      ):
        raise InputError(
          f"{file.path!r}: {info.name!r} is cut short, a link or a sparse file:"
          " pack plain files, all of them."
        )
      sample = samples.setdefault(f"{folder}/{stem}", {})
      if extension.lower() in sample:
        raise InputError(f"{file.path!r} has {info.name!r} more than once.")
      sample[extension.lower()] = member
  return list(samples.values())


def _images(
  samples: Sequence[_Sample], path: str, key: str | None
) -> list[_Member]:
  """The image of each sample."""
  keys = [key] if key else [each.removeprefix(".") for each in IMAGES]
  found = [[s[k] for k in keys if k in s] for s in samples]
  if wrong := [
    next(iter(sample.values())).name
    for sample, images in zip(samples, found, strict=True)
    if len(images) != 1
  ]:
    raise InputError(
      f"{path!r}: samples without an image, or with several"
      f" ({', '.join(keys)}): {shortened(wrong)}; say which with --image, and"
      " pack each sample whole."
    )
  return [image for (image,) in found]


def _values(
  opened: BinaryIO, samples: Sequence[_Sample], key: str, path: str
) -> list[Any]:
  """What files of an extension say, or fields of the samples' json."""
  is_file = any(key in sample for sample in samples)
  found: list[Any] = []
  for sample in samples:
    member = sample.get(key if is_file else "json")
    if member is None:
      found.append(None)
      continue
    opened.seek(member.start)
    data = opened.read(min(member.size, _MOST_LABEL_BYTES))
    try:
      text = data.decode()
      fields = {key: text.strip()} if is_file else json.loads(text)
      if not isinstance(fields, dict):
        raise ValueError("it is no object of fields")
    except (ValueError, RecursionError) as error:
      raise InputError(
        f"{path!r}: {member.name!r} cannot be read: {one_line(error)}."
      ) from error
    found.append(fields.get(key))
  return found
