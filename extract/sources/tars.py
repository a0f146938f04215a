"""Images in the tar files of WebDataset: KEY.jpg beside KEY.cls or KEY.json.

A sample is the files of one name up to its first dot; what follows the dot is
the column, as it were: jpg, cls, json, seg.png.
"""

import bisect
import dataclasses
import json
import operator
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs.errors import InputError, one_line
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import FileRows, listed_fields
from oneshot_dp.extract.sources.listed_files import IMAGES, File, shortened
from oneshot_dp.extract.sources.source import Source

_MOST_LABEL_BYTES = 1 << 20


class _Member(NamedTuple):
  name: str
  start: int
  size: int


_Sample = dict[str, _Member]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tars(Source):
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
  settings: SourceSettings, paths: Sequence[str], labelled: bool, **names: str
) -> Tars:
  """WebDataset tars as a source; without labels, all are of class 0.

  InputError: one is none, or has no such members.
  """
  files, members = [], []

  def rows() -> Iterator[FileRows]:
    for path in paths:
      file = listed_files.file_at(path)
      with listed_files.seekable(file) as opened:
        samples = _samples(opened, file)
        images = _images(samples, path, settings.image)
        files.append((*file, len(members)))
        members.extend(images)
        has_cls = any("cls" in sample for sample in samples)
        key = settings.label or ("cls" if has_cls else "label")
        yield FileRows(
          path=path,
          rows=len(images),
          where=lambda row: images[row].name,  # noqa: B023
          key=key,
          named=(),
          labels=_values(opened, samples, key, path),
          units=_values(opened, samples, settings.units or "", path),
        )

  return Tars(
    **listed_fields(settings, rows(), labelled),
    **names,
    files=tuple(files),
    members=tuple(member.name for member in members),
    offsets=np.array([member.start for member in members], np.int64),
    sizes=np.array([member.size for member in members], np.int64),
  )


def _samples(opened: BinaryIO, file: File) -> list[_Sample]:
  """The members of each sample, by extension, in the order of the file."""
  samples: dict[str, _Sample] = {}
  try:
    with tarfile.open(fileobj=opened, mode="r:") as tar:
      found = [info for info in tar if not info.isdir()]
  except (OSError, tarfile.TarError, ValueError, OverflowError) as error:
    reason = one_line(error)
    raise InputError(f"{file.path!r} is no tar file: {reason}.") from error
  for info in found:
    folder, _, name = info.name.removeprefix("./").rpartition("/")
    stem, dot, extension = name.partition(".")
    if not (stem and dot) or listed_files.is_litter(folder):
      continue
    end = info.offset_data + info.size
    if not info.isreg() or info.issparse() or end > file.size:
      raise InputError(
        f"{file.path!r}: {info.name!r} is cut short, a link or a sparse file:"
        " pack plain files, all of them."
      )
    sample = samples.setdefault(f"{folder}/{stem}", {})
    if extension.lower() in sample:
      raise InputError(f"{file.path!r} has {info.name!r} more than once.")
    member = _Member(info.name, info.offset_data, info.size)
    sample[extension.lower()] = member
  return list(samples.values())


def _images(
  samples: Sequence[_Sample], path: str, key: str | None
) -> list[_Member]:
  """The image of each sample."""
  keys = [key] if key else [each.removeprefix(".") for each in IMAGES]
  found = [([s[k] for k in keys if k in s], s) for s in samples]
  wrong = [next(iter(s.values())).name for some, s in found if len(some) != 1]
  if wrong:
    raise InputError(
      f"{path!r}: samples without an image, or with several"
      f" ({', '.join(keys)}): {shortened(wrong)}; say which with --image, and"
      " pack each sample whole."
    )
  return [some[0] for some, _ in found]


def _values(
  opened: BinaryIO, samples: Sequence[_Sample], key: str, path: str
) -> Iterator[list[Any]]:
  """What files of an extension say, or fields of the samples' json."""
  is_file = any(key in sample for sample in samples)
  found: list[Any] = []
  for sample in samples:
    if (member := sample.get(key if is_file else "json")) is None:
      found.append(None)
      continue
    opened.seek(member.start)
    data = opened.read(min(member.size, _MOST_LABEL_BYTES))
    try:
      text = data.decode()
      fields = {key: text.strip()} if is_file else json.loads(text)
      found.append(fields.get(key))
    except (ValueError, AttributeError, RecursionError) as error:
      raise InputError(
        f"{path!r}: {member.name!r} cannot be read: {one_line(error)}."
      ) from error
  yield found
