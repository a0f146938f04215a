"""The command line, as types: one dataclass for each command.

The docstrings are the help texts.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from pipeline.ablation_arguments import Ablate
from pipeline.cache_arguments import (
  Backbones,
  Extract,
  ImportFeatures,
  Inspect,
  Verify,
)
from pipeline.figure_arguments import Figures
from pipeline.privacy_arguments import Audit, Budget, Evaluate
from pipeline.training_arguments import Compare, Sweep, Train


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo:
  """The whole pipeline on scikit-learn's handwritten digits, with no downloads.

  Example: oneshot-dp demo --out demo
  """

  out: Path = Path("demo")
  """Where data, caches and results go; a second run reuses the caches."""


Command = (
  Annotated[Extract, tyro.conf.subcommand("extract")]
  | Annotated[Backbones, tyro.conf.subcommand("backbones")]
  | Annotated[ImportFeatures, tyro.conf.subcommand("import-features")]
  | Annotated[Inspect, tyro.conf.subcommand("inspect")]
  | Annotated[Verify, tyro.conf.subcommand("verify")]
  | Annotated[Train, tyro.conf.subcommand("train")]
  | Annotated[Sweep, tyro.conf.subcommand("sweep")]
  | Annotated[Compare, tyro.conf.subcommand("compare")]
  | Annotated[Figures, tyro.conf.subcommand("figures")]
  | Annotated[Ablate, tyro.conf.subcommand("ablate")]
  | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
  | Annotated[Budget, tyro.conf.subcommand("budget")]
  | Annotated[Audit, tyro.conf.subcommand("audit")]
  | Annotated[Demo, tyro.conf.subcommand("demo")]
)
