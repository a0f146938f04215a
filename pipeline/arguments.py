"""The command line, as types: one dataclass for each command.

The docstrings are the help texts.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional

from configs.schema import (
  EmbeddingDtype,
  ExtractConfig,
  HeadConfig,
  MethodName,
  PrivacyConfig,
  RelationName,
  ReleaseOrder,
  StepsConfig,
)
from pipeline.ablation_arguments import Ablate
from pipeline.figure_arguments import Figures
from pipeline.public_record import PublicUse

AuditedHead = Literal["lamb", "whitened", "least-squares", "multi-step"]


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
class Extract:
  """Run a backbone over a data set and write the embeddings to a cache.

  CONFIG is one of the experiments in configs/ or a path to a Python file with
  a get_config(). Every field of it can be changed by a flag; flags that are
  not listed here go to Beam (--runner, --direct_num_workers, --project …).
  Run the same command again to resume a job that was stopped.

  With --views 16 a row is the mean embedding of 16 random crops of its image.

  Example: oneshot-dp extract cifar10_vit_ti16 --backbone.weights vit_ti16.npz
  --split train --out caches/cifar10-train
  """

  config: str
  out: Path
  job: ExtractConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backbones:
  """List the backbones, or say all about one.

  Of one: its weights files, the embeddings that can be read from it, how many
  numbers each has, and the preprocessing that its weights were made for.

  Example: oneshot-dp backbones vit_b16
  """

  name: Positional[str | None] = None
  """A name such as vit_b16; default: all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportFeatures:
  """Turn ready-made embeddings in an npz file into a cache.

  Arrays: embedding [n, d], label [n], optional example_id [n], unit_id [n] and
  class_names [K]. Where they are absent, SPLIT_embedding, SPLIT_label … are
  used. A unit_id says whose a row is, where somebody may have many rows.

  Example: oneshot-dp import-features features.npz --split train
  --num-classes 10 --out caches/train
  """

  file: Positional[Path]
  """The npz file."""
  out: Path
  """Directory of the cache."""
  split: str = "train"
  """Name of the split."""
  dataset_name: str | None = None
  """Public name of the data set; default: the name of the file. Releases are
  accounted per name and split: keep it the same for the same private data."""
  num_classes: int | None = None
  """Number of classes, where the file has no class_names."""
  backbone_name: str | None = None
  """What made the embeddings; heads only fit caches of the same name."""
  unit_name: str | None = None
  """What unit_id numbers (user, patient …); public, needed where there is a
  unit_id."""
  embedding_dtype: EmbeddingDtype | None = None
  """Precision in the cache; default: the file's own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspect:
  """Print what is in a cache: data set, backbone, sizes, fingerprints.

  Example: oneshot-dp inspect caches/train
  """

  cache: Positional[Path]
  """Directory of the cache."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verify:
  """Check a cache (every checksum, count, norm and id) or a head (its receipt).

  Exit status 2 if anything is wrong, with one line for each fault.

  With --duplicates, look for rows of a cache that are one image twice instead:
  a receipt's epsilon is per row, and two rows have twice the influence of one.
  What is found is PRIVATE and stays with the private data. Duplicates are no
  damage: exit status 0. Copies of one image may differ in their last bits, so
  --min-cosine 0.99999 is the check to make; without it, only equal bits count.

  Example: oneshot-dp verify caches/train

  Example: oneshot-dp verify caches/train --duplicates --min-cosine 0.99999
  --against caches/public --out duplicates.csv
  """

  path: Positional[Path]
  """Directory of a cache or of a head."""
  duplicates: FlagCreatePairsOff[bool] = False
  """Look for duplicate rows instead."""
  against: Path | None = None
  """Another cache of the same backbone (public images, say): look for rows of
  the one that are in the other, to remove them from the public set."""
  min_cosine: float | None = None
  """Count rows as duplicates from this cosine of their embeddings on, in (0,
  1]; all pairs are decided exactly. Lower ones take longer. Default: equal
  bits."""
  out: Path | None = None
  """CSV file for all pairs found (mode 0600): PRIVATE, not there yet."""
  ledger_dir: Path | None = None
  """Where ledgers are kept, to look up what paid for a head; default:
  $ONESHOT_DP_LEDGER_DIR or the user's state folder."""


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
  largest epsilon, once per seed; independent ones compose. The labels of the
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
  num_seeds: int = 1
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
  releases and together cost the largest epsilon, once per seed; so do those of
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
  num_seeds: int = 1
  """Independent draws of the noise, to see the spread; each is charged."""
  baseline: FlagCreatePairsOff[bool] = False
  """Also fit a logistic regression without noise, as the ceiling: NOT
  PRIVATE."""
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
  """Score a head on a cache: top-1 and top-5 accuracy.

  The labels of the cache are treated as public, unless --private-eval is given.

  Example: oneshot-dp evaluate --head heads/epsilon-4 --cache caches/test

  Example: oneshot-dp evaluate --head heads/epsilon-4 --cache caches/test
  --private-eval 0.5 --delta 1e-6
  """

  head: Path
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
