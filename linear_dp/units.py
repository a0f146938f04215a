r"""Privacy units of many rows: the mean row of each of a unit's classes.

For each class c of a unit, the mean of its k_c rows stands for them, at the
integer weight ⌊W·k_c/k⌋ (for class sums, whose blocks of classes are
orthogonal, ⌊W·k_c/√Σk_c²⌋). So whatever a row of norm 1 adds to a sum, a unit
adds no more:

    ‖Σ_c left_c ⊗ row_c‖ ≤ Σ_c w_c·R ≤ W·R

All of it is of exact integers, so the order of rows does not matter.
"""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from oneshot_dp.linear_dp.rows import R, Data, checked_blocks, integers_of


def mean_rows(
  data: Data, most: float, power: int
) -> Iterator[tuple[np.ndarray, ...]]:
  """Columns z int16 [P, d], label, weight int32 [P] of all units' classes.

  Formal guarantees: a unit's are functions of its own rows alone; its weights
  are integers with Σ w^power ≤ W^power; rows of zeros do not count.
  """
  keys, counts, sums = _sums(data, most)
  if not len(keys):
    return
  start = np.flatnonzero(np.diff(keys[:, 0], prepend=keys[0, 0] - 1))
  sizes = np.diff(start, append=len(keys))
  weights = [
    _weight(data.weight, k, of_unit, power)
    for of_unit in (
      counts[a : a + m].tolist() for a, m in zip(start, sizes, strict=True)
    )
    for k in of_unit
  ]
  z = _means(sums, counts, most)
  weight = np.array(weights, np.int32) * z.any(axis=1)
  yield z, keys[:, 1].astype(np.int32), weight.astype(np.int32)


def _weight(whole: int, k: int, of_unit: list[int], power: int) -> int:
  if power == 1:
    return whole * k // sum(of_unit)
  return math.isqrt(whole**2 * k**2 // sum(m * m for m in of_unit))


def _sums(
  data: Data, most: float
) -> tuple[
  Int64[np.ndarray, "P 2"], Int64[np.ndarray, " P"], Int64[np.ndarray, "P d"]
]:
  """(unit, class) in ascending order, how many rows, and the sum of those."""
  slot: dict[tuple[int, int], int] = {}
  counts: list[int] = []
  sums: list[np.ndarray] = []
  for block in checked_blocks(data):
    z, is_row = integers_of(block, most)
    own = is_row & data.hosts.own_units(block["unit_id"])
    unit, label = block["unit_id"][own], block["label"][own]
    order = np.lexsort((label, unit))
    key = np.stack([unit, label])[:, order].astype(np.int64)
    if not key.size:
      continue
    begin = np.flatnonzero(np.r_[True, (key[:, 1:] != key[:, :-1]).any(axis=0)])
    added = np.add.reduceat(z[own][order], begin, axis=0, dtype=np.int64)
    many = np.diff(begin, append=key.shape[1])
    for pair, count, total in zip(
      map(tuple, key[:, begin].T.tolist()), many.tolist(), added, strict=True
    ):
      if pair in slot:
        counts[slot[pair]] += count
        sums[slot[pair]] = sums[slot[pair]] + total
      else:
        slot[pair] = len(counts)
        counts.append(count)
        sums.append(total.copy())
  pairs = sorted(slot)
  places = [slot[pair] for pair in pairs]
  return (
    np.array(pairs, np.int64).reshape(-1, 2),
    np.array([counts[i] for i in places], np.int64),
    np.array([sums[i] for i in places], np.int64).reshape(
      len(pairs), data.feature_dim
    ),
  )


def _means(
  sums: Int64[np.ndarray, "P d"], counts: Int64[np.ndarray, " P"], most: float
) -> np.ndarray:
  """z of mean rows: trunc(Σz/k), or, of directions, Σz at norm R again."""
  k = counts[:, None]
  if most < math.inf:
    return (np.sign(sums) * (np.abs(sums) // k)).astype(np.int16)
  # Shifted so that squares add up exactly in float64.
  bits = np.frexp(counts.astype(np.float64))[1].astype(np.int64)
  part = (sums >> np.maximum(bits - 10, 0)[:, None]).astype(np.float64)
  norm = np.sqrt(np.square(part).sum(axis=1, keepdims=True))
  room = R - math.sqrt(sums.shape[1]) / 2 - 1
  z = np.rint(part * (room / np.maximum(norm, 1)))
  return np.where(k == 1, sums, z).astype(np.int16)
