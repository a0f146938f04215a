"""Flags that several commands have, each with its help."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, arg

from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  PublicUse,
  RelationName,
)

BudgetCache = Annotated[
  Path, arg(help="A cache of the private data, of whichever backbone.")
]
LedgerDir = Annotated[
  Path | None,
  arg(
    help="Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's"
    " state folder."
  ),
]
Weights = Annotated[
  str | None,
  arg(
    name="backbone.weights",
    aliases=["--weights"],
    help="Where the backbone's weights are: a path, https://, gs:// or hf://."
    " Default: where this machine last read the file of that SHA-256, which is"
    " checked in any case.",
  ),
]
BackboneFile = Annotated[
  str | None,
  arg(
    name="backbone.name",
    aliases=["--backbone"],
    help="FILE.py:FUNCTION, where that is what the head was trained on; its"
    " SHA-256 is checked.",
  ),
]
NumDraws = Annotated[
  int,
  arg(
    help="Independent draws of the noise, to see the spread; each is charged."
  ),
]
NotTrainedOn = Annotated[
  FlagCreatePairsOff[bool],
  arg(
    help="No row of the cache, or of its units, trained this head, or any that"
    " matters: for where the ledger, which would know, is not at hand."
  ),
]
Relation = Annotated[
  RelationName,
  arg(
    help="Which data sets count as neighbours, n being known: one example, or"
    " nothing in its place (replace-special), or another (replace-one)."
  ),
]
LargeDelta = Annotated[
  FlagCreatePairsOff[bool],
  arg(help="Insist on a delta of 1/n or more, which protects nobody."),
]
NoiseSeed = Annotated[
  int | None,
  arg(help="Research only: noise from this seed, which is NOT PRIVATE."),
]
OnHosts = Annotated[
  str | None,
  arg(
    help="Several machines read the rows, each a part: start the same command"
    " on all. auto where SLURM, GKE, Cloud TPU or JAX_COORDINATOR_ADDRESS,"
    " JAX_NUM_PROCESSES and JAX_PROCESS_ID say which this is; or"
    " INDEX/COUNT@HOST:PORT, an address of host 0 on a trusted network. Host 0"
    " alone draws noise, charges and writes."
  ),
]
RealLabelsFile = Annotated[
  Path | None,
  arg(
    help="ImageNet-ReaL's file, a JSON list of lists of labels: score by these"
    " too. A row's example_id must be the number in its image's name, from 1:"
    " extract with --source.id-key file_name or --source.id-from-name."
  ),
]


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
class RunFlags:
  """What every command has that trains many heads and scores them."""

  cache: Path
  """The private training cache."""
  eval_cache: Path
  """The labelled cache that heads are scored on."""
  out: Path
  """Directory of the results, not there yet."""
  num_draws: NumDraws = 1
  baseline: FlagCreatePairsOff[bool] = False
  """Also train a head without noise (epsilon = infinity): NOT PRIVATE."""
  ledger_dir: LedgerDir = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadFlags:
  """What every command has that trains a head of one's choice."""

  privacy: OmitArgPrefixes[PrivacyConfig]
  training: Annotated[HeadConfig, arg(name="")]
  public: OmitArgPrefixes[PublicOptions]
  max_rows_per_unit: int | None = None
  """For the paper's step, where the cache has units (users, patients): sum at
  most this many rows of each, chosen by ids alone, with so many times the
  noise. Default: all rows of a unit are summed and clipped as one vector, with
  the noise of one, which is better but for its memory, where the rows of units
  are scattered. Either way the guarantee covers all rows of a unit. An epsilon
  per example is better only where no two rows can be of one person; then import
  without unit_id."""
