"""Tells one extraction job from another, field by field."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from oneshot_dp.configs.errors import InputError

_ABSENT = "absent"


def refuse_another(
  place: pathlib.Path, there: dict[str, Any], now: dict[str, Any]
) -> None:
  """Refuses a directory that holds another job.

  Args:
    place: the directory.
    there: the identity found there, as JSON.
    now: the identity that was asked for, as JSON.

  Raises:
    InputError: they differ; names each field and both values.
  """
  differences = [
    f"{name} is {_short(old)} there and {_short(new)} now"
    for name, old, new in _differences(there, now)
  ]
  if differences:
    raise InputError(
      f"{place} belongs to another job: {'; '.join(differences)}; choose "
      "another --out, or delete it to start again."
    )


def _differences(
  there: Any, now: Any, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
  if isinstance(there, dict) and isinstance(now, dict):
    for key in sorted(there.keys() | now.keys()):
      inner = f"{name}.{key}" if name else key
      yield from _differences(
        there.get(key, _ABSENT), now.get(key, _ABSENT), inner
      )
  elif there != now:
    yield name, there, now


def _short(value: Any) -> str:
  text = json.dumps(value)
  return text if len(text) <= 40 else f"{text[:37]}..."
