"""Privacy units of many rows: the mean row of each of a unit's classes.

The mean of its k_c rows stands for class c of a unit, at the integer weight
⌊W·k_c/k⌋, or ⌊W·k_c/√Σk_c²⌋ for class sums, whose blocks are orthogonal:

    ‖Σ_c left_c ⊗ row_c‖ ≤ Σ_c w_c·R ≤ W·R

All of it is of exact integers, so the order of rows does not matter.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Int16, Int64

_AT_ONCE = 2**15


def unit_rows(
  parts: Iterable[Sequence[np.ndarray]],
  is_own: Callable[[np.ndarray], np.ndarray],
  whole: int,
  *,
  room: float | None,
  power: int,
  each: bool,
) -> Iterator[tuple[np.ndarray, ...]]:
  """Columns z int16 [P, d], label, weight int32 [P] of all units' classes.

  Formal guarantees: a unit's are functions of its own rows alone; its weights
  are integers with Σ w^power ≤ W^power; rows of zeros do not count.

  `parts` are columns z, label, weight and unit_id of the rows as they are
  stored, `whole` is W, and `room` the norm of mean rows, None where they keep
  theirs; `each` gives rows one by one, at weight ⌊W/k⌋.
  """
  kept = []
  for row, label, weight, unit in parts:
    own = (weight > 0) & is_own(unit)
    kept.append([row[own], label[own].astype(int), unit[own]])
  if not kept:
    return
  row, label, unit = map(np.concatenate, zip(*kept, strict=True))
  kept.clear()
  order = np.lexsort((label, unit))
  label, unit = label[order], unit[order]
  first = np.diff(unit, prepend=0) != 0
  first |= np.diff(label, prepend=0) != 0
  start = np.flatnonzero(first | each | (np.arange(len(unit)) == 0))
  count = np.diff(start, append=len(unit))
  weight = _weights(whole, unit[start], count, power)
  for i in range(0, len(start), _AT_ONCE):
    some = slice(i, i + _AT_ONCE)
    rows = order[start[i] : start[i] + count[some].sum()]
    total = np.add.reduceat(row[rows], start[some] - start[i], dtype=np.int64)
    z = _means(total, count[some], room)
    w = weight[some] * z.any(axis=1)
    yield z, label[start[some]].astype(np.int32), w.astype(np.int32)


def _weights(
  whole: int, unit: Int64[np.ndarray, " P"], count: np.ndarray, power: int
) -> Int64[np.ndarray, " P"]:
  """⌊W·k_c/k⌋ for each class of each unit, or with power 2 ⌊W·k_c/√Σk_c²⌋."""
  total: dict[int, int] = {}
  pairs = list(zip(unit.tolist(), count.tolist(), strict=True))
  for u, k in pairs:
    total[u] = total.get(u, 0) + k**power
  found = [(whole * k) ** power // total[u] for u, k in pairs]
  return np.array([math.isqrt(w) if power == 2 else w for w in found], int)


def _means(
  total: Int64[np.ndarray, "P d"], count: np.ndarray, room: float | None
) -> Int16[np.ndarray, "P d"]:
  """z of mean rows: trunc(Σz/k), or, of directions, Σz at norm R again."""
  k = count[:, None]
  if room is None:
    return (np.sign(total) * (np.abs(total) // k)).astype(np.int16)
  # Shifted so that squares, of numbers below 2²⁵, add up exactly in float64.
  bits = np.frexp(k.astype(np.float64))[1].astype(np.int64)
  part = (total >> np.maximum(bits - 10, 0)).astype(np.float64)
  norm = np.sqrt(np.square(part).sum(axis=1, keepdims=True))
  z = np.rint(part * (room / np.maximum(norm, 1)))
  return np.where(k == 1, total, z).astype(np.int16)
