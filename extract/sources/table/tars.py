"""Images in the tar files of WebDataset: KEY.jpg beside KEY.cls or KEY.json.

A sample is the files of one name up to its first dot; what follows the dot is
the column, as it were: jpg, cls, json, seg.png.
"""

import os
import tarfile
import zlib
from collections.abc import Sequence
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.example import shortened
from oneshot_dp.extract.sources.image_folder import EXTENSIONS
from oneshot_dp.extract.storage.anywhere import opened, read_range
from oneshot_dp.extract.storage.typed_json import parse_json

_HEADER = 512
_Member = Sequence[Any]
"""Name, place of the data, its size, and the CRC-32 of the header before it."""


class TarImages:
  """The images of one tar, by sample, any number of threads at once.

  An index of the file's members is made once, by who launches a job; a worker
  that is given it reads no more than the ranges of its images, each with the
  header before it, which must be that of the index.
  """

  stamp = ""
  """Every image has its header to be compared, and the file needs nothing."""

  def __init__(
    self,
    path: str,
    key: str | None = None,
    members: Sequence[_Member] | None = None,
  ) -> None:
    """Makes the index of members unless it is given.

    `key` is the extension of the images, where a sample has several.
    """
    self._path = path
    self._samples: list[dict[str, _Member]] = []
    if members is None:
      self._samples = _samples(path)
      members = _images(path, self._samples, key)
    self.members = members

  def __len__(self) -> int:
    return len(self.members)

  def __getitem__(self, row: int) -> bytes:
    """The bytes of an image file; OSError if it was changed."""
    _, start, size, crc = self.members[row]
    both = read_range(self._path, start - _HEADER, _HEADER + size)
    header, image = both[:_HEADER], both[_HEADER:]
    if len(image) < size or zlib.crc32(header) != crc:
      raise OSError(0, "the file was changed")
    return image

  def label_key(self, key: str | None) -> str:
    """What is asked for; else files named cls, else a field of json."""
    has_cls = any("cls" in sample for sample in self._samples)
    return key or ("cls" if has_cls else "label")

  def class_names(self, key: str) -> None:
    """A tar names no classes."""
    del key

  def values(self, key: str) -> list[Any]:
    """What files of this extension say, or fields of the samples' json."""
    is_file = any(key in sample for sample in self._samples)
    found = []
    with opened(self._path) as file:
      for sample in self._samples:
        member = sample.get(key if is_file else "json")
        value = None
        if member is not None:
          data = _read(file.fileno(), *member[1:3])[1]
          place = f"{self._path}[{member[0]}]"
          if is_file:
            try:
              value = data.decode().strip()
            except UnicodeDecodeError as error:
              raise InputError(f"{place} is no text: {error}.") from error
          else:
            value = parse_json(place, data, mend="pack it again").get(key)
        found.append(value)
    return found


def _read(file: int, start: int, size: int) -> tuple[bytes, bytes]:
  """The header before a file's data, and the data."""
  both = os.pread(file, _HEADER + size, start - _HEADER)
  return both[:_HEADER], both[_HEADER:]


def _samples(path: str) -> list[dict[str, _Member]]:
  """The members of each sample, by extension, in the order of the file."""
  samples: dict[str, dict[str, _Member]] = {}
  try:
    with opened(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
      length = os.fstat(file.fileno()).st_size
      for info in tar:
        folder, _, name = info.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if info.isdir() or not (stem and dot):
          continue
        start, size = info.offset_data, info.size
        if not info.isreg() or info.issparse() or start + size > length:
          raise InputError(
            f"{path!r}: {info.name!r} is cut short, a link or a sparse file:"
            " pack plain files, all of them."
          )
        sample = samples.setdefault(f"{folder}/{stem}", {})
        if extension.lower() in sample:
          raise InputError(f"{path!r} has {info.name!r} more than once.")
        header, _ = _read(file.fileno(), start, 0)
        sample[extension.lower()] = info.name, start, size, zlib.crc32(header)
  except (OSError, tarfile.TarError) as error:
    raise InputError(f"{path!r} is no tar file: {error}.") from error
  return list(samples.values())


def _images(
  path: str, samples: Sequence[dict[str, _Member]], key: str | None
) -> list[_Member]:
  """The image of each sample."""
  keys = [key] if key else [each.removeprefix(".") for each in EXTENSIONS]
  found = [[s[k] for k in keys if k in s] for s in samples]
  if wrong := [
    next(iter(sample.values()))[0]
    for sample, images in zip(samples, found, strict=True)
    if len(images) != 1
  ]:
    raise InputError(
      f"{path!r}: {len(wrong):,} samples have no image, or several"
      f" ({', '.join(keys)}): {shortened(wrong)}; say which with"
      " source.image_key, and pack each sample whole."
    )
  return [image for (image,) in found]
