"""The command line's program, and the answer of a command.

*Privacy*: the facts of an answer are published as readily as its text. Private
values are in neither, except in commands that show them to their owner.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError

PROGRAM = "oneshot-dp"
"""The name of the command, as it is typed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """The result of a command.

  Attributes:
    text: for people; lines, without the last line break.
    facts: the same for programs, printed with --json; see `jsonable`.
    faults: one line for each thing that was checked and found wrong, printed
      on standard error.
    failure: why the exit status is not 0 although there is an answer.
  """

  text: str
  facts: Mapping[str, Any]
  faults: tuple[str, ...] = ()
  failure: InputError | RunError | None = None

  def json(self) -> str:
    """Returns the facts as one JSON object on one line."""
    return json.dumps(jsonable(self.facts), allow_nan=False)


def jsonable(value: Any) -> Any:
  """Returns a value as JSON can hold it.

  JSON has no infinity and no NaN: these become "inf", "-inf" and null.

  >>> jsonable({"epsilon": math.inf, "out": Path("heads"), "recall": (1.0,)})
  {'epsilon': 'inf', 'out': 'heads', 'recall': [1.0]}
  """
  if value is None or isinstance(value, bool | int | str):
    return value
  # Python's encoder would write Infinity and NaN, which are not JSON: a parser
  # that keeps to the standard refuses the whole answer.
  if isinstance(value, float):
    if math.isnan(value):
      return None
    if math.isinf(value):
      return str(value)
    return value
  if isinstance(value, Path):
    return str(value)
  if isinstance(value, Mapping):
    return {str(key): jsonable(item) for key, item in value.items()}
  if isinstance(value, Sequence):
    return [jsonable(item) for item in value]
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return jsonable(dataclasses.asdict(value))
  array: Any = value  # NumPy's scalars and arrays
  return jsonable(array.tolist())
