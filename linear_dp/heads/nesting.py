"""Nested heads: what a larger ε keeps of the head that it continues."""

import dataclasses

import numpy as np
from jaxtyping import Float64

from oneshot_dp.linear_dp.heads.contract import HeadState
from oneshot_dp.linear_dp.heads.whitening import Whitening


@dataclasses.dataclass(frozen=True, kw_only=True)
class NestingWeights:
  """How a head weighs the releases of the head before and its own.

  Attributes:
    earlier: what the steps of the head before are multiplied by.
    steps: what the learning rate of the new steps is multiplied by.
  """

  earlier: float
  steps: float


def nesting_weights(
  *, new_mu_squared: float, spent_mu_squared: float
) -> NestingWeights:
  """Weighs all gradients that were ever released by their precision.

  From where it begins, a head has moved by rate(σ)·G, where G is about a mean
  of noisy gradients, and rate(σ) ∝ 1/max(σ, 1). With σ' for the head before and
  σ_new for the new steps alone, the best estimate of G from both is

      (σ'⁻²·G' + σ_new⁻²·G_new) / σ⁻²,   σ⁻² = σ'⁻² + σ_new⁻²

  so the head before counts for (σ/σ')²·rate(σ)/rate(σ'), and new steps for
  (σ/σ_new)²·rate(σ)/rate(σ_new). Its noise is then as large as that of a head
  with the same ε that was made alone.

  >>> weights = nesting_weights(new_mu_squared=0.03, spent_mu_squared=0.01)
  >>> round(weights.earlier, 4), round(weights.steps, 4)
  (0.5, 0.866)

  Args:
    new_mu_squared: σ_new⁻².
    spent_mu_squared: σ'⁻², of the head before; positive.

  Returns:
    The two weights. They follow from budgets alone, which are public.
  """
  # Precisions add up, as μ² does: the head is as precise as one that was
  # trained alone for both budgets together.
  sigma = (spent_mu_squared + new_mu_squared) ** -0.5
  sigma_before = spent_mu_squared**-0.5
  sigma_new = new_mu_squared**-0.5
  rate = 1 / max(sigma, 1.0)
  return NestingWeights(
    earlier=(sigma / sigma_before) ** 2 * rate * max(sigma_before, 1.0),
    steps=(sigma / sigma_new) ** 2 * rate * max(sigma_new, 1.0),
  )


def moved_before(
  state: HeadState, whitening: Whitening
) -> Float64[np.ndarray, "d K"]:
  """Returns what the steps of the head before did, for rows as mapped now.

  The map now has another scale than the map then had, so that the length of the
  weights, which the state keeps, is restored.

  Args:
    state: of the head with a smaller ε.
    whitening: the map of this head's rows; without one, weights stay as they
      are but for their length.

  Returns:
    The part of the weights [d, K] that noisy gradients made, for rows that
    are mapped by `whitening`; zeros where all weights are zeros.
  """
  # The state is kept without whitening, because a head with a larger ε releases
  # the second moment again, and whitens by a better estimate of it.
  kernel = whitening.to_whitened(state.kernel)
  moved = kernel - whitening.to_whitened(state.begin)
  length = np.linalg.norm(kernel, axis=0).mean()
  return moved * (state.length / length) if length > 0 else moved
