"""Names of classes, which are public, and labels, which are not."""

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oneshot_dp.configs.errors import InputError, check_name, check_num_classes
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources.listed_files import shortened


class NamelessClassesError(InputError):
  """Nothing says which classes there are."""


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
  raise InputError(
    f"{place!r}: {flag} must be one of {shortened(candidates) or 'none'}"
    f"{f', and is {key!r}' if key else ''}."
  )


def class_names(
  named: Iterable[Any], settings: SourceSettings, place: str
) -> tuple[str, ...]:
  """The public names of all classes, which are never read off the labels.

  Args:
    named: what the data at `place` say, beside their labels; may be empty.
    settings: what flags say.
    place: where the data are.

  Raises:
    InputError: nobody says it, two say it differently, or a name cannot be.
  """
  found, stated = tuple(map(str, named)), tuple(settings.class_names)
  if found and stated and stated != found:
    raise InputError(
      f"{place!r} has the classes {shortened(found)}: leave --class-names out."
    )
  names = found or stated
  if not names:
    if settings.num_classes is None:
      raise NamelessClassesError(
        f"{place!r} names no classes: give --class-names or --num-classes"
        " (labels are private, so neither is read off them)."
      )
    check_num_classes(settings.num_classes, "--num-classes")
    return tuple(map(str, range(settings.num_classes)))
  if settings.num_classes not in (None, len(names)):
    raise InputError(
      f"--num-classes {settings.num_classes}, but {place!r} has {len(names)}"
      " classes by name: leave it out."
    )
  check_num_classes(len(names), repr(place))
  for name in names:
    check_name(f"{place!a}: class name", name)
  ((most, times),) = collections.Counter(names).most_common(1)
  if times > 1:
    raise InputError(f"{place!r} has the class {most!r} more than once.")
  return names


def label_numbers(
  values: Iterable[Any],
  names: Sequence[str],
  key: str,
  where: Callable[[int], str],
) -> list[int]:
  """Labels as class indices; texts are names of classes, or else numbers.

  Raises:
    InputError: rows have none of the classes; names a few.
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
  if wrong := [i for i, k in enumerate(labels) if not 0 <= k < len(names)]:
    raise InputError(
      f"images without a label {key!r} among the {len(names)} classes, by name"
      f" or from 0 to {len(names) - 1}: {shortened([where(i) for i in wrong])}."
    )
  return labels
