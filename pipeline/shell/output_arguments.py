"""The flags that every command has; see `arguments`."""

import dataclasses

from tyro.conf import FlagCreatePairsOff


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
  """How the command says what it found; the same for all of them."""

  json: FlagCreatePairsOff[bool] = False
  """One JSON object on standard output and nothing else there; notes and
  warnings are on standard error."""
  quiet: FlagCreatePairsOff[bool] = False
  """No progress bars and no notes: results, warnings and errors only."""


DEFAULT = Output()
