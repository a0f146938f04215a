"""The commands, each one file, and the flags that several of them have.

A command's module has `Flags`, a frozen dataclass whose docstring is its help,
and `run(flags) -> Answer`. `cli` imports only the one that is asked for, and it
imports what is heavy within `run`.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg

from oneshot_dp.configs.head_config import HeadName


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
HeadFolder = Annotated[Positional[Path], flag("Folder of the head.", "HEAD")]
HeadKind = Annotated[
  HeadName, flag("auto, lamb (the paper's step), adam, momentum.", "HEAD")
]
TestCache = Annotated[Path, flag("Cache of labelled test rows.", "CACHE")]
Rows = Annotated[str, flag("A part of the cache: '[:80%]', '[80%:]'.", "PART")]
Delta = Annotated[float, flag("Delta of the guarantee, below 1/n.", "D")]
PrivateEval = Annotated[
  float | None, flag("Epsilon for private test labels: noisy, charged.", "E")
]
AllowDuplicates = Annotated[
  Switch, flag("Accept over 1 % of private rows in the test set.")
]
LedgerFile = Annotated[
  Path | None, flag("The ledger; else $ONESHOT_DP_LEDGER.", "FILE")
]
WeakPrivacy = Annotated[Switch, flag("Insist on delta ≥ 1/n, or epsilon > 20.")]
NoiseSeed = Annotated[
  int | None, flag("For research: seeded noise, NOT PRIVATE.", "N")
]

Weights = Annotated[
  str | None, flag("The backbone's weights, if elsewhere now.", "FILE")
]
BackboneFile = Annotated[
  str | None, flag("Your own FILE.py:FUNCTION, if elsewhere now.", "NAME")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingFlags:
  """What `train` and `sweep` both have."""

  cache: Annotated[Path, flag("The private training cache.", "CACHE")]
  rows: Rows = ""
  delta: Delta
  out: Annotated[Path, flag("Folder to write; not there yet.", "DIR")]
  start: Annotated[
    Path | None, flag("Public start: npz of one vector per class name.", "NPZ")
  ] = None
  balanced: Annotated[Switch, flag("Rare classes count like others.")] = False
  ledger: LedgerFile = None
  weak_privacy: WeakPrivacy = False
  noise_seed: NoiseSeed = None
  hosts: Annotated[
    str | None, flag("Of several: auto, or INDEX/COUNT@HOST:PORT.", "WHICH")
  ] = None
