"""Images in a tar, as WebDataset packs them: KEY.jpg beside KEY.cls, KEY.json.

A sample is the files of one name up to its first dot. What follows the dot is
its column, as it were: jpg, cls, json, seg.png. Members are found once, by
their headers, and then read as ranges of the file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from oneshot_dp.configs.errors import InputError, one_line
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.image_files import IMAGE_SUFFIXES
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.annotations.owner_names import (
  is_owner_column,
)
from oneshot_dp.extract.sources.annotations.split_columns import (
  look_like_splits,
  may_say_split,
  split_at_start,
)
from oneshot_dp.extract.sources.annotations.splits import is_split_word
from oneshot_dp.extract.sources.file_format import FileRows
from oneshot_dp.extract.sources.limits import (
  MAX_COLUMN_BYTES,
  MAX_WORD_BYTES,
  check_bytes,
  check_rows,
)
from oneshot_dp.extract.sources.listed_files import File, format_names
from oneshot_dp.extract.sources.tar_members import Member, read_members

_MAX_LABEL_BYTES = 1 << 20
_MOST_LABEL_DIGITS = 20  # of a class index, which is far shorter
_MOST_READ_JSON = 256
_MOST_INNER_NAME_CHARACTERS = 100


_Sample = dict[str, Member]


def tar_rows(config: SourceConfig, file: File, *, labeled: bool) -> FileRows:
  """The samples of a tar, with their labels and owners.

  Args:
    config: names the members of a sample that have the image, the label (or a
      field of its json) and the owner, where that is not clear.
    file: as it was listed.
    labeled: whether labels are wanted.

  Returns:
    The rows. The location of an image is its first byte in the tar and its
    size in bytes, so that a worker reads it without a look at the headers.

  Raises:
    InputError: the tar is damaged, or a sample is, or has not one image.
  """
  labels: list[Any] = []
  units: list[Any] = []
  splits: dict[str, list[Any]] = {}
  other_columns: list[str] = []
  with listed_files.opened(file, "tar") as content:
    samples = _samples(content, file)
    check_rows(file.path, len(samples))
    # WebDataset's name for the class is cls; json has fields of any name.
    label_key = config.label
    second_label = ""
    if label_key is None:
      has_cls = any("cls" in sample for sample in samples)
      label_key = "cls" if has_cls else "label"
      if has_cls and labeled:
        second_label = _second_label(config, content, samples, file.path)
    if labeled:
      labels = _values(content, samples, label_key, file.path)
      used = (label_key, config.units)
      other_columns = _some_columns(content, samples, file.path)
      by_value = _fields_of_splits(content, samples, file.path)
      for name in other_columns:
        is_candidate = may_say_split(name) or name in by_value
        if is_candidate and name not in used:
          splits[name] = _values(content, samples, name, file.path)
      splits["names of folders"] = _folder_splits(samples)
      splits["names of samples"] = _sample_splits(samples)
    if config.units is not None:
      units = _values(content, samples, config.units, file.path)
  # An image is a range of the tar: workers read it without a look at the
  # headers.
  locations = np.zeros((len(samples), 2), np.int64)
  for row, image in enumerate(_images(samples, config.image, file.path)):
    locations[row] = image.start, image.size
  return FileRows(
    column="",
    locations=locations,
    label_column=label_key,
    labels=labels,
    second_label=second_label,
    units=units,
    splits=splits,
    other_columns=[name for name in other_columns if name != label_key],
  )


def _some_columns(
  content: BinaryIO, samples: Sequence[_Sample], path: str
) -> list[str]:
  """The extensions of samples, and the fields of their json, each once.

  Of millions, json is not read for nothing: samples far apart tell which fields
  there are, as the first alone may lack one. A field within another is called
  as in meta.split.
  """
  names: dict[str, None] = {}  # each once, in order
  step = _step(samples)
  for number, sample in enumerate(samples):
    names.update(dict.fromkeys(sample))
    if "json" in sample and number % step == 0:
      fields = _fields(content, sample["json"], path)
      names.update(dict.fromkeys(fields))
      names.update(dict.fromkeys(_inner_names(fields)))
  return list(names)


def _step(samples: Sequence[_Sample]) -> int:
  """The distance between samples whose json is looked at."""
  return max(1, len(samples) // _MOST_READ_JSON)


def _second_label(
  config: SourceConfig,
  content: BinaryIO,
  samples: Sequence[_Sample],
  path: str,
) -> str:
  """The field of json that states other labels than KEY.cls; "" if none does.

  It is looked for in the samples of `_some_columns`.
  """
  for sample in samples[:: _step(samples)]:
    if "cls" not in sample or "json" not in sample:
      continue
    label = _read_text(content, sample["cls"], path)
    fields = _fields(content, sample["json"], path)
    for name in ("label", "cls"):
      if name in fields and _are_different(config, label, fields[name]):
        return name
  return ""


def _are_different(config: SourceConfig, label: str, second: Any) -> bool:
  """Whether two labels of a sample are two classes, for all that is known.

  A class may be stated by its name and by its index, which says nothing where
  no flag names the classes.
  """
  if type(second) not in (int, str):
    return False
  values: list[int | str] = []
  for text in (label.strip(), str(second).strip()):
    if text.isdecimal():
      values.append(int(text[:_MOST_LABEL_DIGITS]))
    elif text in config.class_names:
      values.append(config.class_names.index(text))
    else:
      values.append(text.casefold())
  return type(values[0]) is type(values[1]) and values[0] != values[1]


def _inner_names(fields: Mapping[str, Any], outer: str = "") -> Iterator[str]:
  """Names of fields within fields that may say a split or an owner.

  All others are left out: an object may have an entry for each box or word.
  """
  for name, value in fields.items():
    if outer and (may_say_split(name) or is_owner_column(name)):
      yield f"{outer}{name}"
    is_short = len(outer) + len(name) <= _MOST_INNER_NAME_CHARACTERS
    if isinstance(value, dict) and "." not in name and is_short:
      yield from _inner_names(value, f"{outer}{name}.")


def _fields_of_splits(
  content: BinaryIO, samples: Sequence[_Sample], path: str
) -> set[str]:
  """The fields of json that have splits as their values, whatever their names.

  They are looked for in the samples of `_some_columns`.
  """
  words_of_field: dict[str, set[str]] = {}
  for sample in samples[:: _step(samples)]:
    if "json" in sample:
      for name, value in _fields(content, sample["json"], path).items():
        if isinstance(value, str):
          words_of_field.setdefault(name, set()).add(value)
  return {
    name for name, words in words_of_field.items() if look_like_splits(words)
  }


def _sample_splits(samples: Sequence[_Sample]) -> list[str]:
  """The splits that keys begin with, as train_0001 does, if all begin so."""
  splits: set[str] = set()
  for sample in samples:
    member = next(iter(sample.values()))
    split = split_at_start(member.name.rpartition("/")[2])
    if not split:
      return []
    splits.add(f"{split}_0")
  return sorted(splits)


def _folder_splits(samples: Sequence[_Sample]) -> list[str]:
  """What the folders of samples, such as train/cat, say of their splits."""
  splits: set[str] = set()
  for sample in samples:
    member = next(iter(sample.values()))
    for folder in member.name.split("/")[:-1]:
      if is_split_word(folder):
        splits.add(folder)
  return sorted(splits)


def _images(
  samples: Sequence[_Sample], extension: str | None, path: str
) -> list[Member]:
  """The image of each sample; InputError: one has none, or several."""
  # A sample with two images, a photograph and its mask, say, is not decided by
  # which comes first: a flag has to say it.
  extensions = [suffix.removeprefix(".") for suffix in IMAGE_SUFFIXES]
  if extension is not None:
    extensions = [extension]
  images: list[Member] = []
  wrong: list[str] = []
  for sample in samples:
    present = [sample[key] for key in extensions if key in sample]
    images += present[:1]
    if len(present) != 1:
      wrong.append(next(iter(sample.values())).name)
  if wrong:
    raise InputError(
      f"{path!r}: samples without an image, or with several"
      f" ({', '.join(extensions)}): {format_names(wrong)}; choose one with"
      " --image, and pack each sample whole."
    )
  return images


def _samples(content: BinaryIO, file: File) -> list[_Sample]:
  """The members of each sample, by extension, in the order of the file."""
  samples: dict[str, _Sample] = {}
  for member in read_members(content, file.size):
    # As WebDataset does: the name ends at the first dot, so that a.seg.png
    # belongs to a.jpg. Folders count: a/1.jpg and b/1.jpg are two samples.
    folder, _, name = member.name.removeprefix("./").rpartition("/")
    stem, dot, extension = name.partition(".")
    if not (stem and dot) or listed_files.is_ignored(folder):
      continue
    if not member.is_file or member.start + member.size > file.size:
      raise InputError(
        f"{file.path!r}: {member.name!r} is cut short, a link or a sparse file:"
        " pack plain files, all of them."
      )
    sample = samples.setdefault(f"{folder}/{stem}", {})
    if extension.lower() in sample:
      raise InputError(f"{file.path!r} has {member.name!r} more than once.")
    sample[extension.lower()] = member
  return list(samples.values())


def _values(
  content: BinaryIO, samples: Sequence[_Sample], key: str, path: str
) -> list[Any]:
  """The text of the file `key` of each sample, or that field of its json.

  None where the sample has no such file or field.
  """
  # One rule for the whole tar: either the samples have a file of this name, or
  # their json has a field of it.
  is_file = any(key in sample for sample in samples)
  values: list[Any] = []
  num_bytes = 0
  for sample in samples:
    member = sample.get(key if is_file else "json")
    if member is None:
      values.append(None)
      continue
    if is_file:
      value: Any = _read_text(content, member, path).strip()
    else:
      value = _field(_fields(content, member, path), key)
    # In a file that is mostly holes, members of 1 MiB take no room on the disk,
    # and all values are in memory together.
    if isinstance(value, str):
      what = f"the {key!r} of {member.name!r}"
      check_bytes(path, what, len(value), MAX_WORD_BYTES)
      num_bytes += len(value)
      check_bytes(path, f"{key!r}", num_bytes, MAX_COLUMN_BYTES)
    elif not isinstance(value, int | float | None):
      value = ()  # a list or an object is refused, whatever is in it
    values.append(value)
  return values


def _read_text(content: BinaryIO, member: Member, path: str) -> str:
  content.seek(member.start)
  data = content.read(min(member.size, _MAX_LABEL_BYTES))
  try:
    return data.decode()
  except ValueError as error:
    raise _unreadable(member, path, error) from error


def _fields(content: BinaryIO, member: Member, path: str) -> dict[str, Any]:
  """The fields of the json of a sample."""
  text = _read_text(content, member, path)
  try:
    fields = json.loads(text)
    if not isinstance(fields, dict):
      raise ValueError("it is no object with fields")
  except (ValueError, RecursionError) as error:
    raise _unreadable(member, path, error) from error
  return fields


def _field(fields: Mapping[str, Any], key: str) -> Any:
  """A field, or one within others, such as meta.split; None without it."""
  if key in fields:
    return fields[key]
  value: Any = fields
  for name in key.split("."):
    if not isinstance(value, dict):
      return None
    value = value.get(name)
  return value


def _unreadable(member: Member, path: str, error: Exception) -> InputError:
  return InputError(
    f"{path!r}: {member.name!r} cannot be read: {one_line(error)}."
  )
