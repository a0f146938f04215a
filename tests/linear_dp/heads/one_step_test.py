"""The heads of one step: against NumPy, optax, jax_privacy and their law."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
import pytest

from oneshot_dp.configs.head_config import HeadOptions
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.heads.one_step import (
  OPTIMIZERS,
  clipped_rows,
  one_step,
  residual_norm,
)
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.statistics import class_sums
from tests.linear_dp.heads import reference

N, D, K = 257, 12, 5
SENSITIVITY = reference.UNIT_WEIGHT * reference.R


def rows_of_lengths(n=N, d=D, num_classes=K, seed=0):
  """Rows of which some are clipped, some are not, and some are zero."""
  rng = np.random.default_rng(seed)
  x = rng.standard_normal((n, d)) * np.exp(rng.standard_normal((n, 1)) - 1)
  x[::17] = 0
  return x.astype(np.float32), rng.integers(0, num_classes, n)


def take_step(sums, rows, optimizer_name, mu_squared, spent=0.0):
  return one_step(
    sums,
    rows,
    new_mu_squared=mu_squared,
    spent_mu_squared=spent,
    state=None,
    options=HeadOptions(),
    optimizer=OPTIMIZERS[optimizer_name],
  ).head


def noiseless_head(optimizer_name, x, y):
  rows = clipped_rows(dataset_from_arrays(x, y, num_classes=K))
  return take_step(PrivateSums(None, 0.0), rows, optimizer_name, math.inf)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("n", "d", "num_classes"), [(N, D, K), (1, 1, 1), (3, 1, 2), (2, 7, 1)]
)
def test_class_sums_have_the_bits_of_the_reference(n, d, num_classes):
  x, y = rows_of_lengths(n, d, num_classes)
  rows = clipped_rows(dataset_from_arrays(x, y, num_classes=num_classes))
  sums = PrivateSums(None, 0.0)
  released, _ = sums.release(
    "class sums", rows, class_sums, mu_squared=math.inf
  )
  exact = reference.class_sums(x, y, num_classes, 1.0, -10.0)
  assert (released == exact.astype(float) / SENSITIVITY).all()


@pytest.mark.slow
def test_gradient_is_that_of_jax_privacy():
  """Per-example clipping of the sigmoid cross-entropy at the first step."""
  x, y = rows_of_lengths()

  def loss(kernel, x, y):
    logits = x @ kernel - 10.0
    one_hot = jax.nn.one_hot(y, K)
    return optax.sigmoid_binary_cross_entropy(logits, one_hot).sum()

  clipped_gradient = jax_privacy.clipped_grad(
    loss, l2_clip_norm=1.0, batch_argnums=(1, 2), keep_batch_dim=False
  )
  total = clipped_gradient(jnp.zeros((D, K)), jnp.asarray(x), jnp.asarray(y))
  # The first step of momentum is minus the gradient.
  head = noiseless_head("momentum", x, y)
  np.testing.assert_allclose(-head.kernel, total / N, atol=2e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_releases_class_sums_once_within_its_budget(name):
  sums = PrivateSums(NoiseSource(1), 0.12)
  rows = clipped_rows(dataset_from_arrays(*rows_of_lengths(), num_classes=K))
  take_step(sums, rows, name, 0.04)
  (release,) = sums.releases
  assert (release.name, release.shape) == ("class sums", (K, D))
  assert Fraction(release.noise_multiplier) ** -2 <= Fraction(0.04)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_follows_from_what_was_released_alone(name):
  """Any optimizer is post-processing: NumPy makes the head from the release."""
  sums = PrivateSums(NoiseSource(1), 0.12)
  rows = clipped_rows(dataset_from_arrays(*rows_of_lengths(), num_classes=K))
  head = take_step(sums, rows, name, 0.04)
  ((estimate, precision),) = sums.estimates.values()
  assert precision == pytest.approx(0.04)
  mean = reference.gradient(estimate * SENSITIVITY, N, 1.0, -10.0)
  expected = reference.step(mean, name)
  np.testing.assert_allclose(head.kernel, expected, rtol=1e-4)
  assert head.bias.tolist() == [-10] * K
  assert not head.unit_norm


@pytest.fixture
def noise_of_two_steps():
  """The noise of a head that went on, per σ of a weight, [d, K]."""
  d = 4000
  x, y = rows_of_lengths(64, d)
  rows = clipped_rows(dataset_from_arrays(x, y, num_classes=K))
  sums = PrivateSums(NoiseSource(2), 0.12)
  take_step(sums, rows, "momentum", 0.04)
  head = take_step(sums, rows, "momentum", 0.05, spent=0.04)
  exact_sums = reference.class_sums(x, y, K, 1.0, -10.0)
  exact_kernel = -reference.gradient(exact_sums, 64, 1.0, -10.0).T
  # In the gradient, noise has the deviation σ·C/n.
  return (head.kernel - exact_kernel) * residual_norm(K) * 64


@pytest.mark.slow
def test_head_that_goes_on_has_the_noise_of_all_that_was_bought(
  noise_of_two_steps,
):
  expected = (0.04 + 0.05) ** -0.5
  assert noise_of_two_steps.std() == pytest.approx(expected, rel=0.03)


def test_noise_of_two_classes_is_alike_by_p0_alone(noise_of_two_steps):
  correlation = np.asarray(np.corrcoef(noise_of_two_steps.T))
  between = correlation[np.triu_indices(K, 1)]
  assert np.abs(between).max() < 5 / len(noise_of_two_steps) ** 0.5
