"""Private rows as they are read, and how they become integers.

    z = rint(x·s),   s = min((R − √d/2 − 1)/‖x‖, R·most),   ‖z‖ ≤ R = 2¹⁴

What is made of a row is a function of it and of public numbers alone, with the
same bits wherever it is: products and sums of integers are exact, and all else
is one IEEE operation on a number of the row's own, never a product that
something is added to.

Of a privacy unit of many rows, the mean of its k_c rows stands for class c, at
the integer weight ⌊W·k_c/k⌋, or ⌊W·k_c/√Σk_c²⌋ for class sums, whose blocks are
orthogonal; all of it is of exact integers, in any order:

    ‖Σ_c left_c ⊗ row_c‖ ≤ Σ_c w_c·R ≤ W·R
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Float64, Int16, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.distributed.hosts import ALONE, Hosts

ROW_NORM = 2**14
"""Norm of the longest row: it fits int16, and a float16 is no finer."""
UNIT_WEIGHT = 2**20
"""W: what a privacy unit weighs, where n leaves room for it in int64."""
_MOST_ROWS, _UNITS_AT_ONCE = 10**10, 2**15

Block = Mapping[str, np.ndarray]
"""Columns embedding [r, d], embedding_norm, label, example_id [r] and, where a
privacy unit may have many rows, unit_id [r]."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PrivateDataset:
  """Private rows, and what is public of them.

  Attributes:
    blocks: starts a pass over this host's rows, in any order, any block size,
      in arrays that nobody changes afterwards.
    n: the public number of rows; of a part, its mean.
    feature_dim: d.
    num_classes: K.
    unit: what the privacy unit is; where not "example", rows have a unit_id.
    hosts: that have a part of the rows each.
    name: what errors call them.
  """

  blocks: Callable[[], Iterable[Block]]
  n: int
  feature_dim: int
  num_classes: int
  unit: str = "example"
  hosts: Hosts = ALONE
  name: str = "the rows"

  def __post_init__(self):
    if not 1 <= self.n <= _MOST_ROWS:
      raise InputError(f"n={self.n} rows: sums are of 1 to {_MOST_ROWS:.0e}.")

  @property
  def has_units(self) -> bool:
    return self.unit != "example"

  @property
  def weight(self) -> int:
    """W: a power of two, so small that n·W·R is at most 2⁶¹."""
    return min(UNIT_WEIGHT, 2**47 >> (self.n - 1).bit_length())

  def checked_blocks(self) -> Iterator[Block]:
    """The blocks of a pass, and whether a row came twice in it.

    InputError: a label outside [0, K), an example_id that comes twice.
    """
    seen = [np.empty(0, np.int64)]
    for block in self.blocks():
      ids, label = block["example_id"], block["label"]
      if self.has_units != ("unit_id" in block):
        has = "no" if self.has_units else "a"
        unit = f"the privacy unit is {self.unit!r}"
        raise InputError(f"The rows have {has} unit_id, but {unit}.")
      bad = (label < 0) | (label >= self.num_classes)
      if bad.any():
        self.refuse(ids, bad, f"its label is outside [0, {self.num_classes})")
      seen.append(np.array(ids, np.int64))
      yield block
    ids = np.concatenate(seen)
    seen.clear()
    ids.sort()
    twice = np.append(ids[1:] == ids[:-1], False)
    if twice.any():
      self.refuse(ids, twice, "it comes more than once")
    if len(ids) > 2 * self.n + UNIT_WEIGHT:  # or sums might leave int64
      raise InputError(f"{self.name}: many more than {self.n} are there.")

  def refuse(
    self, ids: np.ndarray, bad: Bool[np.ndarray, " r"], why: str
  ) -> NoReturn:
    """Raises an InputError for the first bad row, by its id alone."""
    raise InputError(
      f"{self.name}: example_id={ids[bad.argmax()]}: {why}. Run `oneshot-dp"
      " verify` on the cache, then make it again."
    )


def room_in_ball(dim: int) -> float:
  """R·√(1 − (d + 2)·2⁻²⁴) − √d/2 − 1, the norm of a row before rounding.

  That is what `within_ball` is sure of, less √d/2 for rounding to integers and
  1 for float32 products: every honest row is within.
  """
  sure = ROW_NORM * math.sqrt(1 - (dim + 2) * 2.0**-24)
  return sure - math.sqrt(dim) / 2 - 1


def row_scale(
  norm: Float[np.ndarray, " r"], dim: int, most: float
) -> Float32[np.ndarray, " r"]:
  """s: 0 for a row of zeros, or one so short that s would leave float32."""
  wide, room = norm.astype(np.float64), room_in_ball(dim)
  floor = room / float(np.finfo(np.float32).max)
  scale = np.divide(room, wide, out=np.zeros_like(wide), where=wide > floor)
  return np.minimum(scale, ROW_NORM * most).astype(np.float32)


@jax.jit
def integer_rows(
  embedding: Float[Array, "c d"],
  scale: Float32[Array, " c"],
  weight: int | Array,
) -> tuple[Array, Array, Array]:
  """z int16 [c, d], w int32 [c], and whether each row is to be refused.

  w is 0 of a row of zeros. A row is refused that is not finite or may leave the
  ball: none that `within_ball` is not sure of has an honest scale.
  """
  z = jnp.rint(embedding.astype(jnp.float32) * scale[:, None])
  fine, is_row = within_ball(z)
  z = jnp.where(fine[:, None], z, 0).astype(jnp.int16)
  return z, jnp.where(is_row, weight, 0).astype(jnp.int32), ~fine


def within_ball(
  z: Float32[Array, "c d"],
) -> tuple[Bool[Array, " c"], Bool[Array, " c"]]:
  """Whether ‖z‖ ≤ R of rows of integers for certain, and whether one is not 0.

  A sum of d squares in float32, in any order, is below the true one by at most
  d·2⁻²⁴ of it (Higham, "Accuracy and Stability of Numerical Algorithms", 2002,
  section 4.2), which is what the bound leaves. NaN compares as False.
  """
  squares = jnp.square(z).sum(axis=1)
  return squares <= ROW_NORM * ROW_NORM * (
    1 - (z.shape[1] + 2) * 2.0**-24
  ), squares > 0


@jax.jit
def mapped_rows(
  row: Int16[Array, "c d"], centre: Float64[Array, " d"], matrix: Array
) -> Int16[Array, "c p"]:
  """(z − c)·A at norm R again; without numbers in A, z − c. 0 stays 0."""
  y = row.astype(jnp.float64) - centre
  if matrix.size:
    y = y @ matrix  # of integers below 2⁵³: exact
  p = y.shape[1]
  # To as many bits as squares add up exactly with, by a power of two.
  bits = (52 - (p - 1).bit_length()) // 2
  _, exponent = jnp.frexp(jnp.abs(y).max(1, keepdims=True))
  part = jnp.rint(jnp.ldexp(y, bits - exponent))
  norm = jnp.sqrt(jnp.square(part).sum(1, keepdims=True))
  z = jnp.rint(part * (room_in_ball(p) / jnp.maximum(norm, 1)))
  fine = jnp.square(z).sum(1) <= ROW_NORM * ROW_NORM
  fine &= (row != 0).any(axis=1)
  return jnp.where(fine[:, None], z, 0).astype(jnp.int16)


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
  for i in range(0, len(start), _UNITS_AT_ONCE):
    some = slice(i, i + _UNITS_AT_ONCE)
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
