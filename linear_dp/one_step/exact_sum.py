"""The exact sharded sum of clipped gradients.

Addition of integers is associative, so the result has the same bits for any
order of the rows, any block size and any number of devices.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.device_sums import ClassSums
from oneshot_dp.linear_dp.one_step.unit_sums import UnitSums
from oneshot_dp.linear_dp.rows.block import RowBlock, checked, refuse_units
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.units import (
  ChosenRows,
  check_contributions,
  unit_ids_of,
)
from oneshot_dp.linear_dp.rows.whole_units import UnitSizes

CLIPPED_SUM = "clipped sum"
"""The pass that other hosts are asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecretSum(Secret):
  """Exact per-class sums of private rows; only `release` may read it.

  n, of rows seen, is public; with units, how many of them are in the sums is
  private. S is [K, D] int64, in steps of the grid.
  """

  public = ("num_examples",)

  grid: ClippedGradientGrid
  num_examples: int
  secret_class_sums: Int64[np.ndarray, "K D"]


def exact_clipped_sum(
  blocks: Iterable[RowBlock],
  grid: ClippedGradientGrid,
  *,
  num_examples: int,
  chosen: ChosenRows | None = None,
  sizes: UnitSizes | None = None,
  devices: Sequence[jax.Device] | None = None,
  hosts: Hosts = ALONE,
) -> SecretSum:
  r"""Sums the clipped rows of every class: S_c = Σ_{y=c} rint(s·x̃).

  Formal guarantees: every row in S has ‖u‖² ≤ B², checked in integers on the
  values that were added; every example_id comes once; the rows are
  `num_examples` in number; and where a privacy unit may have many rows, S has
  every chosen row and at most `grid.rows_per_unit` rows of each unit, counted
  on the rows that were added, or, where units are clipped, all rows of each and
  ‖p0·1 ⊗ T_u − S_u‖ ≤ B·‖r‖. Where one of these fails nothing is returned.

  | row                             | what happens                          |
  |---------------------------------|---------------------------------------|
  | all zeros (the null row)        | adds zero, to the bias too            |
  | NaN or infinity anywhere        | InputError that names the example_id  |
  | norm stored too small           | InputError, by the integer check      |
  | norm stored too large, or zero  | the row counts for less, never more   |
  | label outside [0, K)            | InputError that names the example_id  |
  | example_id seen before          | InputError that names it              |
  | no rows, or not `num_examples`  | InputError                            |
  | unit_id, but nothing is chosen  | InputError: not an example-level sum  |
  | chosen or sizes, but no unit_id | InputError                            |
  | not chosen                      | adds zero                             |

  >>> from oneshot_dp import ArrayRows, ClippedGradientGrid
  >>> rows = ArrayRows.of(np.eye(3), np.array([0, 1, 0]), num_classes=2)
  >>> grid = ClippedGradientGrid(num_classes=2, feature_dim=3)
  >>> exact_clipped_sum([rows], grid, num_examples=3)
  SecretSum(num_examples=3, <private>)

  Args:
    blocks: the rows, in any order and any block size.
    grid: the clipping.
    num_examples: n, the number of rows that there must be; public.
    chosen: the rows that count (`units.choose_rows`), where rows are
      clipped and have a `unit_id`; None where every row counts.
    sizes: the rows of each unit (`whole_units.count_rows`), where units are
      clipped, and only there.
    devices: what to run on, rows sharded over all; None is all local devices.
      Units are clipped on the host.
    hosts: that have a part of the rows each; blocks and n are of this one's.

  Returns:
    The sum, private.

  InputError: see the table; labels and embeddings are never in the message.

  Source: Mehta et al. (TMLR 2023), algorithm 1, at the zero kernel.
  """
  if chosen is None and grid.rows_per_unit > 1:
    raise InputError(
      f"rows_per_unit={grid.rows_per_unit} is for rows with a unit_id; without"
      " one, every row is a unit of its own: leave it out."
    )
  of_units = sizes is not None
  if of_units != (grid.clipped == "unit") or (of_units and chosen is not None):
    raise InputError(
      f"clipped={grid.clipped!r}: sizes are for clipping units, which counts"
      " all their rows, and choices for clipping rows."
    )
  hosts.ask(CLIPPED_SUM, **dataclasses.asdict(grid))
  accumulator = (
    ClassSums(grid, tuple(devices or jax.local_devices()))
    if sizes is None
    else UnitSums(grid, sizes)
  )
  units = []
  for block in checked(
    blocks,
    feature_dim=grid.feature_dim,
    num_classes=grid.num_classes,
    num_examples=num_examples,
    hosts=hosts,
  ):
    if isinstance(accumulator, UnitSums):
      accumulator.add(block)
    elif chosen is None:
      refuse_units(block)
      accumulator.add(block)
    else:
      counts = chosen.among(block)
      units.append(unit_ids_of(block)[counts])
      accumulator.add(block, counts)
  own = accumulator.finish()
  if chosen is not None:
    summed = np.concatenate([np.empty(0, np.int64), *units])
    everywhere = hosts.gather(summed[:, None])
    check_contributions(everywhere[:, 0], grid.rows_per_unit)
    if summed.size != chosen.secret_example_ids.size:
      raise InputError(
        "Rows that were chosen are not in the cache any more: it changed while"
        " it was read; run the same command again."
      )
  (class_sums,) = hosts.sum(own)
  return SecretSum(
    grid=grid, num_examples=num_examples, secret_class_sums=class_sums
  )
