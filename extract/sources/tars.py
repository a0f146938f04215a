"""Images in the tar files of WebDataset: KEY.jpg beside KEY.cls or KEY.json.

A sample is the files of one name up to its first dot; what follows the dot is
the column, as it were: jpg, cls, json, seg.png. Members are found once, and
then read as ranges of the file.
"""

import json
import tarfile
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from oneshot_dp.configs.errors import InputError, one_line
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.labels import FileRows
from oneshot_dp.extract.sources.listed_files import IMAGES, File, shortened

_MOST_LABEL_BYTES = 1 << 20


_Sample = dict[str, tarfile.TarInfo]


def tar_rows(settings: SourceSettings, file: File, labelled: bool) -> FileRows:
  """The samples of a tar; InputError: it is none, or one is not whole."""
  labels, units = [], []
  with listed_files.seekable(file) as opened:
    samples = _samples(opened, file)
    has_cls = any("cls" in sample for sample in samples)
    key = settings.label or ("cls" if has_cls else "label")
    if labelled:
      labels = _values(opened, samples, key, file.path)
    if settings.units is not None:
      units = _values(opened, samples, settings.units, file.path)
  asked = settings.image
  keys = [asked] if asked else [each.removeprefix(".") for each in IMAGES]
  found = [([s[k] for k in keys if k in s], s) for s in samples]
  wrong = [next(iter(s.values())).name for some, s in found if len(some) != 1]
  if wrong:
    raise InputError(
      f"{file.path!r}: samples without an image, or with several"
      f" ({', '.join(keys)}): {shortened(wrong)}; say which with --image, and"
      " pack each sample whole."
    )
  places = [(some[0].offset_data, some[0].size) for some, _ in found]
  at = np.array(places, np.int64).reshape(-1, 2)
  return FileRows(file, "", at, key, (), [labels], [units])


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
    sample[extension.lower()] = info
  return list(samples.values())


def _values(
  opened: BinaryIO, samples: Sequence[_Sample], key: str, path: str
) -> list[Any]:
  """What files of an extension say, or fields of the samples' json."""
  is_file = any(key in sample for sample in samples)
  found: list[Any] = []
  for sample in samples:
    if (member := sample.get(key if is_file else "json")) is None:
      found.append(None)
      continue
    opened.seek(member.offset_data)
    data = opened.read(min(member.size, _MOST_LABEL_BYTES))
    try:
      text = data.decode()
      fields = {key: text.strip()} if is_file else json.loads(text)
      found.append(fields.get(key))
    except (ValueError, AttributeError, RecursionError) as error:
      raise InputError(
        f"{path!r}: {member.name!r} cannot be read: {one_line(error)}."
      ) from error
  return found
