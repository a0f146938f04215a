"""Checks that this machine has the memory and the disk for a run."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.extract import places
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.pipeline.requests import TrainRequest
from oneshot_dp.pipeline.runs.cache_roles import CacheRole
from oneshot_dp.pipeline.runs.price import Job

# Bytes of the disk for a receipt, or for the tables and pictures of a run.
_BYTES_BESIDE_WEIGHTS = 1 << 20
_MOST_OBJECT_BYTES = 5 << 30
"""The most bytes that one PUT may have, see `object_store`."""
# Bytes of memory, measured on Linux with JAX on the CPU.
_PROCESS_BYTES = 450 * 2**20
_BYTES_PER_WEIGHT = 12 * 8
_KEY_BYTES_PER_ROW = 96
_MAX_ROWS_WITH_KEYS = 2**23
_ID_BYTES_PER_ROW = 16
_SHARDS_IN_MEMORY = 24  # of which 4 are read at once
_BYTES_BESIDE_AN_EMBEDDING = 32
_UNIT_BYTES_PER_NUMBER = 18
_UNLABELED_BYTES_PER_NUMBER = 28


def check_memory(what: str, needs: int, fix: str) -> None:
  """Refuses what needs more memory than this machine has.

  Args:
    what: what needs it, in the plural.
    needs: bytes.
    fix: what to ask for instead.

  Raises:
    InputError: it needs more than `memory_limit` says.
  """
  has = memory_limit()
  if needs > has:
    raise InputError(
      f"{what} need about {needs / 2**30:.3g} GB of memory, and this machine or"
      f" container has {has / 2**30:.3g} GB: {fix}."
    )


def memory_limit(root: Path = Path("/")) -> int:
  """Computes the bytes of memory that this process may have at most.

  Args:
    root: of the file system with /proc and /sys, where limits of control
      groups are.
  """
  # All of the machine's memory, not what is free now: that would change from
  # one try to the next.
  limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
  # A container or a job of a cluster is killed at its group's limit, however
  # large the machine is.
  for file in _limit_files(root):
    try:
      limits.append(int(file.read_text()))
    except (OSError, ValueError):  # no such group; or "max", which is no limit
      continue
  return min(limits)


def _limit_files(root: Path) -> Iterator[Path]:
  """Yields where the limits of this process's control groups may be."""
  try:
    lines = (root / "proc/self/cgroup").read_text().splitlines()
  except OSError:  # not Linux
    return
  groups = root / "sys/fs/cgroup"
  for line in lines:
    # number:controllers:/group of v1; v2 has no controllers there.
    _, controllers, group = line.split(":", 2)
    if not controllers:
      folder = groups / group.lstrip("/")
      name = "memory.max"
    elif "memory" in controllers.split(","):
      folder = groups / "memory" / group.lstrip("/")
      name = "memory.limit_in_bytes"
    else:
      continue
    # A group has the limits of all groups that it lies in, too. A container
    # may see its own group at the top, under the machine's name for it.
    yield folder / name
    for parent in folder.parents:
      if parent.is_relative_to(groups):
        yield parent / name


def memory_needed(
  head: HeadName,
  *,
  n: int,
  feature_dim: int,
  num_classes: int,
  privacy_unit: str,
  shard_rows: int = 0,
  unlabeled_rows: int = 0,
) -> int:
  """Returns about how many bytes training a head holds at most.

  Args:
    head: the name of the head.
    n: the number of private rows, public.
    feature_dim: d.
    num_classes: K.
    privacy_unit: "example", or the name of a unit that may have many rows.
    shard_rows: rows in a shard of the cache that is read; 0 for arrays.
    unlabeled_rows: public rows that the head teaches on.
  """
  # Each number is public: how much memory is asked for may not tell how many
  # rows a part has, or how many units. Hence n, and not the rows that were
  # read.
  needed = _PROCESS_BYTES
  needed += _BYTES_PER_WEIGHT * num_classes * feature_dim
  # Ids of all rows are compared, to find one that comes twice; keys of rows,
  # which the ledger looks up, are taken in pieces.
  needed += _ID_BYTES_PER_ROW * n
  needed += _KEY_BYTES_PER_ROW * min(n, _MAX_ROWS_WITH_KEYS)
  row_bytes = 4 * feature_dim + _BYTES_BESIDE_AN_EMBEDDING
  needed += _SHARDS_IN_MEMORY * shard_rows * row_bytes
  if privacy_unit != "example":
    # Rows of a unit are gathered, and replaced by a mean row of 8 bytes a
    # number for each of its classes.
    needed += _UNIT_BYTES_PER_NUMBER * n * feature_dim
  # Public rows are held in float32, and at norm 1 and centered in float64.
  needed += _UNLABELED_BYTES_PER_NUMBER * unlabeled_rows * feature_dim
  return needed + HEADS[head].extra_memory(
    n=n,
    feature_dim=feature_dim,
    num_classes=num_classes,
    has_units=privacy_unit != "example",
  )


def check_memory_of_heads(
  request: TrainRequest, train: CacheRole, unlabeled: CacheRole | None
) -> None:
  """Refuses heads that this machine has no memory for, from public facts.

  Args:
    request: the kinds of heads, and how many of each are kept.
    train: the training cache.
    unlabeled: public rows that heads learn from as well, if there are any.

  Raises:
    InputError: it takes more than this machine or container has.
  """
  info = train.cache.info
  # A shard may be smaller than it was allowed to be.
  shard_rows = min(info.shard_rows, info.source_num_examples)
  largest = 0
  for head in request.heads:
    needs = memory_needed(
      head,
      n=train.cache.n,
      feature_dim=info.feature_dim,
      num_classes=info.num_classes,
      privacy_unit=info.unit,
      shard_rows=shard_rows,
      unlabeled_rows=unlabeled.cache.num_rows if unlabeled else 0,
    )
    largest = max(largest, needs)
  # All trained heads stay in memory until they are scored; float32.
  num_heads = len(request.heads) * len(request.epsilons) * request.num_draws
  weights = 4 * (info.feature_dim + 1) * info.num_classes * num_heads
  check_memory(
    f"heads of {info.feature_dim:,} x {info.num_classes:,} from"
    f" {train.cache.n:,} rows",
    largest + weights,
    "ask for fewer at once, --head lamb, or a smaller embedding",
  )


def check_object_size(request: TrainRequest, info: CacheInfo) -> None:
  """Refuses a bucket for heads that no store takes as an object.

  Args:
    request: where heads go, and which; on a disk there is no such limit.
    info: of the training cache, by which the size of a head is known.

  Raises:
    InputError: a head takes more bytes than an object may have.
  """
  # A head that is refused after the charge could never be shown.
  needs = _bytes_of_head(request, info)
  if isinstance(request.out, places.Url) and needs > _MOST_OBJECT_BYTES:
    raise InputError(
      f"{request.out}: a head of {info.feature_dim:,} x {info.num_classes:,}"
      f" takes {needs / 2**30:.3g} GB, and a store takes"
      f" {_MOST_OBJECT_BYTES >> 30} GB at once: choose a place on a disk."
    )


def disk_room(
  request: TrainRequest, info: CacheInfo, jobs: Sequence[Job]
) -> int:
  """Computes the bytes that all files of the run take at most.

  Args:
    request: the kinds of heads and their ε.
    info: of the training cache: the shape of heads, and names of classes.
    jobs: what is trained; each makes a head for every ε.

  Returns:
    Bytes, with room for one head more, for tables and pictures.
  """
  # A baseline makes one head, and counts as if it made one for each ε. One more
  # stands for the tables and pictures of a sweep.
  num_heads = len(jobs) * len(request.epsilons)
  return (num_heads + 1) * _bytes_of_head(request, info)


def _bytes_of_head(request: TrainRequest, info: CacheInfo) -> int:
  """Computes the bytes that the files of a head take at most.

  Float32 weights and float64 estimates of them (24 bytes a weight, with what a
  safetensors file adds), what else its kind saves, the names of classes in
  receipt and card, and the text of these.
  """
  weights = 24 * (info.feature_dim + 1) * info.num_classes
  extra = max(
    HEADS[head].extra_disk(feature_dim=info.feature_dim)
    for head in request.heads
  )
  class_names = sum(len(name.encode()) for name in info.class_names)
  return weights + extra + 12 * class_names + _BYTES_BESIDE_WEIGHTS
