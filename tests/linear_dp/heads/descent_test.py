"""Following gradients, against loops that are written out."""

import math

import numpy as np
import optax
import pytest
import scipy.stats

from oneshot_dp.linear_dp.heads.descent import (
  descend,
  initial_kernel,
  unit_scale,
)

P, K = 6, 4
# Seeds are fixed, so that a test passes always or never.
P_VALUE = 1e-4
OPTIMIZERS = {
  "momentum": optax.sgd(0.03, momentum=0.9),
  "adam": optax.adam(0.1, b1=0.9, b2=0.999, eps=1e-6),
  "lamb": optax.lamb(0.1, b1=0.9, b2=0.999, eps=1e-6),
}


def target() -> np.ndarray:
  return np.random.default_rng(1).standard_normal((P, K))


def gradient(kernel: np.ndarray) -> np.ndarray:
  """A bowl's, which is steeper in some directions than in others."""
  return (kernel - target()) * np.linspace(0.1, 3, P)[:, None]


def start() -> np.ndarray:
  return np.random.default_rng(2).standard_normal((P, K))


def by_hand(name: str, steps: int) -> list[np.ndarray]:
  """The weights after every step, in numpy."""
  w, m, v = start(), np.zeros((P, K)), np.zeros((P, K))
  found = []
  for t in range(1, steps + 1):
    g = gradient(w)
    if name == "momentum":
      m = 0.9 * m + g
      w = w - 0.03 * m
    else:
      m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
      update = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6)
      if name == "lamb":
        update *= np.linalg.norm(w) / np.linalg.norm(update)
      w = w - 0.1 * update
    found.append(w)
  return found


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [1, 25])
def test_the_last_weights(name, steps):
  found = descend(start(), [gradient] * steps, OPTIMIZERS[name])
  expected = by_hand(name, steps)[-1]
  assert found.dtype == np.float64
  # In float64: what optax does in float32 is 10⁻⁷ off.
  np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
  assert np.abs(found - start()).max() > 0.01


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 25])
def test_an_average_has_no_bias_of_its_beginning(decay, steps):
  """(1 − β)·Σ β^(T − t)·W_t / (1 − β^T): no weight on where it started."""
  found = descend(start(), [gradient] * steps, OPTIMIZERS["momentum"], decay)
  path = np.array(by_hand("momentum", steps))
  weight = decay ** np.arange(steps - 1, -1, -1.0)
  expected = np.tensordot(weight / weight.sum(), path, 1)
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
  # It is of the weights, and does not change how they move.
  seen = []
  descend(
    start(),
    [lambda w: (seen.append(w), gradient(w))[1]] * steps,
    OPTIMIZERS["momentum"],
    decay,
  )
  assert len(seen) == steps
  np.testing.assert_array_equal(seen[0], start())
  for w, expected in zip(seen[1:], path, strict=False):
    np.testing.assert_allclose(w, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("decay", [None, 0.9])
def test_no_step_is_the_start(decay):
  found = descend(start(), [], OPTIMIZERS["adam"], decay)
  np.testing.assert_array_equal(found, start())


def test_zero_weights_are_zero_whatever_the_seed():
  for seed in (0, 7):
    found = initial_kernel("zero", 3.0, (P, K), seed)
    np.testing.assert_array_equal(found, np.zeros((P, K)))
    assert found.dtype == np.float64


@pytest.mark.parametrize(
  ("init", "scale", "sd"),
  [("normal", 1.0, 1.0), ("normal", 0.01, 0.01), ("lecun", 3.0, 1 / 20)],
)
def test_deviation_of_random_weights(init, scale, sd):
  """ "lecun": 1/√p, p = 400 here, and no scale."""
  found = initial_kernel(init, scale, (400, 30), 5)
  assert found.dtype == np.float64
  law = scipy.stats.chi2(found.size)
  total = (found**2).sum() / sd**2
  assert P_VALUE < law.cdf(total) < 1 - P_VALUE
  normal = scipy.stats.norm(scale=sd)
  assert scipy.stats.kstest(found.ravel(), normal.cdf).pvalue > P_VALUE


@pytest.mark.parametrize("init", ["normal", "lecun"])
def test_a_seed_repeats_and_another_does_not(init):
  one, same, other = (
    initial_kernel(init, 1.0, (P, K), seed) for seed in (3, 3, 4)
  )
  np.testing.assert_array_equal(one, same)
  assert (one != other).all()


def test_unit_scale_is_of_the_longest_column():
  kernel = start() * 1e100
  found = unit_scale(kernel)
  assert np.linalg.norm(found, axis=0).max() == pytest.approx(1, rel=1e-15)
  np.testing.assert_allclose(found / found[0, 0], kernel / kernel[0, 0])
  assert math.copysign(1, found[0, 0]) == math.copysign(1, kernel[0, 0])
  assert not unit_scale(np.zeros((P, K))).any()
