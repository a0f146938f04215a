"""The command line, as types: one dataclass for each command.

The docstrings are the help texts. Nothing here may import what is slow to
import (JAX, Beam, TFDS, dp_accounting …): `--help` need not wait for them.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from oneshot_dp.pipeline.commands.ablation_arguments import Ablate
from oneshot_dp.pipeline.commands.cache_arguments import (
  Backbones,
  Extract,
  ImportFeatures,
  Inspect,
  Verify,
)
from oneshot_dp.pipeline.commands.figure_arguments import Figures
from oneshot_dp.pipeline.commands.privacy_arguments import (
  Audit,
  Budget,
  BudgetSet,
  Evaluate,
)
from oneshot_dp.pipeline.commands.report_arguments import Report
from oneshot_dp.pipeline.commands.training_arguments import (
  Compare,
  Sweep,
  Train,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo:
  """The whole pipeline on scikit-learn's handwritten digits, with no downloads.

  Example: oneshot-dp demo --out demo
  """

  out: Path = Path("demo")
  """Where data, caches and results go; a second run reuses the caches."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
  """Print a script that lets a shell complete commands, flags and choices.

  For this shell only: source <(oneshot-dp completion bash). For good, write it
  where your shell looks for it: for bash that is
  ~/.local/share/bash-completion/completions/oneshot-dp; for zsh, source it in
  ~/.zshrc.

  Example: oneshot-dp completion bash
  """

  shell: Positional[Literal["bash", "zsh"]]
  """Which shell."""


COMMANDS: Mapping[str, type] = {
  "extract": Extract,
  "backbones": Backbones,
  "import-features": ImportFeatures,
  "inspect": Inspect,
  "verify": Verify,
  "train": Train,
  "sweep": Sweep,
  "compare": Compare,
  "figures": Figures,
  "ablate": Ablate,
  "evaluate": Evaluate,
  "report": Report,
  "budget": Budget,
  "budget set": BudgetSet,
  "audit": Audit,
  "demo": Demo,
  "completion": Completion,
}
"""By name, in the order of the help; "budget set" is two words."""
