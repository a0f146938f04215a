"""Finds the split (train, test …) of files, by their names and folders.

`extract` and `import` share these rules. The split of a file follows from its
name and those of its folders: all rows of a file are of one split. What columns
say of it is looked at in `split_columns`.
"""

import os
import re
import sys
import urllib.parse
from collections.abc import Iterable, Sequence

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.extract.sources.annotations.labels import resolve_choice
from oneshot_dp.extract.sources.listed_files import format_names
from oneshot_dp.extract.sources.location import advice

# Folders of these names are splits, not classes: a root that has them, but not
# the one that was asked for, must not be read with "test" as a class.
_SPLIT_NAMES = frozenset(
  ("train", "training", "test", "testing", "val", "valid", "validation")
)
SPLIT_COLUMNS = frozenset(
  ("split", "subset", "partition", "fold", "set", "usage")
)
"""Names of columns, in lower case, whose values are most likely splits."""
_WORD_ENDS = re.compile(r"[/._ =-]+|(?<=[a-z])(?=[A-Z])")
# train, Train2, testset, val2017. Files are called after more splits than
# folders are, which may be classes, or the place of somebody's work (dev).
_SPLIT_WORD = re.compile(
  r"(training|train|testing|test|validation|valid|val|dev|evaluation|eval"
  r"|holdout)(?:set|data|images?)?[0-9]*",
  re.IGNORECASE,
)
_ONE_SPLIT = {
  "training": "train",
  "testing": "test",
  "validation": "val",
  "valid": "val",
  "evaluation": "eval",
}
_SHARD = re.compile(r"([^\W_][\w.]*)-\d+-of-\d+[^/]*$")
_SHARD_NUMBER = re.compile(r"(.*)-(\d+)-of-(\d+)[^/]*")
_FILE_NUMBER = re.compile(r"(.*?)(0\d{2,}|[1-9]\d{2,})")
_MISSING_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_COMPRESSED = re.compile(r"\.(tar\.\w+|tgz)$")


def is_split(name: str) -> bool:
  """Whether a name is that of a split (train, test …), and so of no class."""
  return name.lower() in _SPLIT_NAMES


def is_split_column(name: str) -> bool:
  """Whether a column of this name may say of which split each row is."""
  return own_name(name).casefold() in SPLIT_COLUMNS


def own_name(name: str) -> str:
  """The name of a field within another without the other's: meta.split."""
  return name.rpartition(".")[2]


def is_split_word(word: str) -> bool:
  """Whether a word is one of a split, with or without a number: Train2."""
  return _SPLIT_WORD.fullmatch(word) is not None


def words_of(name: str) -> list[str]:
  """The words of a name: at its separators, and at capitals in it.

  >>> words_of("is_trainSet")
  ['is', 'train', 'Set']
  """
  return _WORD_ENDS.split(name)


def split_words(name: str) -> dict[str, str]:
  """The words of a name that are those of a split, and which split it is.

  >>> split_words("seg_train"), split_words("TestImages"), split_words("strain")
  ({'train': 'train'}, {'Test': 'test'}, {})
  """
  words: dict[str, str] = {}
  for word in words_of(name):
    match = _SPLIT_WORD.fullmatch(word)
    if match is not None:
      split = match[1].lower()
      words[word] = _ONE_SPLIT.get(split, split)
  return words


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
  >>> split_of_path("TrainSet.npz"), split_of_path("dev/val2.tar")
  ('Train', 'val')
  """
  stem = os.path.splitext(_without_partitions(path))[0]
  sharded = _SHARD.search(stem)
  # data-00000-of-00002 is what `datasets` calls files of any split.
  if sharded and sharded[1] != "data":
    return sharded[1]
  folder, name = os.path.split(stem)
  for word in reversed(words_of(name)):
    match = _SPLIT_WORD.fullmatch(word)
    if match is not None:
      return match[1]
  for word in reversed(re.split(r"[/._ =-]", folder)):
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
  # Whoever names one file wants that file alone.
  if by_split[split] != [place]:
    _check_shards(place, by_split[split])
  _warn_of_part(place, by_split[split])
  return split, by_split[split]


def _warn_of_part(place: str, paths: Sequence[str]) -> None:
  """Warns of folders that say that they have a part of a data set only.

  The Hub's copies of large data sets are in folders such as partial-train.
  """
  for folder in paths[0].split("/")[:-1]:
    if folder.startswith("partial-") and is_split(folder[len("partial-") :]):
      print(
        f"WARNING: {escaped(place)}: {folder!r} has the first part of a data"
        " set only, by its name: the other rows are LEFT OUT.",
        file=sys.stderr,
      )


def _check_shards(place: str, paths: Sequence[str]) -> None:
  """Compares files with the numbers in their names.

  It warns of files that are missing, as after a download that was stopped.

  Raises:
    InputError: the files are of several writings of one data set, as 0-of-1
      beside 0-of-2 are: rows would be there twice.
  """
  shards: dict[str, list[tuple[int, int]]] = {}
  numbers: dict[str, set[int]] = {}
  for path in paths:
    stem = os.path.splitext(path)[0]
    shard = _SHARD_NUMBER.fullmatch(stem)
    number = _FILE_NUMBER.fullmatch(stem)
    if shard is not None:
      place_of_shard = int(shard[2]), int(shard[3])
      shards.setdefault(shard[1], []).append(place_of_shard)
    elif number is not None:
      numbers.setdefault(number[1], set()).add(int(number[2]))
  missing = 0
  for name, places in shards.items():
    totals = {total for _, total in places}
    if len(totals) > 1 or len(set(places)) < len(places):
      raise InputError(
        f"{place!r} has files {name!r} of several writings, with the same rows"
        f" perhaps: of {', '.join(map(str, sorted(totals)))} files; remove"
        " those of the older ones."
      )
    missing += max(totals) - len(places)
  # Files that are numbered 000000, 000001 … without a total: a few that are
  # missing between them. (Numbers far apart are names of something.)
  for present in numbers.values():
    between = max(present) - min(present) + 1 - len(present)
    if min(present) <= 1 and between < len(present):
      missing += between
  if missing:
    print(
      f"WARNING: {escaped(place)}: {missing:,} of {missing + len(paths):,}"
      " files are missing, by the numbers in their names: their rows are LEFT"
      " OUT.",
      file=sys.stderr,
    )
