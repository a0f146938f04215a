"""The command line of what makes and checks caches; see `arguments`."""

import dataclasses
from pathlib import Path

from tyro.conf import FlagCreatePairsOff, Positional

from oneshot_dp.configs.extract_config import EmbeddingDtype, ExtractConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extract:
  """Run a backbone over a data set and write the embeddings to a cache.

  CONFIG is one of the experiments in configs/experiments/ or a path to a
  Python file with a get_config(). Every field of it can be changed by a flag;
  flags that are not listed here go to Beam (--runner, --direct_num_workers,
  --project …).
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
  What is found is PRIVATE and stays with the private data; with --json it is in
  the file of --out only. Duplicates are no damage: exit status 0. Copies of one
  image may differ in their last bits, so --min-cosine 0.99999 is the check to
  make; without it, only equal bits count.

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
