"""The command line of what trains heads; see `arguments`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from oneshot_dp.configs.head_config import (
  HeadConfig,
  MethodName,
  PrivacyConfig,
  PublicUse,
  ReleaseOrder,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicOptions:
  """Public rows to centre private ones by; the head is for rows as they are.

  Attributes:
    public_cache: a cache of public rows, of the same backbone as the private
      ones and of another data set, whose mean is taken off every private row.
      The more alike the images, the better. Heads of one step need it where
      embeddings are non-negative (bit_*, nf_resnet*, nfnet*); of signed ones,
      the mean of quite other images cost them 1 to 2 points. It made no
      difference to whitened heads. Costs no budget.
    public_statistics: what to take. "mean-and-covariance" also damps the
      directions in which public images vary most: up to 5 points better for
      heads of one step, but no help against quite other images. Default: the
      mean.
  """

  public_cache: Path | None = None
  public_statistics: PublicUse | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
  """Train one differentially private head from a cache.

  Example: oneshot-dp train --cache caches/train --epsilon 4 --delta 1e-6
  --out heads/epsilon-4
  """

  cache: Path
  """The private training cache."""
  epsilon: float
  """Privacy budget of this head; smaller is more private."""
  out: Path
  """Directory of the head, not there yet."""
  privacy: OmitArgPrefixes[PrivacyConfig]
  max_rows_per_unit: int | None = None
  """Only where the cache has units coarser than an example (users, patients):
  sum at most this many rows of each, chosen by ids alone, with so many times
  the noise. Default: all rows of a unit are summed and clipped as one vector,
  with the noise of one, which is better but for its memory, where the rows of
  units are scattered. Either way the guarantee covers all rows of a unit. An
  epsilon per example is better only where no two rows can be of one person;
  then import without unit_id."""
  training: Annotated[HeadConfig, tyro.conf.arg(name="")]
  public: OmitArgPrefixes[PublicOptions]
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
  """Train heads for many epsilons from one cache, and score them.

  Writes results.csv, results.json, accuracy.png and every head with its
  receipt. Nested releases (the default of one-step heads) together cost the
  largest epsilon, once per draw; independent ones compose. The labels of the
  evaluation cache are treated as public, unless --private-eval is given.

  Example: oneshot-dp sweep --cache caches/train --eval-cache caches/test
  --epsilons 0.25 0.5 1 2 4 8 --delta 1e-5 --out results
  """

  cache: Path
  """The private training cache."""
  eval_cache: Path
  """The labelled cache that heads are scored on."""
  epsilons: tuple[float, ...]
  """Privacy budgets, one head each."""
  out: Path
  """Directory of the results, not there yet."""
  privacy: OmitArgPrefixes[PrivacyConfig]
  max_rows_per_unit: int | None = None
  """Only where the cache has units coarser than an example (users, patients):
  sum at most this many rows of each, chosen by ids alone, with so many times
  the noise. Default: all rows of a unit are summed and clipped as one vector,
  with the noise of one, which is better but for its memory, where the rows of
  units are scattered. Either way the guarantee covers all rows of a unit. An
  epsilon per example is better only where no two rows can be of one person;
  then import without unit_id."""
  num_draws: int = 1
  """Independent draws of the noise, to see the spread; each is charged."""
  release: ReleaseOrder | None = None
  """Whether smaller epsilons reuse the noise of larger ones. Default: nested
  where the head is of one step, independent otherwise."""
  baseline: FlagCreatePairsOff[bool] = False
  """Also train a head without noise (epsilon = infinity): NOT PRIVATE."""
  private_eval: float | None = None
  """Privacy budget of all accuracies together: the labels of the evaluation
  cache are private, and noisy counts are published. Charged at delta to the
  ledger of its data set, which is the ledger of the training too where both
  are splits of one data set."""
  training: Annotated[HeadConfig, tyro.conf.arg(name="")]
  public: OmitArgPrefixes[PublicOptions]
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare:
  """Train every kind of head for many epsilons, and score them side by side.

  Writes one results.csv, results.json and accuracy.png, and every head with its
  receipt. Heads of one step (lamb, adam, momentum) are made of the same nested
  releases and together cost the largest epsilon, once per draw; so do those of
  least squares, with releases of their own; whitened and multi-step heads have
  noise of their own each. All of it composes, is charged, or refused by a cap,
  before any noise is drawn, and the table says what it comes to. All heads have
  their default settings. The labels of the evaluation cache are treated as
  public.

  Example: oneshot-dp compare --cache caches/train --eval-cache caches/test
  --epsilons 0.5 2 8 --delta 1e-5 --out comparison
  """

  cache: Path
  """The private training cache."""
  eval_cache: Path
  """The labelled cache that heads are scored on; its labels are treated as
  public."""
  epsilons: tuple[float, ...]
  """Privacy budgets, one head of each kind for each."""
  out: Path
  """Directory of the results, not there yet."""
  privacy: OmitArgPrefixes[PrivacyConfig]
  heads: tuple[MethodName, ...] | None = None
  """What to compare; default: all that the cache allows."""
  public: OmitArgPrefixes[PublicOptions]
  num_draws: int = 1
  """Independent draws of the noise, to see the spread; each is charged."""
  baseline: FlagCreatePairsOff[bool] = False
  """Also fit a logistic regression without noise, as the ceiling: NOT
  PRIVATE."""
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""
