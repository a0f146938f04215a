"""Names of classes, which are public, and labels, which are not."""

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oneshot_dp.configs.errors import (
  InputError,
  check_name,
  check_num_classes,
)

_SHOWN = 20


class NamelessClassesError(InputError):
  """Nothing says which classes there are."""


def shortened(names: Sequence[str]) -> str:
  """The first twenty names, for people."""
  more = f", … ({len(names):,} in all)" if len(names) > _SHOWN else ""
  return ", ".join(map(repr, names[:_SHOWN])) + more


def chosen(
  place: str,
  flag: str,
  key: str | None,
  candidates: Sequence[str],
  usual: str | None = None,
) -> str:
  """The column that was asked for, the only one, or the usual one."""
  if key is None:
    key = candidates[0] if len(candidates) == 1 else usual
  if key in candidates:
    return str(key)
  problem = f"{flag} must be set" if key == usual else f"{flag} {key!r} is none"
  raise InputError(f"{place!r}: {problem}: there is {shortened(candidates)}.")


def class_names(
  found: Iterable[Any] | None,
  stated: Sequence[str],
  num_classes: int | None,
  place: str,
) -> tuple[str, ...]:
  """The public names of all classes, which are never read off the labels.

  Args:
    found: what the data say, beside their labels.
    stated: what --class-names says.
    num_classes: what --num-classes says.
    place: where the data are, for errors.

  Raises:
    InputError: nobody says it, two say it differently, or a name cannot be.
  """
  named = tuple(found or ())
  if named and stated and tuple(stated) != named:
    raise InputError(
      f"{place!r} names its classes {shortened(list(map(str, named)))}: leave"
      " --class-names out."
    )
  names = named or tuple(stated)
  if num_classes is not None and names and num_classes != len(names):
    raise InputError(
      f"--num-classes {num_classes}, but {place!r} names {len(names)} classes:"
      " leave it out."
    )
  if not names and num_classes is None:
    raise NamelessClassesError(
      f"{place!r} names no classes: give --class-names or --num-classes (labels"
      " are private, so neither is read off them)."
    )
  if not names and num_classes is not None:
    check_num_classes(num_classes, "--num-classes")
    return tuple(map(str, range(num_classes)))
  check_num_classes(len(names), repr(place))
  for name in names:
    check_name(f"{place!a}: class name", name)
  if len(set(names)) < len(names):
    ((twice, _),) = collections.Counter(names).most_common(1)
    raise InputError(f"{place!r} has the class {twice!r} more than once.")
  return names


def label_numbers(
  values: Iterable[Any],
  names: Sequence[str],
  key: str,
  where: Callable[[int], str],
) -> list[int]:
  """Labels as class indices; texts are names of classes, or else numbers.

  Raises:
    InputError: a row has none of the classes; names the first few.
  """
  index = {name: label for label, name in enumerate(names)}
  # Where 2 is the name of class 0, a text cannot be both.
  may_count = all(n == str(i) for n, i in index.items() if n.isdecimal())

  def number(value: Any) -> int:
    if isinstance(value, str):
      is_number = may_count and value.isdecimal() and len(value) < 19
      return index.get(value, int(value) if is_number else -1)
    return value if type(value) is int else -1

  labels = [number(value) for value in values]
  wrong = [i for i, k in enumerate(labels) if not 0 <= k < len(names)]
  if wrong:
    n = len(wrong)
    have = "1 image has" if n == 1 else f"{n:,} images have"
    raise InputError(
      f"{have} no label {key!r} among the {len(names)} classes, by name or from"
      f" 0 to {len(names) - 1}: {shortened([where(i) for i in wrong])}."
    )
  return labels
