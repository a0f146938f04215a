"""Images in archives: arrays of an npz, and members of WebDataset's tars.

In an npz `image` is uint8 [n, h, w, 3 or 1], `label` integers [n],
`class_names` texts [K], and there may be whose each is. With several splits in
one file the arrays are `train_image`, `train_label` and so on.

In a tar are KEY.jpg beside KEY.cls or KEY.json. A sample is the files of one
name up to its first dot; what follows the dot is the column, as it were: jpg,
cls, json, seg.png. Members are found once, and then read as ranges of the file.
"""

import functools
import json
import tarfile
import threading
import zipfile
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from oneshot_dp.configs.errors import InputError, one_line
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.labels import FileRows, MissingFlagError
from oneshot_dp.extract.sources.listed_files import IMAGES, File, format_names

_MOST_LABEL_BYTES = 1 << 20
_NPZ = "npz of plain arrays"
_Sample = dict[str, tarfile.TarInfo]
_loading = threading.Lock()


def read_array(file: File, name: str) -> np.ndarray:
  """An array of the file that was listed, which stays in memory."""
  with _loading:
    return _kept(file, name)


@functools.lru_cache(maxsize=4)
def _kept(file: File, name: str) -> np.ndarray:
  with listed_files.opened(file, _NPZ) as opened:
    return _array(_npz(opened), file.path, name)


def npz_rows(settings: SourceConfig, file: File, labelled: bool) -> FileRows:
  """An npz of images; InputError: an array is not as it should be."""
  path, unit = file.path, settings.units
  label, labels, named, units = settings.label or "label", [], [], []
  with listed_files.opened(file, _NPZ) as opened:
    npz = _npz(opened)
    is_split = labelled and settings.split in _splits(npz)
    prefix = f"{settings.split}_" * is_split

    def column(name: str, kinds: str) -> list[Any]:
      values = _array(npz, path, name)
      if values.dtype.kind not in kinds or values.ndim != 1:
        raise InputError(
          f"{path!r}: {name!r} is {values.dtype} {list(values.shape)}: it must"
          " be a list of integers, of owners or names texts."
        )
      return values.tolist()

    if labelled:
      labels = column(prefix + label, "iuU")
      if "class_names" in npz.files:
        named = column("class_names", "U")
      if unit is None and f"{prefix}unit_id" in npz.files:
        raise MissingFlagError(f"{path!r} has a unit_id: name it with --units.")
    if unit is not None:
      is_named = prefix + unit in npz.files
      units = column(prefix + (unit if is_named else "unit_id"), "iuU")
  key = prefix + (settings.image or "image")
  images = read_array(file, key)
  kind, shape = images.dtype, images.shape
  if (
    kind != np.uint8 or len(shape) != 4 or shape[3] not in (1, 3) or 0 in shape
  ):
    raise InputError(
      f"{path!r}: {key!r} is {kind} {list(shape)}: images must be uint8"
      " [n, h, w, 3] or [n, h, w, 1], and not empty."
    )
  at = np.stack([np.arange(len(images)), np.zeros(len(images), int)], axis=1)
  return FileRows(key, at, label, named, labels, units)


def array_splits(file: File) -> list[str]:
  """The splits in an npz; none where its arrays are not named so."""
  with listed_files.opened(file, _NPZ) as opened:
    return _splits(_npz(opened))


def _npz(opened: BinaryIO) -> Any:
  """Its arrays, without pickles."""
  if not zipfile.is_zipfile(opened):
    raise ValueError("use numpy.savez")
  opened.seek(0)
  return np.load(opened, allow_pickle=False)


def _splits(npz: Any) -> list[str]:
  found = [n.removesuffix("_image") for n in npz.files if n.endswith("_image")]
  return [name for name in found if f"{name}_label" in npz.files]


def _array(npz: Any, path: str, name: str) -> np.ndarray:
  if name not in npz.files:
    has = format_names(npz.files) or "none at all"
    raise InputError(f"{path!r} has no array {name!r}: it has {has}.")
  return npz[name]


def tar_rows(settings: SourceConfig, file: File, labelled: bool) -> FileRows:
  """The samples of a tar; InputError: it is none, or one is not whole."""
  labels, units = [], []
  with listed_files.opened(file, "tar") as opened:
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
      f" ({', '.join(keys)}): {format_names(wrong)}; say which with"
      " --image, and"
      " pack each sample whole."
    )
  places = [(some[0].offset_data, some[0].size) for some, _ in found]
  at = np.array(places, np.int64).reshape(-1, 2)
  return FileRows("", at, key, (), labels, units)


def _samples(opened: BinaryIO, file: File) -> list[_Sample]:
  """The members of each sample, by extension, in the order of the file."""
  samples: dict[str, _Sample] = {}
  with tarfile.open(fileobj=opened, mode="r:") as tar:
    found = [info for info in tar if not info.isdir()]
  opened.seek(tar.offset)  # it stops at a damaged header without a word
  if opened.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
    raise ValueError("it is damaged, or cut short")
  for info in found:
    folder, _, name = info.name.removeprefix("./").rpartition("/")
    stem, dot, extension = name.partition(".")
    if not (stem and dot) or listed_files.is_ignored(folder):
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
