r"""A privacy unit as at most K weighted rows, which weigh as much as one row.

For each class c of a unit, the mean of its k_c rows of that class stands for
them, at a weight w_c = k_c/k. So whatever a row of norm 1 adds to a sum, of a
norm of at most 1, a unit adds no more:

    ‖Σ_c w_c·f(row_c)‖ ≤ Σ_c w_c·‖f(row_c)‖ ≤ Σ_c w_c ≤ 1

Weights are integers, in steps of 1/B, and whoever adds up w_c·f(row_c) checks
its norm in integers. A unit of one row is that row.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from oneshot_dp.linear_dp.rows.block import RowBlock
from oneshot_dp.linear_dp.rows.integers import (
  GRID_RADIUS,
  row_radius,
  row_scale,
)
from oneshot_dp.linear_dp.rows.whole_units import (
  Unit,
  UnitSizes,
  WholeUnits,
  host_integers,
  squared_norms,
)


def mean_rows(
  blocks: Iterable[RowBlock],
  sizes: UnitSizes,
  dim: int,
  max_norm: float | None,
) -> Iterator[Sequence[np.ndarray]]:
  """Columns of the mean rows of all units, in the order of their last rows.

  Formal guarantees: a unit's are functions of its own rows alone, whatever
  their order; their weights add up to at most B.

  They are embedding [rows, d] float32, embedding_norm [rows] float32, label
  [rows] int32, example_id [rows] int64 of the unit's last row (−1 if other
  hosts have rows of it), weight [rows] int32, place [rows] int64 of the unit
  among all. Rows, each of which was checked, are shortened to `max_norm`
  before; None is for directions.

  InputError: rows that are not finite or off the ball, or see `WholeUnits`.
  """
  units = WholeUnits(sizes, dim)
  longest = max_norm or 1.0
  most = math.inf if max_norm is None else row_radius(dim) / max_norm
  for block in blocks:
    scale = row_scale(block.embedding_norm, dim, most)
    done = [
      _of_unit(unit, longest, block)
      for unit in units.add(block, host_integers(block, scale))
    ]
    if done:
      yield [np.concatenate(column) for column in zip(*done, strict=True)]
  for unit in units.finish():
    yield _of_unit(unit, longest)


def _of_unit(
  unit: Unit, longest: float, block: RowBlock | None = None
) -> Sequence[np.ndarray]:
  """The columns of one unit; a row has `longest` where it is at the edge."""
  number, total = len(unit.labels), int(unit.rows.sum())
  if block is not None and total == 1:
    embedding = block.embedding[[unit.last]].astype(np.float32)
    norm = block.embedding_norm[[unit.last]]
  else:
    step = longest / row_radius(unit.sums.shape[1]) / unit.rows
    embedding = (unit.sums * step[:, None]).astype(np.float32)
    norm = np.array([math.sqrt(x) for x in squared_norms(unit.sums)]) * step
  return (
    embedding,
    norm.astype(np.float32),
    unit.labels.astype(np.int32),
    np.full(number, -1 if block is None else block.example_id[unit.last]),
    (GRID_RADIUS * unit.rows // total).astype(np.int32),
    np.full(number, unit.place),
  )
