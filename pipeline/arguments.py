"""The command line, as types: one dataclass for each command.

The docstrings are the help texts.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional

from configs.schema import (
  EmbeddingDtype,
  ExtractConfig,
  HeadConfig,
  PrivacyConfig,
  ReleaseOrder,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extract:
  """Run a backbone over a data set and write the embeddings to a cache.

  CONFIG is one of the experiments in configs/ or a path to a Python file with
  a get_config(). Every field of it can be changed by a flag; flags that are
  not listed here go to Beam (--runner, --direct_num_workers, --project …).
  Run the same command again to resume a job that was stopped.

  Example: oneshot-dp extract cifar10_vit_ti16 --backbone.weights vit_ti16.npz
  --split train --out caches/cifar10-train
  """

  config: str
  out: Path
  job: ExtractConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportFeatures:
  """Turn ready-made embeddings in an npz file into a cache.

  Arrays: embedding [n, d], label [n], optional example_id [n] and class_names
  [K]. Where they are absent, SPLIT_embedding, SPLIT_label … are used.

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

  Example: oneshot-dp verify caches/train
  """

  path: Positional[Path]
  """Directory of a cache or of a head."""


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
  training: OmitArgPrefixes[HeadConfig]
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
  """Train heads for many epsilons from one pass over a cache, and score them.

  Writes results.csv, results.json, accuracy.png and every head with its
  receipt. Nested releases (the default) together cost the largest epsilon,
  once per seed; independent ones compose. The labels of the evaluation cache
  are treated as public.

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
  num_seeds: int = 1
  """Independent draws of the noise, to see the spread; each is charged."""
  release: ReleaseOrder = "nested"
  """Whether smaller epsilons reuse the noise of larger ones."""
  baseline: FlagCreatePairsOff[bool] = False
  """Also train a head without noise (epsilon = infinity): NOT PRIVATE."""
  training: OmitArgPrefixes[HeadConfig]
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
  """Score a head on a cache: top-1 and top-5 accuracy.

  The labels of the cache are treated as public.

  Example: oneshot-dp evaluate --head heads/epsilon-4 --cache caches/test
  """

  head: Path
  """Directory of the head."""
  cache: Path
  """The labelled cache."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
  """List the releases made from a cache's private data and what they add up to.

  Example: oneshot-dp budget --cache caches/train
  """

  cache: Path
  """A cache of the private data, of whichever backbone."""
  delta: float | None = None
  """Delta of the total; default: the smallest that was used."""
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo:
  """The whole pipeline on scikit-learn's handwritten digits, with no downloads.

  Example: oneshot-dp demo --out demo
  """

  out: Path = Path("demo")
  """Where data, caches and results go; a second run reuses the caches."""


Command = (
  Annotated[Extract, tyro.conf.subcommand("extract")]
  | Annotated[ImportFeatures, tyro.conf.subcommand("import-features")]
  | Annotated[Inspect, tyro.conf.subcommand("inspect")]
  | Annotated[Verify, tyro.conf.subcommand("verify")]
  | Annotated[Train, tyro.conf.subcommand("train")]
  | Annotated[Sweep, tyro.conf.subcommand("sweep")]
  | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
  | Annotated[Budget, tyro.conf.subcommand("budget")]
  | Annotated[Demo, tyro.conf.subcommand("demo")]
)
