"""The command line of what scores heads and keeps count; see `arguments`."""

import dataclasses
from pathlib import Path
from typing import Literal

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional

from oneshot_dp.configs.head_config import (
  PrivacyConfig,
  RelationName,
  StepsConfig,
)

AuditedHead = Literal["lamb", "whitened", "least-squares", "multi-step"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
  """Score a head on a cache: top-1 and top-5 accuracy.

  The labels of the cache are treated as public, unless --private-eval is given.

  Example: oneshot-dp evaluate heads/epsilon-4 --cache caches/test

  Example: oneshot-dp evaluate heads/epsilon-4 --cache caches/test
  --private-eval 0.5 --delta 1e-6
  """

  head: Positional[Path]
  """Directory of the head."""
  cache: Path
  """The labelled cache."""
  real_labels: Path | None = None
  """ImageNet-ReaL's file, a JSON list of lists of labels: score by these too. A
  row's example_id must be the number in its image's name, from 1: extract with
  --source.id-key file_name or --source.id-from-name."""
  private_eval: float | None = None
  """Privacy budget of the accuracies: the labels are private, and noisy counts
  are published. Each evaluation is charged to the ledger of the cache's data
  set, which is the ledger of the training too where both are splits of one data
  set; score many heads at once with `sweep`."""
  delta: float | None = None
  """Delta of --private-eval; well below 1 / rows of the cache."""
  neighboring_relation: RelationName = "add-or-remove-one"
  """Which data sets count as neighbours; the noise is the same for all."""
  noise_seed: int | None = None
  """Research only: noise from this seed, which is NOT PRIVATE."""
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
  """List the releases made from a cache's private data and what they add up to.

  One line for each, then their exact composition and what is left of the cap,
  if one was set: see oneshot-dp budget set --help.

  Example: oneshot-dp budget --cache caches/train
  """

  cache: Path
  """A cache of the private data, of whichever backbone."""
  delta: float | None = None
  """Delta of the total; default: the cap's, or else the smallest that was
  used."""
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetSet:
  """Cap what may ever be released from a cache's private data.

  All releases together are kept (max-epsilon, max-delta)-private, by their
  exact composition, whatever the delta that each was stated at. A train or
  sweep that would go over is refused before anything is charged or any noise is
  drawn, and so are baselines and noise from a seed, which no epsilon covers. A
  later cap replaces this one; the ledger keeps both, and shows it when the cap
  was raised.

  Example: oneshot-dp budget set --cache caches/train --max-epsilon 8
  --max-delta 1e-5
  """

  cache: Path
  """A cache of the private data, of whichever backbone."""
  max_epsilon: float
  """Epsilon of everything together."""
  max_delta: float
  """Delta of everything together: the delta at which max-epsilon must hold."""
  neighboring_relation: RelationName = "add-or-remove-one"
  """Which data sets count as neighbours."""
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
  """Attack releases of synthetic rows to bound epsilon from below.

  Runs the clipped sums, the noise and the release that train runs, on rows that
  are made up: no private data is read and nothing is charged. Exit status 1 if
  the bound is above epsilon. A bound below it is consistent with the claim and
  does not prove it.

  Example: oneshot-dp audit --epsilon 1 --delta 1e-5

  Example: oneshot-dp audit --head multi-step --steps.sampling poisson
  --steps.batch-size 16 --epsilon 4 --delta 1e-5
  """

  epsilon: float
  """The claim to test."""
  privacy: OmitArgPrefixes[PrivacyConfig]
  head: AuditedHead = "lamb"
  """What to attack: "lamb", the release that all heads of one step are made of;
  or heads of another kind as they are published, of 2 classes, 2 features."""
  steps: StepsConfig = dataclasses.field(default_factory=StepsConfig)
  """Of multi-step heads, on 64 rows."""
  runs: int | None = None
  """Releases with the canary, and as many without it; default: 600 of heads of
  many steps, else 10000."""
  confidence: float = 0.95
  """Of all bounds together."""
  canaries: int | None = None
  """Only with lamb: examples to tell apart in a single release; default:
  10000."""
  num_classes: int | None = None
  """Only with lamb: classes of the synthetic rows; default: 4."""
  feature_dim: int | None = None
  """Only with lamb: numbers in an embedding of theirs; default: 8."""
  l2_clip_norm: float | None = None
  """Only with lamb: largest norm of a per-example gradient; default: 1."""
  train_bias: FlagCreatePairsOff[bool] = False
  """Only with lamb: audit the gradient of the bias too."""
