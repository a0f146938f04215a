"""Evaluation rows with image numbers, and ReaL labels of them."""

import json
import pathlib
from typing import Any

import numpy as np

from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.reader import FeatureCache
from tests.pipeline.sample_caches import CLASSES, DIM, write_rows

ROWS = 80


def numbers() -> np.ndarray:
  """1 … 80 in the order of the cache, which is none."""
  return 1 + np.random.default_rng(1).permutation(ROWS)


def labels() -> np.ndarray:
  return np.random.default_rng(2).integers(0, CLASSES, ROWS)


def write_numbered(out: pathlib.Path, **changes: Any) -> FeatureCache:
  """Like `write_clusters`, whose heads fit it."""
  label, rng = labels(), np.random.default_rng(3)
  centres = np.random.default_rng(5).choice([-1.0, 1.0], (CLASSES, DIM))
  rows = Rows(
    embedding=(centres[label] + 0.5 * rng.standard_normal((ROWS, DIM))).astype(
      np.float32
    ),
    label=label,
    example_id=changes.pop("example_id", numbers()),
  )
  return write_rows(
    out, rows, **{"split": "test", "id_source": "file_name"} | changes
  )


def entries() -> list[list[int]]:
  """Entry i is about image i + 1: often its label, or two, or none."""
  found: list[list[int]] = [[] for _ in range(ROWS)]
  for i, (number, label) in enumerate(
    zip(numbers().tolist(), labels().tolist(), strict=True)
  ):
    if i % 8:
      other = [(label + 1) % CLASSES] if i % 4 == 2 else []
      found[number - 1] = [*other, *([label] if i % 7 else [])]
  return found


def write_entries(path: pathlib.Path, content: object = None) -> pathlib.Path:
  path.write_text(json.dumps(entries() if content is None else content))
  return path
