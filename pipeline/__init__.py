"""What a person runs; and what a command answers, in words and as facts.

*Privacy*: the facts are published as readily as the text, and what is private
is in neither, but where a command is there to show it to its holder.
"""

import dataclasses
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
  """What JSON can hold of a value; infinity is "inf", NaN is null."""
  if isinstance(value, float) and not math.isfinite(value):
    return None if math.isnan(value) else str(value)
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, Path):
    return str(value)
  if isinstance(value, Mapping):
    return {str(key): plain(each) for key, each in value.items()}
  if isinstance(value, Sequence):
    return [plain(each) for each in value]
  if dataclasses.is_dataclass(value):
    names = (field.name for field in dataclasses.fields(value))
    return {name: plain(getattr(value, name)) for name in names}
  return plain(value.tolist())  # NumPy's
