"""JSON that anybody may have edited: within bounds, and of the type it must be.

msgspec holds it against dataclasses and TypedDicts. What these do not name is
passed over.
"""

import json
import math
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage.durable_files import read_bytes
from oneshot_dp.extract.storage.store import Store

OBJECT = dict[str, Any]
MOST_BYTES = 1 << 28
"""Bound of a file: it may have a record for each of a million shards."""
_MOST_DIGITS = 100
_one_thread = threading.Lock()
"""msgspec looks at a type when it first meets it; two threads that both do
crash the process."""
_EXTRACT_AGAIN = "restore it or extract again"


def read_content(path: pathlib.Path) -> bytes:
  """A file's bytes; InputError if it cannot be read, or has MOST_BYTES."""
  try:
    return read_bytes(path, MOST_BYTES)
  except OSError as e:
    raise InputError(f"{path} cannot be read: {e.strerror}.") from e


def read_json(
  path: pathlib.Path, kind: Any = OBJECT, mend: str = _EXTRACT_AGAIN
) -> Any:
  """`parse_json` of a file; InputError if it cannot be read."""
  return parse_json(path, read_content(path), kind, mend)


def stored_json(store: Store, name: str, kind: Any = OBJECT) -> Any:
  """`parse_json` of a store's file; FileNotFoundError if there is none."""
  return parse_json(store.path / name, store.read(name, MOST_BYTES), kind)


def parse_json(
  place: object,
  content: bytes,
  kind: Any = OBJECT,
  mend: str = _EXTRACT_AGAIN,
  names: Mapping[str, str] | None = None,
) -> Any:
  """The value in a file.

  >>> parse_json("a.json", b'{"rows": [1, "2"]}', dict[str, list[int]])
  Traceback (most recent call last):
    ...
  oneshot_dp.configs.errors.InputError: a.json is damaged (Expected `int`, got
  `str` - at `$[...][1]`); restore it or extract again.

  `mend` says what to do if it is not of its kind; `names` are what fields of
  earlier versions are called now. InputError: no JSON, or nested too deep; a
  field that is missing, there twice or of another type; a number that is none,
  or absurd.
  """

  def fields(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
      raise ValueError("it has a field twice")
    return {(names or {}).get(name, name): v for name, v in found.items()}

  try:
    value = json.loads(
      content,
      object_pairs_hook=fields,
      parse_constant=_no_number,
      parse_float=_finite,
      parse_int=_integer,
    )
    with _one_thread:
      return msgspec.convert(value, kind)
  except (ValueError, RecursionError) as e:
    raise InputError(f"{place} is damaged ({str(e)[:300]}); {mend}.") from e


def _integer(text: str) -> int:
  return int(text) if len(text) <= _MOST_DIGITS else _no_number(text)


def _finite(text: str) -> float:
  value = float(text)
  return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> NoReturn:
  raise ValueError(f"{text[:20]} is no number that it may hold")
