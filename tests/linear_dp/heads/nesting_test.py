"""Going on by precision: a nested head is worth one that was made alone."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from oneshot_dp.linear_dp.heads.contract import HeadState
from oneshot_dp.linear_dp.heads.nesting import moved_before, nesting_weights
from oneshot_dp.linear_dp.heads.whitening import Whitening

D, K = 6, 3


def rate(mu_squared):
  """How the learning rate depends on the noise multiplier."""
  return 1 / max(mu_squared**-0.5, 1.0)


MU_SQUARED = st.floats(-6, 3).map(lambda exponent: 10**exponent)


@hypothesis.given(MU_SQUARED, MU_SQUARED)
def test_nested_head_has_the_noise_of_one_made_alone(new, spent):
  """Noise of both parts, each its rate times its σ, adds up in squares."""
  weights = nesting_weights(new_mu_squared=new, spent_mu_squared=spent)
  earlier_sd = weights.earlier * rate(spent) * spent**-0.5
  new_sd = weights.steps * rate(new) * new**-0.5
  alone_sd = rate(new + spent) * (new + spent) ** -0.5
  assert np.hypot(earlier_sd, new_sd) == pytest.approx(alone_sd, rel=1e-9)


@hypothesis.given(MU_SQUARED, MU_SQUARED)
def test_nested_head_moves_as_far_as_one_made_alone(new, spent):
  """Without noise, both parts are their rates times the same gradients."""
  weights = nesting_weights(new_mu_squared=new, spent_mu_squared=spent)
  moved = weights.earlier * rate(spent) + weights.steps * rate(new)
  assert moved == pytest.approx(rate(new + spent), rel=1e-9)


def test_parts_of_a_chain_count_for_their_precision():
  """Over several ε, what was released for one counts for its share of μ²."""
  budgets = [0.001, 0.002, 0.01, 0.5]
  shares = []
  for smaller, larger in itertools.pairwise([0.0, *budgets]):
    new = larger - smaller
    if not smaller:
      shares = [rate(new)]
      continue
    weights = nesting_weights(new_mu_squared=new, spent_mu_squared=smaller)
    shares = [share * weights.earlier for share in shares]
    shares.append(weights.steps * rate(new))
  expected = np.diff([0.0, *budgets]) / budgets[-1] * rate(budgets[-1])
  np.testing.assert_allclose(shares, expected)


def test_moved_before_leaves_out_the_start_and_restores_the_length():
  rng = np.random.default_rng(0)
  begin = rng.standard_normal((D, K))
  moved = rng.standard_normal((D, K))
  kernel = begin + moved
  length = np.linalg.norm(kernel, axis=0).mean()
  state = HeadState(kernel=kernel, begin=begin, length=length, centered=False)
  halved = Whitening(matrix=2 * np.eye(D), inverse=0.5 * np.eye(D))
  np.testing.assert_allclose(moved_before(state, Whitening()), moved)
  np.testing.assert_allclose(moved_before(state, halved), moved)


def test_moved_before_of_zeros_is_zeros():
  zeros = np.zeros((D, K))
  state = HeadState(kernel=zeros, begin=zeros, length=0.0, centered=True)
  assert not moved_before(state, Whitening()).any()


def test_state_of_an_older_version_without_a_start_began_at_zeros():
  arrays = {
    "kernel": np.ones((D, K)),
    "length": np.array(2.0),
    "estimate/mean/0": np.zeros((1, D)),
  }
  state = HeadState.from_arrays(arrays)
  assert state is not None
  assert state.centered
  assert not state.begin.any()
