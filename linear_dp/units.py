r"""Privacy units of many rows: the mean row of each of a unit's classes.

For each class c of a unit, the mean of its k_c rows stands for them, at the
integer weight ⌊W·k_c/k⌋ (for class sums, whose blocks of classes are
orthogonal, ⌊W·k_c/√Σk_c²⌋). So whatever a row of norm 1 adds to a sum, a unit
adds no more:

    ‖Σ_c left_c ⊗ row_c‖ ≤ Σ_c w_c·R ≤ W·R

All of it is of exact integers, so the order of rows does not matter.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int16, Int64

from oneshot_dp.linear_dp.data import Data
from oneshot_dp.linear_dp.integers import R
from oneshot_dp.linear_dp.rows import Chunk

_AT_ONCE = 2**15


def mean_rows(
  chunks: Iterable[tuple[Chunk, np.ndarray]],
  data: Data,
  most: float,
  power: int,
) -> Iterator[tuple[np.ndarray, ...]]:
  """Columns z int16 [P, d], label, weight int32 [P] of all units' classes.

  Formal guarantees: a unit's are functions of its own rows alone; its weights
  are integers with Σ w^power ≤ W^power; rows of zeros do not count.

  In memory: the rows as int16, and what becomes of them. Of several hosts, each
  is given all rows and keeps those of its own units.
  """
  parts = []
  for chunk, unit_id in chunks:
    own = (np.asarray(chunk.weight) > 0) & data.hosts.own_units(unit_id)
    columns = np.asarray(chunk.row), np.asarray(chunk.label), unit_id
    parts.append([column[own] for column in columns])
  if not parts:
    return
  row, label, unit = (np.concatenate(p) for p in zip(*parts, strict=True))
  parts.clear()
  order = np.lexsort((label, unit))
  label, unit = label[order], unit[order]
  first = np.r_[True, (np.diff(unit) != 0) | (np.diff(label) != 0)]
  start = np.flatnonzero(first[: len(unit)])
  count = np.diff(start, append=len(unit))
  weight = _weights(data.weight, unit[start], count, power)
  for i in range(0, len(start), _AT_ONCE):
    some = slice(i, i + _AT_ONCE)
    rows = slice(start[i], start[i] + count[some].sum())
    total = np.add.reduceat(
      row[order[rows]], start[some] - start[i], axis=0, dtype=np.int64
    )
    z = _means(total, count[some], most)
    yield z, label[start[some]], (weight[some] * z.any(axis=1)).astype(np.int32)


def _weights(
  whole: int,
  unit: Int64[np.ndarray, " P"],
  count: Int64[np.ndarray, " P"],
  power: int,
) -> Int64[np.ndarray, " P"]:
  """⌊W·k_c/k⌋ for each class of each unit, or with power 2 ⌊W·k_c/√Σk_c²⌋."""
  _, place = np.unique(unit, return_inverse=True)
  total = [0] * (int(place.max(initial=-1)) + 1)
  for at, k in zip(place.tolist(), count.tolist(), strict=True):
    total[at] += k**power
  return np.array(
    [
      whole * k // total[at]
      if power == 1
      else math.isqrt(whole**2 * k**2 // total[at])
      for at, k in zip(place.tolist(), count.tolist(), strict=True)
    ],
    np.int64,
  )


def _means(
  total: Int64[np.ndarray, "P d"], count: Int64[np.ndarray, " P"], most: float
) -> Int16[np.ndarray, "P d"]:
  """z of mean rows: trunc(Σz/k), or, of directions, Σz at norm R again."""
  k = count[:, None]
  if most < math.inf:
    return (np.sign(total) * (np.abs(total) // k)).astype(np.int16)
  # Shifted so that squares, of numbers below 2²⁵, add up exactly in float64.
  bits = np.frexp(count.astype(np.float64))[1].astype(np.int64)
  part = (total >> np.maximum(bits - 10, 0)[:, None]).astype(np.float64)
  norm = np.sqrt(np.square(part).sum(axis=1, keepdims=True))
  room = R - math.sqrt(total.shape[1]) / 2 - 1
  z = np.rint(part * (room / np.maximum(norm, 1)))
  return np.where(k == 1, total, z).astype(np.int16)
