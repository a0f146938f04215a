"""Distributions of privacy losses from normal densities alone: an oracle.

The divergence is exact at the points of a grid and a little more between them,
by less than the fourth digit; none of dp_accounting's code is used.
"""

import functools

import numpy as np
from dp_accounting import (
  DpEvent,
  GaussianDpEvent,
  NeighboringRelation,
  PoissonSampledDpEvent,
  SelfComposedDpEvent,
)
from scipy import special

from oneshot_dp.linear_dp.accounting.events import changed_units, parts_of

STEP, REACH = 2e-3, 5_000
"""A grid from −10 to 10."""
GRID = np.arange(-REACH, REACH + 1) * STEP


def steps(q: float, count: int, sigma: float) -> SelfComposedDpEvent:
  return SelfComposedDpEvent(
    PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), count
  )


def losses(
  event: DpEvent, relation: NeighboringRelation, *, removed: bool
) -> np.ndarray:
  """Probabilities of the losses of `GRID`, of one mechanism or its repetition.

  Args:
    event: a Gaussian mechanism on all rows, or steps on Poisson samples.
    relation: which data sets count as neighbours.
    removed: the row is in the data of which outputs are drawn, not in the other
      one's; when a row is replaced both are the same.
  """
  gaussians, sampled = parts_of(event)
  if gaussians:
    units = changed_units(relation)
    return _losses(1.0, gaussians[0] / units, 1, False, removed)
  ((sigma, q, count),) = sampled
  replaced = relation is NeighboringRelation.REPLACE_ONE
  return _losses(q, sigma, count, replaced, removed or replaced)


def delta_at(epsilon: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
  """The hockey stick divergence at any real ε."""
  beyond = np.maximum(0, -np.expm1(epsilon[:, None] - GRID))
  return beyond @ probabilities


@functools.cache
def _losses(
  q: float, sigma: float, count: int, replaced: bool, removed: bool
) -> np.ndarray:
  e = np.exp(GRID if removed else -GRID)
  # Where the loss is e: it rises with x.
  with np.errstate(divide="ignore", invalid="ignore"):
    if replaced:
      a, b = q * np.exp(-0.5 / sigma**2), (1 - q) * (e - 1)
      x = np.log((b + np.sqrt(b * b + 4 * a * a * e)) / (2 * a)) * sigma**2
    else:
      x = np.log((e - 1 + q) / q) * sigma**2 + 0.5
  x = np.where(np.isnan(x), -np.inf, x)
  at_zero, at_one, at_minus_one = (
    _between((x - mean) / sigma) for mean in (0, 1, -1)
  )
  with_row = (1 - q) * at_zero + q * at_one
  without = (1 - q) * at_zero + q * at_minus_one if replaced else at_zero
  upper, lower = (with_row, without) if removed else (without, with_row)
  # Each interval's mass goes to its ends, so that both laws keep theirs.
  to_end = (upper - lower * np.exp(GRID[:-1])) / -np.expm1(-STEP)
  to_end = np.clip(to_end, 0, upper)
  one = np.append(upper - to_end, 0) + np.insert(to_end, 0, 0)
  one[[0, -1]] += (1 - one.sum()) / 2  # what is beyond the grid
  one = np.fft.ifftshift(one)
  return np.fft.fftshift(np.fft.ifft(np.fft.fft(one) ** count).real)


def _between(x: np.ndarray) -> np.ndarray:
  """Normal probabilities between neighbours, not lost in 1 in either tail."""
  below = np.diff(special.ndtr(x))
  above = -np.diff(special.ndtr(-x))
  return np.abs(np.where(x[1:] + x[:-1] < 0, below, above))
