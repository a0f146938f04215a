"""The heads of one step: against NumPy, optax, jax_privacy and their law."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
import pytest

from oneshot_dp.linear_dp.api import dataset_from_arrays
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
  """Some clipped, some not, some null."""
  rng = np.random.default_rng(seed)
  x = rng.standard_normal((n, d)) * np.exp(rng.standard_normal((n, 1)) - 1)
  x[::17] = 0
  return x.astype(np.float32), rng.integers(0, num_classes, n)


def stepped(name, x, y, buys=math.inf, seed=None):
  """The door, the rows and the head of one step; without a seed, no noise."""
  rows = clipped_rows(dataset_from_arrays(x, y, num_classes=K))
  sums = PrivateSums(None, 0.0)
  if seed is not None:
    sums = PrivateSums(NoiseSource(seed), 3 * buys)
  made, _ = one_step(sums, rows, buys, optimizer=OPTIMIZERS[name])
  return sums, rows, made


@pytest.mark.parametrize(
  ("n", "d", "num_classes"), [(N, D, K), (1, 1, 1), (3, 1, 2), (2, 7, 1)]
)
def test_the_sums_have_the_bits_of_the_reference(n, d, num_classes):
  x, y = rows_of_lengths(n, d, num_classes)
  rows = clipped_rows(dataset_from_arrays(x, y, num_classes=num_classes))
  sums = PrivateSums(None, 0.0)
  found, _ = sums.release("class sums", rows, class_sums, mu_squared=math.inf)
  exact = reference.class_sums(x, y, num_classes, 1.0, -10.0)
  assert (found == exact.astype(float) / SENSITIVITY).all()


def test_the_gradient_is_jax_privacy_s():
  """Per-example clipping of the sigmoid cross-entropy at the first step."""
  x, y = rows_of_lengths()

  def loss(kernel, x, y):
    logits = x @ kernel - 10.0
    return optax.sigmoid_binary_cross_entropy(
      logits, jax.nn.one_hot(y, K)
    ).sum()

  clipped = jax_privacy.clipped_grad(
    loss, l2_clip_norm=1.0, batch_argnums=(1, 2), keep_batch_dim=False
  )
  expected = clipped(jnp.zeros((D, K)), jnp.asarray(x), jnp.asarray(y)) / N
  head = stepped("momentum", x, y)[-1]  # its first step is minus the gradient
  np.testing.assert_allclose(-head.kernel, expected, atol=2e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_release_pays_for_any_transformation_of_it(name):
  """What leaves is S once; the head follows from it and public numbers."""
  x, y = rows_of_lengths()
  sums, _, made = stepped(name, x, y, 0.04, 1)
  (release,) = sums.releases
  assert (release.name, release.shape) == ("class sums", (K, D))
  assert Fraction(release.noise_multiplier) ** -2 <= Fraction(0.04)
  ((estimate, precision),) = sums.estimates.values()
  assert precision == pytest.approx(0.04)
  mean = reference.gradient(estimate * SENSITIVITY, N, 1.0, -10.0)
  expected = reference.step(mean, name)
  np.testing.assert_allclose(made.kernel, expected, rtol=1e-4)
  assert made.bias.tolist() == [-10] * K
  assert not made.unit_norm


def test_the_law_of_the_noise_and_of_topping_up():
  """One draw of all that was bought; the paper's noise but for p0 of it."""
  d = 4000
  x, y = rows_of_lengths(64, d)
  sums, rows, _ = stepped("momentum", x, y, 0.04, 2)
  made, _ = one_step(sums, rows, 0.05, 0.04, optimizer=OPTIMIZERS["momentum"])
  exact = reference.class_sums(x, y, K, 1.0, -10.0)
  # In the gradient: of deviation σ·C/n, and alike in all classes by p0 alone.
  scale = 1 / residual_norm(K) / 64
  of_exact = -reference.gradient(exact, 64, 1.0, -10.0).T
  z = (made.kernel - of_exact) / scale
  assert z.std() == pytest.approx(0.09**-0.5, rel=0.03)
  between = np.asarray(np.corrcoef(z.T))[np.triu_indices(K, 1)]
  assert np.abs(between).max() < 5 / d**0.5
