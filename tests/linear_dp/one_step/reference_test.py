"""The room equals its reference: bit for bit, the step to float32."""

import hypothesis
import numpy as np
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from oneshot_dp.linear_dp.accounting.events import CHANGED_UNITS
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step import reference, release
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer, one_step
from tests.linear_dp.blocks import DTYPES, random_block

N, D, K = 40, 6, 4


@hypothesis.settings(max_examples=20)
@hypothesis.given(
  seed=st.integers(0, 2**16),
  dtype=st.sampled_from(sorted(DTYPES)),
  spread=st.sampled_from([0.1, 1.5, 3.0]),
  clip_norm=st.floats(1e-3, 1e3),
  b0=st.sampled_from([-10.0, -0.7, 0.0, 2.5]),
  train_bias=st.booleans(),
  relation=st.sampled_from(list(CHANGED_UNITS)),
  head=st.sampled_from(["lamb", "adam", "momentum"]),
  lr=st.floats(0.01, 10),
  eps=st.floats(1e-7, 1),
)
def test_the_product_is_the_reference(
  seed, dtype, spread, clip_norm, b0, train_bias, relation, head, lr, eps
):
  block = random_block(N, D, K, seed=seed, dtype=dtype, spread=spread)
  grid = ClippedGradientGrid(
    num_classes=K,
    feature_dim=D,
    l2_clip_norm=clip_norm,
    initial_bias=b0,
    train_bias=train_bias,
  )
  g, p0, residual = reference.statistic(
    block.embedding, block.label, K, clip_norm, b0, train_bias
  )
  assert (grid.initial_probability, grid.residual_norm) == (p0, residual)
  secret = exact_clipped_sum([block], grid, num_examples=N)
  plan = ReleasePlan(epsilons=(2.0,), delta=1e-5, neighboring_relation=relation)
  exact = release.baseline_without_privacy(secret, plan)
  np.testing.assert_array_equal(exact.noisy_sum, g)

  (sigma,) = plan.noise_multipliers.values()
  replaced = relation is NeighboringRelation.REPLACE_ONE
  sd = reference.noise_sd(sigma, residual, g.shape, replaced)
  together = release._DRAWN_TOGETHER // g.size
  chain = GaussianChain((together, *g.shape), NoiseSource(seed))
  (released,) = release.release(
    secret, plan, NoiseSource(seed), charge=lambda plan, source: None
  )
  assert released.statement.noise_sd == sd
  noisy = g + chain.extend(sd)[0]
  np.testing.assert_array_equal(released.noisy_sum, noisy)

  mean = noisy * (clip_norm / (reference.B * residual) / N)
  kernel, bias = reference.step(mean, b0, train_bias, head, lr, eps)
  stepped = one_step(
    released, OneStepOptimizer(name=head, learning_rate=lr, eps=eps)
  )
  np.testing.assert_allclose(stepped.kernel, kernel, rtol=1e-5)
  np.testing.assert_allclose(stepped.bias, bias, rtol=1e-5, atol=1e-5 * lr)
