import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.release import Release
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer, one_step

K, D, N = 6, 15, 1000


def make_release(train_bias=False, noise_sd=3e6, seed=0, zeros=0):
  grid = ClippedGradientGrid(
    num_classes=K, feature_dim=D, train_bias=train_bias
  )
  rng = np.random.default_rng(seed)
  noisy = np.rint(rng.standard_normal((K, grid.row_dim)) * 3e7).astype(np.int64)
  noisy[:, :zeros] = 0
  return Release(
    noisy_sum=noisy,
    grid=grid,
    num_examples=N,
    draw=0,
    statement=PrivacyStatement(
      epsilon=1.0,
      delta=1e-6,
      noise_multiplier=3.0 if noise_sd else 0.0,
      sensitivity=1e6,
      noise_sd=noise_sd,
      neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
      noise_source="os.urandom" if noise_sd else "none: NOT PRIVATE",
      is_private=noise_sd > 0,
    ),
  )


BY_HAND = {
  "lamb": lambda lr, eps: optax.lamb(lr, eps=eps),
  "adam": lambda lr, eps: optax.adam(lr, eps=eps),
  "momentum": lambda lr, eps: optax.sgd(lr, momentum=0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize(
  ("train_bias", "learning_rate", "eps"),
  [(False, 1.0, 1e-6), (True, 0.3, 1e-2)],
)
def test_equals_optax_on_the_whole_head(name, train_bias, learning_rate, eps):
  """Optax on the full head; an untrained bias is one whose update is dropped.

  Leaves do not mix in any of the three, so dropping it is leaving it out.
  """
  release = make_release(train_bias)
  gradient = jnp.asarray(release.mean_gradient, jnp.float32)
  bias_gradient = gradient[:, D] if train_bias else jnp.zeros(K)
  params = {"kernel": jnp.zeros((D, K)), "bias": jnp.full(K, -10.0)}
  grads = {"kernel": gradient[:, :D].T, "bias": bias_gradient}
  optimizer = BY_HAND[name](learning_rate, eps)
  updates, _ = optimizer.update(grads, optimizer.init(params), params)
  expected: Any = optax.apply_updates(params, updates)

  head = one_step(
    release, OneStepOptimizer(name=name, learning_rate=learning_rate, eps=eps)
  )
  np.testing.assert_allclose(head.kernel, expected["kernel"], rtol=1e-6)
  assert head.kernel.dtype == head.bias.dtype == np.float32
  if train_bias:
    np.testing.assert_allclose(head.bias, expected["bias"], rtol=1e-6)
    assert np.ptp(head.bias) > 0
  else:
    assert (head.bias == -10).all()


@pytest.mark.parametrize("name", ["lamb", "adam"])
@pytest.mark.parametrize("multiple", [0.5, 2.0])
def test_eps_in_units_of_the_noise(name, multiple):
  release = make_release()
  sd = release.statement.noise_sd * release.grid.step / N
  assert release.gradient_noise_sd == pytest.approx(sd, rel=1e-12)
  in_sds = one_step(
    release, OneStepOptimizer(name=name, eps=123.0, eps_in_noise_sds=multiple)
  )
  plain = one_step(release, OneStepOptimizer(name=name, eps=multiple * sd))
  np.testing.assert_array_equal(in_sds.kernel, plain.kernel)
  mean = release.mean_gradient.T
  expected = -mean / (np.abs(mean) + multiple * sd)
  np.testing.assert_allclose(in_sds.kernel, expected, rtol=2e-5)


@pytest.mark.parametrize("name", ["lamb", "adam"])
@pytest.mark.parametrize(
  "options",
  [{"eps": 0.0}, {"eps_in_noise_sds": 2.0}, {"eps_in_noise_sds": 0.0}],
)
def test_no_eps_is_the_sign_and_a_zero_gradient_stays(name, options):
  """A feature that is always zero, and a baseline, which has no noise."""
  release = make_release(noise_sd=0.0, zeros=3)
  head = one_step(release, OneStepOptimizer(name=name, **options))
  assert not head.kernel[:3].any()
  expected = -np.sign(release.mean_gradient.T)
  np.testing.assert_allclose(head.kernel, expected, rtol=1e-5)


@pytest.mark.parametrize(
  ("field", "value"),
  [
    ("learning_rate", 0.0),
    ("learning_rate", -1.0),
    ("learning_rate", math.nan),
    ("learning_rate", math.inf),
    ("eps", -1e-9),
    ("eps", math.nan),
    ("eps", math.inf),
    ("eps_in_noise_sds", -1.0),
    ("eps_in_noise_sds", math.nan),
  ],
)
def test_bad_values_are_refused(field, value):
  with pytest.raises(InputError, match=f"{field}={value} must be"):
    OneStepOptimizer(**{field: value})
