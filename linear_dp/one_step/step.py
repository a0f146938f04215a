"""One optimizer step from the initial head, along a released gradient.

Everything here is post-processing of a `Release`: no private data comes in.
"""

import dataclasses
import math
from typing import get_args

import jax
import numpy as np
import optax

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import OptimizerName
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.one_step.release import Release


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneStepOptimizer:
  r"""An optax optimizer, used for a single step.

  At a zero kernel and step one, LAMB and Adam move every weight by
  −lr·ḡ/(|ḡ| + eps), LAMB's trust ratio of a zero kernel being 1: `eps` is a
  soft threshold between following the sign of ḡ and following ḡ itself.
  Momentum is −lr·ḡ. The class that wins does not depend on lr.

  Attributes:
    learning_rate: lr; it scales the logits only.
    eps: LAMB's and Adam's eps, in units of the mean gradient.
    eps_in_noise_sds: if given, eps is this many standard deviations of the
      noise in ḡ (σ·C/n and the grid's rounding), instead of `eps`.

  Source: You et al., "Large Batch Optimization for Deep Learning" (LAMB), ICLR
  2020; Mehta et al. (TMLR 2023), table 4.
  """

  name: OptimizerName = "lamb"
  learning_rate: float = 1.0
  eps: float = 1e-6
  eps_in_noise_sds: float | None = None

  def __post_init__(self):
    if self.name not in get_args(OptimizerName):
      raise InputError(
        f"head={self.name!r} must be one of"
        f" {', '.join(get_args(OptimizerName))}."
      )
    if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
      raise InputError(
        f"learning_rate={self.learning_rate} must be positive and finite."
      )
    for field in ("eps", "eps_in_noise_sds"):
      value = getattr(self, field)
      if value is not None and not (math.isfinite(value) and value >= 0):
        raise InputError(f"{field}={value} must be finite and not negative.")

  def transformation(
    self, gradient_noise_sd: float
  ) -> optax.GradientTransformation:
    """The optax optimizer for a gradient whose noise has this deviation."""
    eps = self.eps
    if self.eps_in_noise_sds is not None:
      eps = self.eps_in_noise_sds * gradient_noise_sd
    # A baseline has no noise, and ḡ = 0 over eps = 0 would be NaN, not 0.
    eps = max(eps, float(np.finfo(np.float32).tiny))
    match self.name:
      case "lamb":
        return optax.lamb(self.learning_rate, b1=0.9, b2=0.999, eps=eps)
      case "adam":
        return optax.adam(self.learning_rate, b1=0.9, b2=0.999, eps=eps)
      case "momentum":
        return optax.sgd(self.learning_rate, momentum=0.9)


def one_step(release: Release, optimizer: OneStepOptimizer) -> LinearHead:
  """The head after one step from kernel 0 and bias b0.

  Three classes of one row each; with momentum, W = −lr·ḡ, so that row i of the
  kernel is −(p0·1 − e_i)/n:

  >>> import oneshot_dp
  >>> from oneshot_dp.linear_dp.one_step.release import baseline_without_privacy
  >>> rows = oneshot_dp.ArrayRows.of(np.eye(3), np.arange(3), num_classes=3)
  >>> grid = oneshot_dp.ClippedGradientGrid(
  ...   num_classes=3, feature_dim=3, initial_bias=-700.0
  ... )
  >>> secret = oneshot_dp.exact_clipped_sum([rows], grid, num_examples=3)
  >>> plan = oneshot_dp.ReleasePlan(epsilons=(1.0,), delta=1e-5)
  >>> exact = baseline_without_privacy(secret, plan)
  >>> one_step(exact, OneStepOptimizer(name="momentum")).kernel.round(3)
  array([[0.333, 0.   , 0.   ],
         [0.   , 0.333, 0.   ],
         [0.   , 0.   , 0.333]], dtype=float32)
  >>> one_step(exact, OneStepOptimizer(name="lamb")).kernel.round(3)
  array([[1., 0., 0.],
         [0., 1., 0.],
         [0., 0., 1.]], dtype=float32)

  The head is of float32; its bias is b0 where it was not trained.
  """
  grid = release.grid
  gradient = release.mean_gradient.astype(np.float32)
  start = LinearHead(
    kernel=np.zeros((grid.feature_dim, grid.num_classes), np.float32),
    bias=np.full(grid.num_classes, grid.initial_bias, np.float32),
  )
  params = {"kernel": start.kernel}
  grads = {"kernel": gradient[:, : grid.feature_dim].T}
  if grid.train_bias:
    params["bias"] = start.bias
    grads["bias"] = gradient[:, grid.feature_dim]
  transformation = optimizer.transformation(release.gradient_noise_sd)
  updates, _ = transformation.update(grads, transformation.init(params), params)
  stepped = jax.device_get(optax.apply_updates(params, updates))
  return LinearHead(
    kernel=stepped["kernel"], bias=stepped.get("bias", start.bias)
  )
