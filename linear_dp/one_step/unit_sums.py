r"""All rows of a privacy unit, summed and clipped as one vector.

The gradients of a unit's rows add up to p0·1 ⊗ T − S, where S_c is the sum of
its (clipped) rows of class c and T = Σ_c S_c: one vector for each of its
classes says all. Clipping that to norm C bounds the unit as `clipping` bounds a
row, and the sensitivity is a row's: no factor m, and no row is left out.
PRIVACY.md says when a bound on the number of rows (`rows.units`) is better.
"""

import dataclasses
import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from jaxtyping import Int32, Int64

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.rows.block import OFF_THE_BALL, RowBlock, refuse
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.units import unit_ids_of

MAX_OPEN_BYTES = 2**32
"""Memory for the sums of units that have rows yet to come."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class UnitSizes(Secret):
  """How many rows each unit has, by sorted ids, so that its last is known."""

  secret_unit_ids: Int64[np.ndarray, " units"]
  secret_rows: Int64[np.ndarray, " units"]


def count_rows(blocks: Iterable[RowBlock]) -> UnitSizes:
  """Counts the rows of each unit; an InputError if one has no `unit_id`."""
  units = [unit_ids_of(block).copy() for block in blocks]
  ids = np.concatenate([np.empty(0, np.int64), *units])
  unit, rows = np.unique(ids, return_counts=True)
  return UnitSizes(secret_unit_ids=unit, secret_rows=rows)


class UnitSums:
  r"""Adds up units that come in any order, each as soon as it is complete.

  Integers until the clip and after it, and the clip sees one whole unit: the
  same bits for any order of the rows and any block size. Runs on the host.
  Memory: D int64 for every class of a unit that has been begun and is not
  complete, so next to nothing where rows come unit by unit.
  """

  def __init__(self, grid: ClippedGradientGrid, sizes: UnitSizes):
    self._grid = grid
    self._units = sizes.secret_unit_ids
    self._left = sizes.secret_rows.copy()
    self._open: dict[int, dict[int, Int64[np.ndarray, " D"]]] = {}
    self._open_vectors = 0
    self._total = np.zeros((grid.num_classes, grid.row_dim), np.int64)

  def add(self, block: RowBlock) -> None:
    """Adds a block whose shapes and labels have been checked.

    Raises:
      InputError: a row is not finite or leaves the ball, the units are not
        those counted, or their sums outgrow `MAX_OPEN_BYTES`.
    """
    grid, places = self._grid, self._places(block).tolist()
    rows = _integer_rows(block, grid)
    for place, label, row in zip(
      places, block.label.tolist(), rows, strict=True
    ):
      self._left[place] -= 1
      last = self._left[place] == 0
      if last and place not in self._open:
        self._total[label] += row  # a unit of one row, clipped as a row is
        continue
      own = self._open.setdefault(place, {})
      if label in own:
        own[label] += row
      else:
        own[label] = row.astype(np.int64)
        self._count_open(1)
      if last:
        self._open.pop(place)
        self._total[list(own)] += clip_unit(np.stack([*own.values()]), grid)
        self._count_open(-len(own))

  def finish(self) -> Int64[np.ndarray, "K D"]:
    """S of clipped units, private; an InputError if a row is missing."""
    # One that began again after its last row is below zero.
    if self._left.any():
      raise _changed()
    return self._total

  def _places(self, block: RowBlock) -> Int64[np.ndarray, " rows"]:
    """Where the block's units are in `_units`."""
    unit = unit_ids_of(block)
    place = np.searchsorted(self._units, unit)
    if (place == self._units.size).any() or (self._units[place] != unit).any():
      raise _changed()
    return place

  def _count_open(self, vectors: int) -> None:
    self._open_vectors += vectors
    if self._open_vectors * self._grid.row_dim * 8 > MAX_OPEN_BYTES:
      raise InputError(
        "The sums of units whose rows are scattered take more than"
        f" {MAX_OPEN_BYTES / 2**30:.3g} GiB: order the rows by unit, or sum a"
        " few of each (--max-rows-per-unit)."
      )


def clip_unit(
  sums: Int64[np.ndarray, "P D"], grid: ClippedGradientGrid
) -> Int64[np.ndarray, "P D"]:
  r"""Scales a unit's class sums until its gradient has norm C, if it has more.

      ‖U‖² = ‖p0·1 ⊗ T − S‖² = ‖S‖² + a·‖T‖²,   a = K·p0² − 2·p0 = ‖r‖² − 1
      v = S where ‖U‖ ≤ B·‖r‖, else rint(w·S),
      w = (B − √(P·D·f)/2 − 1)·‖r‖ / ‖U‖,   f = max(1, 1 + a·P) / (1 + a)

  Rounding moves S by at most √(P·D)/2 and U/‖r‖ by at most √f of that, as
  ‖T‖² ≤ P·‖S‖²; 1 step pays for the float64 products.

  S is one vector for each of the unit's P classes, in grid steps.

  Formal guarantees: v has ‖U‖ ≤ B·‖r‖, checked in exact integers and
  rationals. It is a function of these sums alone.
  """
  p0 = Fraction(grid.initial_probability)
  a = grid.num_classes * p0**2 - 2 * p0
  length = _square_in_rows(sums, a)
  if length <= GRID_RADIUS**2:
    return sums
  spread = float(max(Fraction(1), 1 + a * len(sums)) / (1 + a))
  radius = max(0.0, GRID_RADIUS - math.sqrt(sums.size * spread) / 2 - 1)
  clipped = np.rint(sums * (radius / math.sqrt(length))).astype(np.int64)
  if _square_in_rows(clipped, a) > GRID_RADIUS**2:
    raise RunError(
      "The clipped sum of a unit is too long, so nothing was released: this is"
      " a fault of oneshot-dp; --max-rows-per-unit does without."
    )
  return clipped


def _square_in_rows(sums: Int64[np.ndarray, "P D"], a: Fraction) -> Fraction:
  """(‖U‖/‖r‖)², exactly: of a unit of one row, ‖u‖²."""
  shared = _squared_norm(sums.sum(axis=0, keepdims=True))
  return (_squared_norm(sums) + a * shared) / (1 + a)


def _squared_norm(vectors: Int64[np.ndarray, "P D"]) -> int:
  """In limbs of 20 bits: no sum leaves int64 for a unit of up to 2³⁰ rows."""
  high, low = vectors >> 20, vectors & (2**20 - 1)
  products = ((high, high, 2**40), (high, low, 2**21), (low, low, 1))
  return sum(
    unit * sum((x * y).sum(axis=1).tolist()) for x, y, unit in products
  )


def _integer_rows(
  block: RowBlock, grid: ClippedGradientGrid
) -> Int32[np.ndarray, "rows D"]:
  """Clipped rows on the grid, with the bits that `device_sums` gives them."""
  scale = grid.row_scale(block.embedding_norm)[:, None]
  with np.errstate(over="ignore", invalid="ignore"):
    rows = block.embedding.astype(np.float32) * scale
    if grid.train_bias:
      rows = np.concatenate([rows, scale], axis=1)
    rows = np.rint(rows)
    # Exact: squares of integers up to 2⁵³, and past that they are past B².
    inside = np.square(rows, dtype=np.float64).sum(axis=1) <= GRID_RADIUS**2
  if not inside.all():
    refuse(block.example_id, ~inside, OFF_THE_BALL)
  return rows.astype(np.int32)


def _changed() -> InputError:
  return InputError(
    "The units are not those that were counted: the rows changed while they"
    " were read; run the same command again."
  )
