"""Expands a location into files, and finds the split that each belongs to.

`extract` and `import` share these rules. A data set of tables is one file,
several files or a folder of them; the split of a file follows from its name and
those of its folders.
"""

import glob
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import storage
from oneshot_dp.extract.places import normalize
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.labels import resolve_choice
from oneshot_dp.extract.sources.listed_files import File, format_names

# Folders of these names are splits, not classes: a root that has them, but not
# the one that was asked for, must not be read with "test" as a class.
_SPLIT_NAMES = frozenset(
  ("train", "training", "test", "testing", "val", "valid", "validation")
)
_SPLIT_COLUMNS = frozenset(
  ("split", "subset", "partition", "fold", "set", "usage")
)
_NUMBERS = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}")
_SHARD = re.compile(r"([^\W_][\w.]*)-\d+-of-\d+[^/]*$")
_MISSING_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_COMPRESSED = re.compile(r"\.(tar\.\w+|tgz)$")


class SplitFiles(NamedTuple):
  """The tables of one split of a data set.

  Attributes:
    name: of the data set, by the names of files and folders.
    split: the one that was asked for, or the only one.
    files: in order, by their whole paths.
  """

  name: str
  split: str
  files: list[File]


def is_split(name: str) -> bool:
  """Whether a name is that of a split (train, test …), and so of no class."""
  return name.lower() in _SPLIT_NAMES


def is_split_column(name: str) -> bool:
  """Whether a column of this name may say of which split each row is."""
  return name.casefold() in _SPLIT_COLUMNS


def refuse_several_splits(
  place: str, column: str, values: Iterable[Any]
) -> None:
  """Refuses rows of several splits, which are read as one.

  Args:
    place: where the rows are, for the message.
    column: the column, array or field that says the split of each row.
    values: of this column, of all rows.

  Raises:
    InputError: some rows are of one split (train, test …), some of another.
  """
  # Which rows are read follows from the names of files alone, so all would be
  # one split, and a test set would be trained on.
  names = {value for value in values if isinstance(value, str)}
  splits = sorted(name for name in names if is_split(name))
  if splits and len(names) > 1:
    raise InputError(
      f"{place!r} has rows of several splits in its column {column!r}"
      f" ({', '.join(map(ascii, splits))} …): write a file of each, or drop the"
      " column."
    )


def expand_location(location: Sequence[str]) -> list[str]:
  """Expands the words of a location into paths and URLs.

  A word is a path, a URL, a path from the home folder (~), a row of numbers
  (x{00..12}.tar) or a pattern (*.tar). InputError: it stands for nothing.
  """
  paths: list[str] = []
  for word in location:
    # Braces are expanded here and not by the shell, which knows nothing of
    # URLs.
    expanded: list[str] = []
    for path in expand_braces(os.path.expanduser(normalize(word))):
      expanded += expand_glob(path)
    if not expanded:
      raise InputError(f"{word!r} does not exist: give a file, folder or URL.")
    paths += expanded
  return paths


def expand_braces(word: str) -> list[str]:
  """x{08..10} as x08, x09, x10; any other word as it is.

  >>> expand_braces("{a,b}-{1..2}{08..09}")
  ['{a,b}-108', '{a,b}-109', '{a,b}-208', '{a,b}-209']
  """
  match = _NUMBERS.search(word)
  if not match:
    return [word]
  first, last = match.groups()
  words: list[str] = []
  for number in range(int(first), int(last) + 1):
    digits = str(number).zfill(len(first))
    words += expand_braces(word[: match.start()] + digits + word[match.end() :])
  return words


def expand_glob(path: str) -> list[str]:
  """The sorted paths of a pattern; one that exists, or a URL, is itself.

  InputError: nothing is there.
  """
  if storage.is_url(path) or os.path.lexists(path):
    return [path.rstrip("/") or "/"]
  storage.store_at(path)  # refuses addresses of other kinds
  matches = sorted(glob.glob(path, recursive=True))
  if not matches:
    raise InputError(f"{path!r} does not exist: give a file, folder or URL.")
  return matches


def common_folder(files: Mapping[str, File]) -> str:
  """The folder of a data set: what lies above it says nothing about its rows.

  It is the folder that a person named, or, of files, the one that they have in
  common: so `pets/label=*/*.parquet` is all of `pets`.

  Args:
    files: by their names in the data set, as `list_tables` returns them.

  Returns:
    A path or a URL; "" for the working folder.
  """
  name, file = next(iter(files.items()))
  if name != file.path:
    return file.path.removesuffix(name)
  # (commonpath would take a slash from s3://.)
  prefix = os.path.commonprefix(list(files))  # noqa: RUF071
  return os.path.dirname(prefix)


def partition_columns(path: str, root: str) -> dict[str, str]:
  """Reads columns off the names of folders, as Spark and DuckDB write them.

  All rows of the file have these values. A partition of missing values, which
  is called `__HIVE_DEFAULT_PARTITION__`, is a blank one.

  Args:
    path: of the file.
    root: the folder of the data set; those above it are not looked at.

  >>> partition_columns("user=a/pets/split=train/label=big%20cat/0.parquet",
  ...                   "user=a/pets")
  {'split': 'train', 'label': 'big cat'}
  """
  columns: dict[str, str] = {}
  for folder in path.removeprefix(root).split("/")[:-1]:
    name, equals, value = folder.partition("=")
    if name and equals:
      value = urllib.parse.unquote(value)
      columns[name] = "" if value == _MISSING_PARTITION else value
  return columns


def _without_partitions(path: str) -> str:
  """A path without its folders that say columns, but for that of the split."""
  kept: list[str] = []
  for part in path.split("/"):
    column, equals, value = part.partition("=")
    says_split = is_split_column(column) and is_split(value)
    if not equals or column == "split" or says_split:
      kept.append(part)
  return "/".join(kept)


def split_of_path(path: str) -> str:
  """Finds the split that a path tells by the names of file and folders.

  It is the NAME of NAME-00000-of-00002, or a word such as train or test, the
  last one in the path; "" where there is none.

  >>> split_of_path("pets/train/x-test_0.parquet"), split_of_path("pets/x.npz")
  ('test', '')
  """
  stem = os.path.splitext(_without_partitions(path))[0]
  sharded = _SHARD.search(stem)
  # data-00000-of-00002 is what `datasets` calls files of any split.
  if sharded and sharded[1] != "data":
    return sharded[1]
  for word in reversed(re.split(r"[/._ =-]", stem)):
    if is_split(word):
      return word
  return ""


def split_tables(
  paths: Iterable[str], suffixes: Sequence[str]
) -> dict[str, list[str]]:
  """Groups tables by split, by the names of files and folders.

  If no path tells a split, all tables belong to the split "all"; if some do,
  the others belong to the split "".

  Args:
    paths: of files of any kind.
    suffixes: what the names of tables end in.

  Returns:
    Split → paths of its tables, in the order in which they were given.

  Raises:
    InputError: there are no tables, or there are compressed ones.
  """
  by_split: dict[str, list[str]] = {}
  paths = list(paths)
  for path in paths:
    if path.lower().endswith(tuple(suffixes)):
      by_split.setdefault(split_of_path(path), []).append(path)
  compressed = [path for path in paths if _COMPRESSED.search(path.lower())]
  if compressed or not by_split:
    raise InputError(
      f"{format_names(compressed or paths) or 'nothing'}: {advice(suffixes)}"
      " (not compressed, as members are read by their place)."
    )
  if set(by_split) == {""}:
    return {"all": by_split[""]}
  return by_split


def advice(suffixes: Sequence[str]) -> str:
  """Says what a location may be, for messages."""
  return (
    "give a folder of a folder of images for each class, or files that end in"
    f" {', '.join(suffixes)}"
  )


def list_tables(
  paths: Sequence[str], suffixes: Sequence[str]
) -> tuple[str, dict[str, File]]:
  """The name of a data set of tables, and its files by their names in it.

  Args:
    paths: one folder, or one or several files.
    suffixes: what the names of tables end in.

  Returns:
    The name: that of the folder, of the only file, or of the folder that has
    the first of several; and the files. Those of a folder are all of it, tables
    or not, by their paths in it; others are by their paths as given.

  Raises:
    InputError: a path is not a table, is given twice, or cannot be read.
  """
  parent, name = os.path.split(os.path.abspath(paths[0]))
  if len(paths) == 1:
    files = listed_files.files_in(paths[0])
    if files or os.path.isdir(paths[0]):
      listed_files.refuse_broken(paths[0], files)
      refuse_prepared(paths[0], [file.path for file in files])
      whole = {f.path: listed_files.join_folder(paths[0], f) for f in files}
      return name, whole
  else:
    name = os.path.basename(parent)
  are_tables = all(path.lower().endswith(tuple(suffixes)) for path in paths)
  if len(set(paths)) < len(paths) or not are_tables:
    raise InputError(f"{format_names(paths)}: {advice(suffixes)}, each once.")
  return name, {path: listed_files.file_at(path) for path in paths}


def refuse_prepared(folder: str, names: Iterable[str]) -> None:
  """Raises InputError for what a program wrote in files that are no tables.

  It is a feature cache, or a folder of TFDS or of `datasets`, as its metadata
  say.

  Args:
    folder: the folder.
    names: of all files in it, at any depth.
  """
  metadata: dict[str, str] = {}
  for name in names:
    place, base = os.path.split(name)
    metadata.setdefault(base, os.path.join(folder, place).rstrip("/"))
  if "cache_info.json" in metadata:
    raise InputError(
      f"{metadata['cache_info.json']!r} is a feature cache, and no source of"
      " one: give it to `oneshot-dp train --cache`."
    )
  if "dataset_info.json" in metadata and "features.json" in metadata:
    place = metadata["dataset_info.json"]
    raise InputError(
      f"{place!r} is a data set that TFDS has prepared: extract tfds:{place}."
    )
  if "dataset_info.json" in metadata and "state.json" in metadata:
    place = metadata["state.json"]
    table = f"{os.path.basename(place)}.parquet"
    raise InputError(
      f"{place!r} is Arrow, which save_to_disk of `datasets` wrote: write it as"
      f" Parquet by load_from_disk({place!r}).to_parquet({table!r})."
    )


def resolve_split(
  place: str, asked: str | None, by_split: dict[str, list[str]]
) -> tuple[str, list[str]]:
  """The split that is asked for, or the only one, and its files.

  Args:
    place: where the data are, for messages.
    asked: the name of a split; None for the only one.
    by_split: the paths of the files of each split.

  Returns:
    The name of the split, and the paths of its files, as given.

  Raises:
    InputError: there is no such split, or its files lie in several places,
      which may hold the same images.
  """
  # Files of no split have the name "", which nobody can give as a flag.
  named = sorted(split for split in by_split if split)
  if "" in by_split and not asked:
    raise InputError(
      f"{place!r}: {by_split[''][0]!r} tells no split, and others do: give"
      f" --split, one of {format_names(named)}, or put a split into its name."
    )
  split = resolve_choice(place, "--split", asked, named)
  # Copies of a split in several folders, such as one for each size of shard,
  # would put each image into the cache twice, with twice its sensitivity.
  patterns: set[str] = set()
  for path in by_split[split]:
    folder, name = os.path.split(_without_partitions(path))
    patterns.add(os.path.join(folder, f"*{os.path.splitext(name)[1]}"))
  if len(patterns) > 1:
    raise InputError(
      f"{place!r} has its split {split!r} in several places, which may hold the"
      f" same images: give one of {format_names(sorted(patterns))}."
    )
  return split, by_split[split]
