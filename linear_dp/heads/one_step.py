r"""`lamb`, `adam`, `momentum`: one step of an optimizer along one released sum.

At a kernel of zeros and the bias b0 of every class, each row x of class y has
the probabilities p0 = 1/(1 + exp(−b0)), so the gradient of its sigmoid
cross-entropy is r_y ⊗ x with r_y = p0·1 − e_y. Clipping it to norm C scales x
to a norm of at most C/‖r‖. With z for the rows that are clipped in this way,
the mean gradient is

    g = (p0·1 ⊗ T − S)/n,   S_c = Σ_{y=c} z,   T = Σ_c S_c.

S is released once, with sensitivity C/‖r‖; everything else is post-processing.
The paper adds noise N to n·g itself. Here the noise of g is (p0·1 ⊗ 1ᵀ − I)·N.
The two differ by p0 (4.5e-5 at b0 = −10) times the noise of T, and cost the
same, since ‖r‖ ≈ 1.

Source: Mehta, Thakurta, Kurakin & Cutkosky, "Large Scale Transfer Learning for
Differentially Private Image Classification" (TMLR 2023), algorithm 1, table 4.
"""

import functools
import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import optax

from oneshot_dp.configs.head_config import HeadOptions, OneStepName
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.heads.contract import HeadResult, HeadSpec, HeadState
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows, rows_of
from oneshot_dp.linear_dp.statistics import class_sums

CLIP_NORM = 1.0
INITIAL_BIAS = -10.0
INITIAL_PROBABILITY = 1 / (1 + math.exp(-INITIAL_BIAS))

OPTIMIZERS: Mapping[OneStepName, optax.GradientTransformation] = {
  "lamb": optax.lamb(1.0, b1=0.9, b2=0.999, eps=1e-6),
  "adam": optax.adam(1.0, b1=0.9, b2=0.999, eps=1e-6),
  "momentum": optax.sgd(1.0, momentum=0.9),
}
"""The optimizers of table 4. The learning rate is 1: with one step from zero,
it scales all logits alike, and changes no prediction."""


def residual_norm(num_classes: int) -> float:
  """Returns ‖r‖ = √((1 − p0)² + (K − 1)·p0²), the same for every class.

  Args:
    num_classes: K, 1 at least.
  """
  of_other_classes = math.sqrt(num_classes - 1) * INITIAL_PROBABILITY
  return math.hypot(1 - INITIAL_PROBABILITY, of_other_classes)


def clipped_rows(data: PrivateDataset) -> Rows:
  """Returns the rows clipped to norm C/‖r‖; they serve class sums alone."""
  return rows_of(
    data,
    max_inverse_norm=residual_norm(data.num_classes) / CLIP_NORM,
    weight_norm_order=2,
  )


def one_step(
  sums: PrivateSums,
  rows: Rows,
  *,
  new_mu_squared: float,
  spent_mu_squared: float,
  state: HeadState | None,
  options: HeadOptions,
  optimizer: optax.GradientTransformation,
) -> HeadResult:
  """Takes one step from a kernel of zeros; the bias stays b0.

  Formal guarantees: the class sums are released by one Gaussian mechanism with
  μ² = `new_mu_squared`, and averaged with those released for a smaller ε; all
  else is post-processing.

  Args:
    sums: the Gaussian mechanism.
    rows: from `clipped_rows`.
    new_mu_squared: the budget, as μ².
    spent_mu_squared: not used: `sums` knows how precise its estimates are.
    state: not used, for the same reason.
    options: not used; a step has no options.
    optimizer: any optax transformation, for a learning rate of 1.

  Returns:
    The head; it keeps no state.
  """
  del spent_mu_squared, state, options
  num_classes = rows.data.num_classes
  sums_by_class, _ = sums.release(
    "class sums", rows, class_sums, mu_squared=new_mu_squared
  )
  # Released sums are of rows of norm at most 1, clipped rows have C/‖r‖.
  scale = CLIP_NORM / residual_norm(num_classes) / rows.data.n
  # From here on there is only public arithmetic. T is the sum of the noisy S_c,
  # and is not released by itself.
  total = sums_by_class.sum(axis=0)
  gradient = jnp.asarray(
    ((INITIAL_PROBABILITY * total - sums_by_class) * scale).T, jnp.float32
  )
  zeros = jnp.zeros(gradient.shape, jnp.float32)
  kernel, _ = optimizer.update(gradient, optimizer.init(zeros), zeros)
  bias = np.full(num_classes, INITIAL_BIAS, np.float32)
  return HeadResult(LinearHead(kernel=np.asarray(kernel), bias=bias))


SPECS: Mapping[OneStepName, HeadSpec] = {
  name: HeadSpec(
    make=functools.partial(one_step, optimizer=optimizer),
    prepare_rows=clipped_rows,
  )
  for name, optimizer in OPTIMIZERS.items()
}
"""The heads of one step, by the names of their optimizers."""
