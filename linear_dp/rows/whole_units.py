"""Privacy units of many rows, added up until their last row has come."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from oneshot_dp.configs.errors import InputError
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


def places_of(block: RowBlock, sizes: UnitSizes) -> Int64[np.ndarray, " rows"]:
  """Where a block's units are among those counted, or an InputError."""
  unit, known = unit_ids_of(block), sizes.secret_unit_ids
  place = np.searchsorted(known, unit)
  if (place == known.size).any() or (known[place] != unit).any():
    raise _changed()
  return place


class Unit(NamedTuple):
  """All rows of a unit, class by class; private.

  Attributes:
    place: of its id among the sorted ones.
    last: of its last row, in the block that completed it.
    labels: its P classes, ascending.
    rows: how many rows it has of each.
    sums: [P, D], the sum of these.
  """

  place: int
  last: int
  labels: Int64[np.ndarray, " P"]
  rows: Int64[np.ndarray, " P"]
  sums: Int64[np.ndarray, "P D"]


class WholeUnits:
  """Puts units together whose rows come in any order, in blocks of any size.

  Sums of integers: the same bits in any order. Runs on the host. Memory: D
  int64 for every class of a unit that has been begun and is not complete, so
  next to nothing where rows come unit by unit.
  """

  def __init__(self, sizes: UnitSizes):
    self._sizes = sizes
    self._left = sizes.secret_rows.copy()
    self._open: dict[int, dict[int, tuple[int, np.ndarray | int]]] = {}

  def add(
    self, block: RowBlock, rows: Int32[np.ndarray, "rows D"]
  ) -> Iterator[Unit]:
    """Adds a block, as integers; gives units in the order of their last rows.

    Raises:
      InputError: the units are not those counted, or the sums of those begun
        outgrow `MAX_OPEN_BYTES`.
    """
    if not len(block.label):
      return
    place = places_of(block, self._sizes)
    order = np.lexsort((block.label, place))
    key = np.stack([place, block.label])[:, order]
    starts = np.flatnonzero(np.diff(key, prepend=-1).any(axis=0))
    counts = np.diff(starts, append=len(order))
    sums = np.add.reduceat(rows[order], starts, axis=0, dtype=np.int64)
    last: dict[int, int] = {}
    for (unit, label), start, count, added in zip(
      key[:, starts].T.tolist(),
      starts.tolist(),
      counts.tolist(),
      sums,
      strict=True,
    ):
      own = self._open.setdefault(unit, {})
      before, total = own.get(label, (0, 0))
      own[label] = before + count, added + total
      self._left[unit] -= count
      last[unit] = max(last.get(unit, 0), int(order[start + count - 1]))
    done = [unit for unit in last if self._left[unit] == 0]
    for unit in sorted(done, key=last.__getitem__):
      own = self._open.pop(unit)
      labels = sorted(own)
      yield Unit(
        place=unit,
        last=last[unit],
        labels=np.array(labels),
        rows=np.array([own[label][0] for label in labels]),
        sums=np.stack([own[label][1] for label in labels]),
      )
    vectors = sum(map(len, self._open.values()))
    if vectors * rows.shape[1] * 8 > MAX_OPEN_BYTES:
      raise InputError(
        "The sums of units whose rows are scattered take more than"
        f" {MAX_OPEN_BYTES / 2**30:.3g} GiB: order the rows by unit, or sum a"
        " few of each (--head lamb --max-rows-per-unit)."
      )

  def finish(self) -> None:
    """An InputError if a row is missing."""
    # One that began again after its last row is below zero.
    if self._left.any():
      raise _changed()


def host_integers(
  block: RowBlock, scale: Float32[np.ndarray, " rows"], *, bias: bool = False
) -> Int32[np.ndarray, "rows D"]:
  """Rows on the grid, with the bits that devices give them.

  Args:
    block: the rows.
    scale: to integers.
    bias: whether each has a 1 behind it.

  Raises:
    InputError: a row is not finite, or leaves the ball.
  """
  with np.errstate(over="ignore", invalid="ignore"):
    rows = block.embedding.astype(np.float32) * scale[:, None]
    if bias:
      rows = np.concatenate([rows, scale[:, None]], axis=1)
    rows = np.rint(rows)
    # Exact: squares of integers up to 2⁵³, and past that they are past B².
    inside = np.square(rows, dtype=np.float64).sum(axis=1) <= GRID_RADIUS**2
  if not inside.all():
    refuse(block.example_id, ~inside, OFF_THE_BALL)
  return rows.astype(np.int32)


def squared_norms(vectors: Int64[np.ndarray, "P D"]) -> list[int]:
  """In limbs of 20 bits: no sum leaves int64 for a unit of up to 2³⁰ rows."""
  high, low = vectors >> 20, vectors & (2**20 - 1)
  products = ((high, high, 2**40), (high, low, 2**21), (low, low, 1))
  limbs = [(unit, (x * y).sum(axis=1).tolist()) for x, y, unit in products]
  return [
    sum(unit * sums[row] for unit, sums in limbs) for row in range(len(vectors))
  ]


def _changed() -> InputError:
  return InputError(
    "The units are not those that were counted: the rows changed while they"
    " were read; run the same command again."
  )
