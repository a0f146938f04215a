"""Privacy units of many rows, added up until their last row has come."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.block import OFF_THE_BALL, RowBlock, refuse
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.units import unit_ids_of

MAX_OPEN_BYTES = 2**32
"""Memory for the sums of units that have rows yet to come, on each host."""
_AT_ONCE = 2**21
"""Numbers of such sums that hosts exchange at once."""
UNIT_SIZES = "unit sizes"
"""The pass that other hosts are asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class UnitSizes(Secret):
  """How many rows each unit has, by sorted ids, so that its last is known.

  All that there are on any of the hosts, and how many this one has of each.
  """

  secret_unit_ids: Int64[np.ndarray, " units"]
  secret_rows: Int64[np.ndarray, " units"]
  secret_own_rows: Int64[np.ndarray, " units"]
  hosts: Hosts


def count_rows(blocks: Iterable[RowBlock], hosts: Hosts = ALONE) -> UnitSizes:
  """Counts the rows of each unit; an InputError if one has no `unit_id`."""
  hosts.ask(UNIT_SIZES)
  units = [unit_ids_of(block).copy() for block in blocks]
  ids = np.concatenate([np.empty(0, np.int64), *units])
  own, count = np.unique(ids, return_counts=True)
  found = hosts.gather(np.stack([own, count], axis=1))
  hosts.sum()
  unit, rows = _total(found[:, 0], found[:, 1])
  own_rows = np.zeros_like(rows)
  own_rows[np.searchsorted(unit, own)] = count
  return UnitSizes(
    secret_unit_ids=unit,
    secret_rows=rows,
    secret_own_rows=own_rows,
    hosts=hosts,
  )


def places_of(block: RowBlock, sizes: UnitSizes) -> Int64[np.ndarray, " rows"]:
  """Where a block's units are among those counted, or an InputError."""
  unit, known = unit_ids_of(block), sizes.secret_unit_ids
  place = np.searchsorted(known, unit)
  if (place == known.size).any() or (known[place] != unit).any():
    raise _changed()
  return place


class Unit(NamedTuple):
  """All rows of a unit, class by class; private.

  `place` is that of its id among the sorted ones; `last` that of its last row,
  in the block that completed it, −1 where no block did, but another host.
  `labels` are its P classes, ascending, with how many rows it has of each, and
  the sum of these, [P, D].
  """

  place: int
  last: int
  labels: Int64[np.ndarray, " P"]
  rows: Int64[np.ndarray, " P"]
  sums: Int64[np.ndarray, "P D"]


class WholeUnits:
  """Puts units together whose rows come in any order, in blocks of any size.

  Sums of integers: the same bits in any order, and whichever hosts have the
  rows of a unit. Runs on the host. Memory: D int64 for every class of a unit
  that has been begun and is not complete, so next to nothing where rows come
  unit by unit.
  """

  def __init__(self, sizes: UnitSizes, row_dim: int):
    self._sizes = sizes
    self._row_dim = row_dim
    self._left = sizes.secret_own_rows.copy()
    self._is_shared = sizes.secret_own_rows < sizes.secret_rows
    self._open: dict[int, dict[int, tuple[int, np.ndarray | int]]] = {}

  def add(
    self, block: RowBlock, rows: Int32[np.ndarray, "rows D"]
  ) -> Iterator[Unit]:
    """Adds a block, as integers; gives units in the order of their last rows.

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
    done = [
      unit
      for unit in last
      if self._left[unit] == 0 and not self._is_shared[unit]
    ]
    for unit in sorted(done, key=last.__getitem__):
      yield _whole(unit, last[unit], self._open.pop(unit))
    self._check_room(sum(map(len, self._open.values())))

  def finish(self) -> Iterator[Unit]:
    """Gives the units that other hosts have rows of, too, each on one host.

    For all hosts to call, and to iterate over. Every (unit, class) that is open
    anywhere takes its sums from all, and goes to the host of its turn.

    InputError: a row is missing, or see `add`.
    """
    # One that began again after its last row is below zero.
    if self._left.any():
      raise _changed()
    hosts = self._sizes.hosts
    own = [
      (unit, label, count)
      for unit, of_unit in self._open.items()
      for label, (count, _) in of_unit.items()
    ]
    found = hosts.gather(np.array(own, np.int64).reshape(-1, 3))
    keys, counts = _total(found[:, :2], found[:, 2])
    owner = keys[:, 0] % hosts.count
    self._check_room(int(np.bincount(owner).max(initial=0)))
    shared: dict[int, dict[int, tuple[int, np.ndarray | int]]] = {}
    at_once = max(1, _AT_ONCE // self._row_dim)
    for start in range(0, len(keys), at_once):
      part = slice(start, start + at_once)
      sums = np.zeros((len(keys[part]), self._row_dim), np.int64)
      for row, (unit, label) in zip(sums, keys[part].tolist(), strict=True):
        row += self._open.get(unit, {}).pop(label, (0, 0))[1]
      (sums,) = hosts.sum(sums, ends_pass=False)
      for i in np.flatnonzero(owner[part] == hosts.index):
        unit, label = keys[start + i].tolist()
        total = int(counts[start + i]), sums[i].copy()
        shared.setdefault(unit, {})[label] = total
    for unit, of_unit in shared.items():
      yield _whole(unit, -1, of_unit)

  def _check_room(self, vectors: int) -> None:
    if vectors * self._row_dim * 8 > MAX_OPEN_BYTES:
      raise InputError(
        "The sums of units whose rows are scattered take more than"
        f" {MAX_OPEN_BYTES / 2**30:.3g} GiB: order the rows by unit, or sum a"
        " few of each (--head lamb --max-rows-per-unit)."
      )


def _whole(
  unit: int, last: int, sums: dict[int, tuple[int, np.ndarray | int]]
) -> Unit:
  labels = sorted(sums)
  return Unit(
    place=unit,
    last=last,
    labels=np.array(labels),
    rows=np.array([sums[label][0] for label in labels]),
    sums=np.stack([sums[label][1] for label in labels]),
  )


def _total(
  keys: Int64[np.ndarray, "n ..."], counts: Int64[np.ndarray, " n"]
) -> tuple[np.ndarray, np.ndarray]:
  """Each key once, in ascending order, and the sum of its counts."""
  each, place = np.unique(keys, axis=0, return_inverse=True)
  total = np.zeros(len(each), np.int64)
  np.add.at(total, place, counts)
  return each, total


def host_integers(
  block: RowBlock, scale: Float32[np.ndarray, " rows"], *, bias: bool = False
) -> Int32[np.ndarray, "rows D"]:
  """Rows on the grid, with the bits that devices give them.

  With a bias each has a 1 behind it. InputError: one is off the ball.
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
