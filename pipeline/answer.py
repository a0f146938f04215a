"""What a command found, in words for people and as facts for machines.

*Privacy*: the facts are published as readily as the text, and what is private
is in neither, but where a command is there to show it to its holder.
"""

import dataclasses
import enum
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """The result of a command.

  Attributes:
    text: for people; lines, without the last line break.
    facts: the same for machines; see `plain`.
    faults: one line each, of what was checked and is not so; on stderr.
    failure: why the exit status is not 0, though there is an answer.
  """

  text: str
  facts: Mapping[str, Any]
  faults: tuple[str, ...] = ()
  failure: InputError | RunError | None = None

  def json(self) -> str:
    """The facts as one JSON object on one line."""
    return json.dumps(plain(self.facts), allow_nan=False)


def plain(value: Any) -> Any:
  """What JSON can hold of a value; infinity is "inf", NaN is null.

  TypeError: the value is no fact.
  """
  match value:
    case enum.Enum():
      return value.name
    case None | bool() | int() | str():
      return value
    case float():
      if math.isfinite(value):
        return value
      return None if math.isnan(value) else str(value)
    case Path():
      return str(value)
    case Mapping():
      return {str(key): plain(each) for key, each in value.items()}
    case Sequence():
      return [plain(each) for each in value]
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = dataclasses.fields(value)
    return {field.name: plain(getattr(value, field.name)) for field in fields}
  if hasattr(value, "tolist"):  # NumPy's
    return plain(value.tolist())
  raise TypeError(f"{value!r} is no fact that JSON can hold.")
