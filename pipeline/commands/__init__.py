"""The commands, each one file, and the flags that several of them have.

A command's module has `Flags`, a frozen dataclass whose docstring is its help,
and `run(flags) -> Answer`. `cli` imports only the one that is asked for, and it
imports what is heavy within `run`.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, arg


def flag(help: str | None, metavar: str | None = None, **options: Any) -> Any:
  """The help of a flag, and what stands for its value.

  A default is shown where it says something.
  """
  return arg(
    help=help,
    metavar=metavar,
    help_behavior_hint=lambda default: (
      "" if default in ("None", "False", "''", "") else f"(default: {default})"
    ),
    **options,
  )


Switch = FlagCreatePairsOff[bool]
"""A flag without a value, and without a --no-… beside it."""
TestCache = Annotated[Path, flag("Labelled rows to score heads on.", "CACHE")]
Rows = Annotated[str, flag("A part by content: '[:80%]', '[80%:]'.", "PART")]
Delta = Annotated[float, flag("The delta of it all, below 1/n.", "D")]
PrivateEval = Annotated[
  float | None, flag("Test labels are private: noisy counts, paid.", "E")
]
AllowDuplicates = Annotated[
  Switch, flag("Over 1 % of the test rows may be private rows.")
]
LedgerFile = Annotated[
  Path | None, flag("What was spent; else $ONESHOT_DP_LEDGER.", "FILE")
]
WeakPrivacy = Annotated[Switch, flag("Insist on delta ≥ 1/n, or epsilon > 20.")]
NoiseSeed = Annotated[
  int | None, flag("For research: seeded noise, NOT PRIVATE.", "N")
]

Weights = Annotated[
  str | None, flag("Where the backbone's weights are; checked.", "FILE")
]
BackboneFile = Annotated[
  str | None, flag("FILE.py:FUNCTION, if it is a user's own.", "NAME")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingFlags:
  """What `train` and `sweep` both have."""

  cache: Annotated[Path, flag("The private training cache.", "CACHE")]
  rows: Rows = ""
  delta: Delta
  out: Annotated[Path, flag("A folder, not there yet.", "DIR")]
  start: Annotated[
    Path | None, flag("Public start: npz of a vector by class name.", "NPZ")
  ] = None
  balanced: Annotated[Switch, flag("Classes count alike, rare or not.")] = False
  ledger: LedgerFile = None
  weak_privacy: WeakPrivacy = False
  noise_seed: NoiseSeed = None
  hosts: Annotated[
    str | None, flag("On all: auto, or INDEX/COUNT@HOST:PORT.", "WHICH")
  ] = None
