r"""Steps on random batches as one Gaussian release that may reveal everything.

Whoever looks at each release before choosing the next can get more out of steps
on Poisson samples than their privacy loss distributions say of any one path.
What can be counted against a cap must come in one order, in which any two
mechanisms together are a third: Gaussian mechanisms do. So steps are charged as

    with probability s the row is revealed, else N(μb, 1),   b = row or none

Formal guarantees: the steps' hockey stick divergence H, in both directions, is
at most that of this mixture, B(ε) = s + (1 − s)·δ_μ(ε), at every real ε; by
Blackwell's theorem all that the steps release is then post-processing of it.
Where several plans are chosen adaptively, with Σμ² ≤ M² and Σs ≤ S on every
path, M and S fixed beforehand, all together are (ε, δ_M(ε) + S)-DP at every ε.
Proofs: PRIVACY.md, "Many releases".

Source: Blackwell, "Equivalent comparisons of experiments", 1953; Dong, Roth &
Su, "Gaussian differential privacy", JRSS B 2022, theorem 2.10; Zhu, Dong &
Wang, "Optimal accounting of differential privacy via characteristic function",
AISTATS 2022, theorem 10; Smith & Thakurta, "Fully adaptive composition for
Gaussian differential privacy", 2022.
"""

import functools
import math

import numpy as np
import scipy
from jaxtyping import Float64

from oneshot_dp.linear_dp.accounting.events import (
  Steps,
  changed_units,
  loss_distribution,
  on_all_rows,
)
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation

ROUNDING = 1e-12
"""Added to every δ: what float64 may lose in dp_accounting's convolutions."""
_CHORDS = 4096
_MARGIN = 1e-9
"""Relative, in μ: for the rounding of the normal quantiles."""
_LEAST_MU = 1e-6


def share(total: float, place: int) -> float:
  """s of the plan in a place from 1 on; any number of them are below total."""
  return total / (place * (place + 1))


@functools.cache
def dominating_noise(
  sampled: tuple[Steps, ...], slack: float, relation: NeighboringRelation
) -> float:
  """σ = 1/μ of the mixture that costs at least what steps cost.

  H is convex in x = e^ε, so its chord over an interval is above it there. Where
  H ≤ P − x·Q is such a chord, it is below B at every x if and only if the test
  of level Q has at least the power P in the mixture:

      P ≤ s + (1 − s)·Φ(Φ⁻¹(Q/(1 − s)) + μ)

  and beyond the last interval H is at most s. It is enough that this holds for
  x ≥ 1 in both directions: at x < 1 each direction is the other one at 1/x, and
  the mixture is symmetric.

  >>> from dp_accounting import NeighboringRelation
  >>> steps = (Steps(1.0, 0.01, 1000),)
  >>> relation = NeighboringRelation.REPLACE_SPECIAL
  >>> round(1 / dominating_noise(steps, 1e-7, relation), 2)
  0.47

  Args:
    sampled: steps of one plan, with noise for one unit added or removed.
    slack: s, in [0, 1). With too little (0, or what float64 cannot tell from
      0), the steps cost what they would on all rows.
    relation: in which σ is, rounded down.
  """
  units = changed_units(relation)
  most = on_all_rows(sampled, units)
  # Plans in different places have a curve in common: with less than s left
  # behind it, it ends later, and the rest of it is below s, too.
  least = 2.0 ** math.floor(math.log2(slack)) if slack > 0 else 0.0
  if least <= 2 * ROUNDING or units > 1:  # where no curve is proven
    return most
  curve = _curve(sampled, least)
  if curve is None:
    return most
  epsilons, heights = curve
  # What cannot be computed is not finite, and so is more than all rows cost.
  with np.errstate(all="ignore"):
    ends = np.exp(epsilons)
    level = -np.diff(heights) / np.diff(ends)
    power = heights[:-1] + ends[:-1] * level
    matters = ~(power <= slack)
    mu = np.max(
      scipy.special.ndtri((power[matters] - slack) / (1 - slack))
      - scipy.special.ndtri(level[matters] / (1 - slack)),
      initial=_LEAST_MU,
    )
  if not math.isfinite(mu):
    return most
  # Sampling only hides: without it all is as it would be on all rows.
  return max(1 / (float(mu) * (1 + _MARGIN)), most)


@functools.cache
def _curve(
  sampled: tuple[Steps, ...], rest: float
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]] | None:
  """ε ≥ 0, and H there rounded up, as far as H is above `rest`; None if always.

  The larger H of both directions, which is as convex as each.
  """
  whole = loss_distribution(sampled, ())
  last = whole.get_epsilon_for_delta(rest - 2 * ROUNDING)
  if not math.isfinite(last):
    return None
  epsilons = np.linspace(0.0, last, _CHORDS) if last else np.array([0.0, 1.0])
  with np.errstate(all="ignore"):
    heights = np.asarray(whole.get_delta_for_epsilon(epsilons.tolist()))
  return epsilons, heights + ROUNDING
