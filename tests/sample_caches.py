"""Small real caches that a head can learn from, made in a moment."""

import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneshot_dp.configs.extract_config import FIXED_GRAPH, NO_OWNER
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.extract.cache.write import write_cache

DIM = 16
BACKBONE = {
  "name": "clusters",
  "layer": "none",
  "weights_sha256": "0".zfill(64),
}


def clusters(
  counts: Sequence[int] = (60, 50, 40, 30),
  d: int = DIM,
  *,
  seed: int = 0,
  scatter: float = 0.5,
) -> tuple[np.ndarray, np.ndarray]:
  """Embeddings [n, d] and labels [n]: one noisy direction for each class.

  The directions are those of the classes whatever the seed, so a head that was
  trained on one seed's rows is right about another's.
  """
  rng = np.random.default_rng([seed, len(counts)])
  label = rng.permutation(np.repeat(np.arange(len(counts)), counts))
  # Signs, because the one step follows the signs of the gradient.
  centres = np.random.default_rng(5).choice([-1.0, 1.0], (len(counts), d))
  noise = scatter * rng.standard_normal((len(label), d))
  return (centres[label] + noise).astype(np.float32), label


def weight_divisors(owners: np.ndarray) -> np.ndarray:
  """How many rows the owner of most rows has, of those of each row [n, m]."""
  count = Counter(owners.ravel().tolist())
  divisors = []
  for row in owners.tolist():
    divisors.append(max(count[owner] for owner in row if owner != NO_OWNER))
  return np.array(divisors, np.uint32)


def write_rows(
  out: pathlib.Path,
  embedding: np.ndarray,
  label: np.ndarray,
  *,
  unit_id: np.ndarray | None = None,
  **changes: Any,
) -> FeatureCache:
  """A cache of these rows; `changes` are fields of its `CacheInfo`.

  With `unit_id` [n, m], rows have several owners.
  """
  num_classes = changes.pop("num_classes", int(label.max(initial=0)) + 1)
  names = tuple(f"class {i}" for i in range(num_classes))
  fields: dict[str, Any] = {
    "dataset": "clusters",
    "split": "train",
    "source_num_examples": len(label),
    "feature_dim": embedding.shape[1],
    "class_names": names,
    "backbone": BACKBONE,
    "embedding_dtype": "float32",
    "keys": "embedding",
    "shard_rows": 64,
    "unit": "example" if unit_id is None else "user",
  } | changes
  rows = {"embedding": embedding, "label": label}
  if unit_id is not None:
    rows["unit_id"] = unit_id
    if unit_id.ndim == 2:
      rows["weight_divisor"] = weight_divisors(unit_id)
      fields["unit"] += FIXED_GRAPH
      fields["owners_per_row"] = unit_id.shape[1]
  return write_cache(str(out), CacheInfo(**fields), [rows])


def write_clusters(
  out: pathlib.Path,
  counts: Sequence[int] = (60, 50, 40, 30),
  d: int = DIM,
  *,
  seed: int = 0,
  scatter: float = 0.5,
  **changes: Any,
) -> FeatureCache:
  """A cache of `clusters`; other seeds are other rows of the same classes."""
  rows = clusters(counts, d, seed=seed, scatter=scatter)
  return write_rows(out, *rows, num_classes=len(counts), **changes)
