"""The command line of `ablate`; see `arguments`."""

import dataclasses
from pathlib import Path
from typing import get_args

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from oneshot_dp.configs.head_config import AblationAxis, PrivacyConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ablate:
  """Change one thing at a time in the paper's single step, and score it.

  The base is one full-batch step of LAMB from zero weights and bias -10, with
  gradients of the sigmoid cross-entropy clipped to norm 1. Writes results.csv,
  results.json, ablation.png, and every head with its receipt. Every line of the
  table is a release of its own; all of them compose, are checked against the
  cap together before the first is charged, and the table says what they come
  to. The labels of the evaluation cache are treated as public.

  Example: oneshot-dp ablate --cache caches/train --eval-cache caches/test
  --epsilon 8 --delta 1e-6 --baseline --out ablation
  """

  cache: Path
  """The private training cache."""
  eval_cache: Path
  """The labelled cache that heads are scored on; its labels are treated as
  public."""
  epsilon: float
  """Privacy budget of every head."""
  out: Path
  """Directory of the results, not there yet."""
  privacy: OmitArgPrefixes[PrivacyConfig]
  axes: tuple[AblationAxis, ...] = get_args(AblationAxis)
  """What to change."""
  init_scales: tuple[float, ...] = (1e-4, 1e-2, 1.0)
  """Standard deviations of the random weights to start from; LeCun's is tried
  besides."""
  epochs: tuple[int, ...] = (10,)
  """Passes over the rows, of more than one."""
  batch_sizes: tuple[int, ...] | None = None
  """Rows of a step, on average. Each is tried as Poisson samples and as a
  partition of all rows. Default: a tenth of the rows."""
  clip_norms: tuple[float, ...] = (0.1, 10.0)
  """Largest norm of one example's gradient."""
  learning_rate: float | None = None
  """Of the heads whose accuracy depends on it: several steps, or random weights
  to start from. Default: a rule of n, K and the noise."""
  other_caches: tuple[Path, ...] = ()
  """The same images extracted at other resolutions, or otherwise."""
  other_eval_caches: tuple[Path, ...] = ()
  """What the heads of those are scored on, in the same order."""
  num_draws: int = 1
  """Independent draws of the noise, to see the spread; each is charged."""
  baseline: FlagCreatePairsOff[bool] = False
  """Also train every head without noise (epsilon = infinity): NOT PRIVATE."""
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""
