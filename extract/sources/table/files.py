"""Which files a data set is, and which split each is of."""

import os
import re
from typing import NotRequired, TypedDict

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.example import shortened
from oneshot_dp.extract.sources.image_folder import files_below, is_split
from oneshot_dp.extract.storage.anywhere import is_file, is_folder, read_file
from oneshot_dp.extract.storage.typed_json import parse_json

EXTENSIONS = (".parquet", ".arrow", ".tar")


class _DataFile(TypedDict):
  filename: str


class _State(TypedDict):
  """What `datasets` says of the Arrow files beside it."""

  _data_files: list[_DataFile]
  _indices_data_files: NotRequired[list[_DataFile] | None]


def splits_of(path: str) -> dict[str, list[str]]:
  """The files of each split, relative to the folder, by code point.

  A split is the NAME of NAME-00000-of-00002, or a word such as train or test in
  the name of the file or of its folders. Without any, all are the split `all`;
  beside others, files without one are those of "".

  InputError: there are no such files, or some that are compressed.
  """
  if is_file(path):
    below, path = [os.path.basename(path)], os.path.dirname(path)
  elif is_folder(path):
    below = files_below(path)[1]
  else:
    raise InputError(f"{path!r} is neither a file nor a folder.")
  if packed := [f for f in below if re.search(r"\.(tar\.\w+|tgz)$", f)]:
    raise InputError(
      f"{path!r} has compressed tars, which cannot be read by index: unpack"
      f" {shortened(packed)}."
    )
  found: dict[str, list[str]] = {}
  for file in below:
    if file.endswith(EXTENSIONS) and _is_data(path, file):
      found.setdefault(_split_of(file), []).append(file)
  if not found:
    raise InputError(
      f"{path!r} has no files that end in {', '.join(EXTENSIONS)}."
    )
  return {"all": found[""]} if set(found) == {""} else found


def files_of(path: str, split: str) -> list[str]:
  """The files of one split, which must be in one folder; see `splits_of`."""
  found = splits_of(path)
  if not split or split not in found:
    raise InputError(
      f"{path!r} has no split {split!r} by the names of its files: give"
      f" --split {' or '.join(sorted(filter(None, found)))}."
    )
  files = found[split]
  homes = {
    os.path.join(os.path.dirname(f), f"*{os.path.splitext(f)[1]}")
    for f in files
  }
  if len(homes) > 1:
    raise InputError(
      f"{path!r} has its split {split!r} in several places"
      f" ({', '.join(sorted(homes))}), which may hold the same images: give the"
      " folder of one as source.path."
    )
  return files


def _is_data(path: str, file: str) -> bool:
  """Whether it is a file of the data set, not of what `datasets` computed."""
  state = os.path.join(path, os.path.dirname(file), "state.json")
  if not file.endswith(".arrow") or not is_file(state):
    return True
  said = parse_json(state, read_file(state), _State, "save the data set again")
  if said.get("_indices_data_files"):
    raise InputError(
      f"{state!r} is of an old `datasets`, which kept the order in another"
      " file: save the data set again."
    )
  names = [each["filename"] for each in said["_data_files"]]
  return os.path.basename(file) in names


def _split_of(file: str) -> str:
  """The split that a file is of, by its name or its folders'; "" if none."""
  stem = os.path.splitext(file)[0]
  sharded = re.search(r"([^\W_][\w.]*)-\d+-of-\d+[^/]*$", stem)
  if sharded and sharded[1] != "data":
    return sharded[1]
  words = re.split(r"[/._ -]", stem)
  return next(filter(is_split, reversed(words)), "")
