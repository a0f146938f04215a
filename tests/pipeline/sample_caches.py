"""Small feature caches that a head can learn from."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.extract.cache.shard_writer import write_shard
from oneshot_dp.extract.cache.writer import begin, finish
from tests.extract.caches import make_identity, part

DIM = 6
CLASSES = 4


def write_clusters(
  out: pathlib.Path,
  counts: Sequence[int] = (60, 50, 40, 30),
  d: int = DIM,
  **changes: Any,
) -> FeatureCache:
  """One noisy direction per class, in a shuffled order; always the same."""
  rng = np.random.default_rng(len(counts))
  label = rng.permutation(np.repeat(np.arange(len(counts)), counts))
  # Signs, because the one step follows the signs of the gradient.
  centres = np.random.default_rng(5).choice([-1.0, 1.0], (len(counts), d))
  noise = 0.5 * rng.standard_normal((len(label), d))
  rows = Rows(
    embedding=(centres[label] + noise).astype(np.float32),
    label=label,
    example_id=np.arange(len(label)),
    unit_id=changes.pop("unit_id", None),
  )
  return write_rows(out, rows, **changes)


def write_damaged(out: pathlib.Path) -> FeatureCache:
  """An evaluation cache of which one bit is not as it was."""
  cache = write_clusters(out, split="test")
  shard = cache.path / cache.shards[-1].file
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 1
  shard.write_bytes(content)
  return cache


def write_rows(out: pathlib.Path, rows: Rows, **changes: Any) -> FeatureCache:
  fields = {"shard_rows": 64} | changes
  n, d = rows.embedding.shape
  identity = make_identity(n, d, **fields)
  assert begin(out, identity)
  for i in range(identity.num_shards):
    write_shard(out, identity, i, [part(rows, identity.shard_range(i))])
  finish(out, identity)
  return open_cache(out)
