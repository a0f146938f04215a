"""Looks whether columns say of which split each row is, by names and values.

Which rows are read follows from the names of files alone, so that all rows of a
file are of one split. A column that says otherwise means that test rows would
be trained on: what is almost surely so is refused, the rest is warned of.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.extract.sources.annotations.splits import (
  SPLIT_COLUMNS,
  is_split_column,
  is_split_word,
  own_name,
  partition_columns,
  split_words,
  words_of,
)
from oneshot_dp.extract.sources.listed_files import format_names

# Whether 0 and 1 in such a column say it is known where all other words of its
# name are of these: is_test, in_train, test_mask, but not is_covid_test.
_FLAG_WORDS = frozenset(
  ("is", "in", "for", "mask", "set", "split", "flag", "row", "image")
)
# Words of names whose several values are doubtful, whatever they are: split_id,
# kfold, data_split.
_DOUBTFUL_WORDS = frozenset(
  ("split", "splits", "subset", "partition", "fold", "folds", "kfold")
)
_LIKE_SPLIT_COLUMNS = SPLIT_COLUMNS | _DOUBTFUL_WORDS | {"phase", "dataset"}
# test/1.jpg, train_0001: how names of files begin that tell their split.
_FIRST_WORD = re.compile(r"([A-Za-z]+)(?=[0-9]*[/\\]|_?[0-9])")
_INDEX_WORDS = frozenset(("idx", "index", "indexes", "indices", "inds", "ids"))
_YES_OR_NO = {"false": 0, "no": 0, "0": 0, "true": 1, "yes": 1, "1": 1}
_NUMBER = re.compile(r"[0-9]{1,18}")  # of a fold: no more fits into 64 bits


def may_say_split(name: str) -> bool:
  """Whether values of a column are worth a look, as they may be of splits."""
  name = own_name(name)
  words = {word.lower() for word in words_of(name)}
  return bool(words & _LIKE_SPLIT_COLUMNS or split_words(name))


def split_at_start(name: str) -> str:
  """The split that the name of a file begins with, as in train_0001, or ""."""
  match = _FIRST_WORD.match(name)
  if match is None or not is_split_word(match[1]):
    return ""
  return match[1]


def look_like_splits(values: Iterable[str]) -> bool:
  """Whether strings are all splits, or begin with them, and not all with one.

  It decides about columns whose names say nothing: a caption may be "train",
  but not all captions are splits.
  """
  splits: set[str] = set()
  for value in values:
    split = value if is_split_word(value) else split_at_start(value)
    if not split:
      return False
    splits.update(split_words(split).values())
  return len(splits) > 1


def split_of_columns(names: Iterable[str | None]) -> str:
  """The split that columns are named after, as X_test is; "" if they are not.

  Args:
    names: of the columns that a flag names; None for the usual ones.
  """
  for name in names:
    for split in split_words(name or "").values():
      return split
  return ""


def refuse_differing_splits(
  place: str, split: str | None, columns: Sequence[str]
) -> None:
  """Raises InputError for columns of one row that are named after two splits.

  Args:
    place: where they are, for the message.
    split: that a flag names; None if none does.
    columns: their names, such as X_train and y_test.
  """
  names = list(columns)
  if split is not None:
    names.append(f"--split {split}")
  splits: set[str] = set()
  for name in names:
    words = set(split_words(name).values())
    if len(words) == 1:  # train_and_test is of no one split
      splits |= words
  if len(splits) > 1:
    raise InputError(
      f"{place!r}: {format_names(names)} are of different splits: name one"
      " split."
    )


def check_splits(
  place: str, split: str, column: str, values: Iterable[Any]
) -> None:
  """Refuses, or warns of, rows of several splits, which are read as one.

  It warns of rows of another split than their file, too.

  Args:
    place: where the rows are, for the message.
    split: which they are read as.
    column: the column, array or field that may say the split of each row.
    values: of this column, of all rows.

  Raises:
    InputError: some rows are of one split (train, test …), some of another.
  """
  # Which rows are read follows from the names of files alone, so all would be
  # one split, and a test set would be trained on.
  words, numbers = _words_and_numbers(values)
  if not may_say_split(column) and not look_like_splits(words):
    return
  splits = sorted(word for word in words if is_split_word(word))
  # Of a column that is called so, one split among other values is enough.
  needed = 1 if is_split_column(column) else 2
  names_splits = len(words) > 1 and len(splits) >= needed
  is_flag = _is_flag_of_split(column) and numbers == {0, 1}
  if names_splits or is_flag:
    shown = ", ".join(map(ascii, splits or sorted(numbers)))
    raise InputError(
      f"{place!r} has rows of several splits in its column {column!r}"
      f" ({shown} …): write a file of each, or drop the column."
    )
  if len(words) == 1:
    (word,) = words
    _warn_of_another_split(place, split, column, word)
  # What numbers stand for is not known: splits, or folds of training rows. Nor
  # is it of names of files, which may be those of a data set before.
  is_doubtful = _is_doubtful(column)
  is_flag = _is_flag_of_split(column) or own_name(column) in split_words(column)
  has_numbers = len(numbers) > 1 and (is_doubtful or is_flag)
  has_words = len(words) > 1 and (is_doubtful or look_like_splits(words))
  if has_numbers or has_words:
    print(
      f"WARNING: {escaped(place)}: the column {column!r} has several values,"
      " and is not used: all rows are read as one split; if it says which of"
      " them are for tests, write a file of each split.",
      file=sys.stderr,
    )


def _is_doubtful(column: str) -> bool:
  """Whether a column is called so that its values are splits or folds."""
  words = {word.lower() for word in words_of(own_name(column))}
  return is_split_column(column) or bool(words & _DOUBTFUL_WORDS)


def check_folder_splits(
  place: str,
  split: str,
  paths: Iterable[str],
  root: str,
  used: Sequence[str | None],
) -> None:
  """Refuses, or warns of, files of several splits by the names of folders.

  Folders that are called `is_test=1` or `fold=0` are columns of their files.

  Args:
    place: where the files are, for the message.
    split: which they are read as.
    paths: of the files.
    root: the folder of the data set; those above it are not looked at.
    used: columns that say something else of each row, such as its label.

  Raises:
    InputError: some files are of one split (train, test …), some of another.
  """
  values_of: dict[str, set[str]] = {}
  for path in paths:
    for column, value in partition_columns(path, root).items():
      if may_say_split(column) and column not in used:
        values_of.setdefault(column, set()).add(value)
  for column, values in values_of.items():
    check_splits(place, split, column, values)


def _words_and_numbers(values: Iterable[Any]) -> tuple[set[str], set[int]]:
  """The different values of a column: words, and numbers with yes and no."""
  words: set[str] = set()
  numbers: set[int] = set()
  different = set(values)
  # pandas makes floats of numbers where one is missing; others are measured.
  floats = {value for value in different if isinstance(value, float)}
  if not all(value.is_integer() or value != value for value in floats):
    return words, numbers
  for value in different - floats:
    if isinstance(value, int):  # a truth value is one, too
      numbers.add(int(value))
    elif isinstance(value, str) and value.lower() in _YES_OR_NO:
      numbers.add(_YES_OR_NO[value.lower()])
    elif isinstance(value, str) and _NUMBER.fullmatch(value):
      numbers.add(int(value))
    elif isinstance(value, str):
      words.add(value)
  numbers.update(int(value) for value in floats if value == value)
  return words, numbers


def _warn_of_another_split(
  place: str, split: str, column: str, word: str
) -> None:
  """Warns where the word that all rows have is another split than `split`."""
  stated = set(split_words(word).values())
  read_as = set(split_words(split).values())
  if stated and read_as and stated != read_as:
    print(
      f"WARNING: {escaped(place)}: the column {column!r} says that all rows are"
      f" of the split {min(stated)!r}, and they are read as {split!r}.",
      file=sys.stderr,
    )


def warn_of_indices(place: str, names: Iterable[str]) -> None:
  """Warns of arrays such as train_idx, which say the split of each row.

  Args:
    place: where they are, for the message.
    names: of all arrays that lie beside the rows.
  """
  choosing: list[str] = []
  for name in names:
    words = {word.lower() for word in words_of(name)}
    if words & _INDEX_WORDS and split_words(name):
      choosing.append(name)
  if choosing:
    print(
      f"WARNING: {escaped(place)}: {format_names(choosing)} not used: all rows"
      " are read as one split; if they choose rows, write a file of each"
      " split.",
      file=sys.stderr,
    )


def warn_of_unread_splits(place: str, columns: Iterable[str]) -> None:
  """Warns of columns that may say the split of each row, by their names alone.

  Args:
    place: where they are, for the message.
    columns: those that are not used, and whose values are read later.
  """
  unused: list[str] = []
  for column in sorted(columns):
    if is_split_column(column) or _is_flag_of_split(column):
      unused.append(column)
  if unused:
    print(
      f"WARNING: {escaped(place)}: {format_names(unused)} not used: all rows"
      " are read as one split; if that says which of them are for tests,"
      " prepare a split of each.",
      file=sys.stderr,
    )


def _is_flag_of_split(name: str) -> bool:
  """Whether 1 in a column of this name says that a row is of a split."""
  name = own_name(name)
  splits = split_words(name)
  others = {word.lower() for word in words_of(name)}
  others -= {word.lower() for word in splits}
  if not others or not others <= _FLAG_WORDS:
    return False
  return bool({"train", "test", "val"} & set(splits.values()))
