"""How the noise of a head compares with what a class adds to its sum.

The exact class sums are secret. Their size is estimated from the evaluation
rows, whose labels are public: clipped as the mechanism clips, summed class by
class, and scaled to the number of private rows. The noise is known.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from jaxtyping import Float

from oneshot_dp.extract.cache.block import Block
from oneshot_dp.linear_dp.heads.least_squares.rule import LeastSquaresRule
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.trainer import OneStep
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.pipeline.report.public_answers import ClippedRows
from oneshot_dp.pipeline.saved_head.public_record import SETTING

_STEP = 1 / GRID_RADIUS
"""A grid step, in clipped rows."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NoiseAndSignal:
  """L2 norms per class, in clipped rows: 1 is the most that a row can add.

  `signal` is ‖estimated sum of a class‖, `apart` the part of it that the
  average class does not have; `noise` is expected on it, by epsilon, in heads
  of `method`.
  """

  method: str
  signal: Float[np.ndarray, " K"]
  apart: Float[np.ndarray, " K"]
  noise: dict[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SumOfRows:
  """The class sums, of `width` coordinates, that a mechanism adds noise to.

  It adds up `clipped` of each row; `unit` is that of the receipt's
  noise_sd_steps, and p0 = `shared` of all rows is in every class's sum.
  """

  clipped: ClippedRows
  width: int
  unit: float
  shared: float

  def compared(
    self,
    class_sums: Float[np.ndarray, "K D"],
    *,
    method: str,
    scale: float,
    noise_sds: dict[float, float],
  ) -> NoiseAndSignal:
    """Signal, of sums of evaluation rows, and noise, by noise_sd_steps.

    `scale` is the number of private rows for each evaluation row.
    """
    sums = scale * (class_sums - self.shared * class_sums.sum(axis=0))
    return NoiseAndSignal(
      method=method,
      signal=np.linalg.norm(sums, axis=1),
      apart=np.linalg.norm(sums - sums.mean(axis=0), axis=1),
      noise={
        epsilon: sd * self.unit * math.sqrt(self.width)
        for epsilon, sd in noise_sds.items()
      },
    )


def sums_of(receipt: dict[str, Any]) -> SumOfRows | str:
  """The sums that a head was made of; or why nothing can be said of them."""
  mechanism = mechanism_of(receipt["mechanism"])
  if SETTING in receipt["training"]:
    return (
      "the private rows were mapped by public statistics first, which the"
      " evaluation rows here are not"
    )
  if isinstance(mechanism, OneStep):
    grid = mechanism.grid
    if grid.clipped == "unit" or grid.rows_per_unit > 1:
      return (
        "the sum is over all examples of a unit, and how many those are is"
        " private"
      )
    return SumOfRows(
      clipped=functools.partial(_clipped, grid),
      width=grid.row_dim,
      unit=_STEP,
      shared=grid.initial_probability,
    )
  if isinstance(mechanism, LeastSquaresRule):
    return SumOfRows(
      clipped=_at_unit_norm,
      width=mechanism.feature_dim,
      unit=_STEP / math.sqrt(mechanism.shares.class_sums),
      shared=0.0,
    )
  return (
    "a head of several steps sees other gradients at every step, which no"
    " public row can stand in for"
  )


def _clipped(
  grid: ClippedGradientGrid, block: Block
) -> Float[np.ndarray, "rows D"]:
  rows = block.embedding.astype(np.float64)
  if grid.train_bias:
    rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
  return rows * (_STEP * grid.row_scale(block.embedding_norm))[:, None]


def _at_unit_norm(block: Block) -> Float[np.ndarray, "rows D"]:
  norm = block.embedding_norm.astype(np.float64)[:, None]
  return block.embedding.astype(np.float64) / np.where(norm > 0, norm, 1)
