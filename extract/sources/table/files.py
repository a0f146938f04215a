"""Which files a data set is, and which split each is of."""

import json
import os
import re

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.example import shortened
from oneshot_dp.extract.sources.image_folder import files_below, is_split

EXTENSIONS = (".parquet", ".arrow", ".tar")


def files_of(path: str, split: str) -> list[str]:
  """The files of a split, relative to the folder, by code point.

  The split is the NAME of NAME-00000-of-00002, or a word such as train or test
  in the name of the file or of its folders. All files without one are `all`.

  Args:
    path: a file or a folder.
    split: what is asked for.

  Raises:
    InputError: there is no such split, or it is in several folders.
  """
  if os.path.isfile(path):
    below, path = [os.path.basename(path)], os.path.dirname(path)
  elif os.path.isdir(path):
    below = files_below(path)[1]
  else:
    raise InputError(
      f"source.path={path!r} is neither a file nor a folder on this machine."
    )
  if packed := [f for f in below if re.search(r"\.(tar\.\w+|tgz|zip)$", f)]:
    raise InputError(
      f"{path!r} has packed files, which cannot be read by index: unpack"
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
  if split == "all" and set(found) == {""}:
    split = ""
  if split not in found or (not split and len(found) > 1):
    has = ", ".join(sorted(filter(None, found))) or "none: give --split all"
    raise InputError(
      f"{path!r} has no split {split!r} by the names of its files: it has"
      f" {has}."
    )
  chosen = found[split]
  homes = {
    os.path.join(os.path.dirname(f), f"*{os.path.splitext(f)[1]}")
    for f in chosen
  }
  if len(homes) > 1:
    raise InputError(
      f"{path!r} has its split {split!r} in several places"
      f" ({', '.join(sorted(homes))}), which may hold the same images: give the"
      " folder of one as source.path."
    )
  return chosen


def _is_data(path: str, file: str) -> bool:
  """Whether it is a file of the data set, not of what `datasets` computed."""
  state = os.path.join(path, os.path.dirname(file), "state.json")
  if not file.endswith(".arrow") or not os.path.isfile(state):
    return True
  try:
    with open(state, "rb") as opened:
      files = json.load(opened)["_data_files"]
    return os.path.basename(file) in [each["filename"] for each in files]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(
      f"{state!r} is not of a saved data set: {error}"
    ) from error


def _split_of(file: str) -> str:
  """The split that a file is of, by its name or its folders'; "" if none."""
  stem = os.path.splitext(file)[0]
  sharded = re.search(r"([^\W_][\w.]*)-\d+-of-\d+[^/]*$", stem)
  if sharded and sharded[1] != "data":
    return sharded[1]
  words = re.split(r"[/._ -]", stem)
  return next(filter(is_split, reversed(words)), "")
