"""Temperatures, against optax on the same rows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.calibration import fit_temperature, probabilities


def rows(size: float, n: int = 500):
  """Labels drawn of softmax(logits), which are then multiplied."""
  rng = np.random.default_rng(0)
  logits = rng.standard_normal((n, 4))
  chances = probabilities(logits, 1.0)
  labels = np.array([rng.choice(4, p=each) for each in chances])
  return (size * logits).astype(np.float32), labels


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e5])
def test_it_is_the_likeliest(size):
  logits, labels = rows(size)
  found = fit_temperature(logits, labels)

  def loss(temperature):
    losses = optax.softmax_cross_entropy_with_integer_labels(
      jnp.asarray(logits / np.float32(size), jnp.float32)
      / (temperature / size),
      labels,
    )
    return losses.mean()

  slope = jax.grad(lambda log: loss(found * jnp.exp(log)))(0.0)
  assert abs(slope) < 1e-5
  # It undoes the size of the logits, to what 500 labels tell.
  assert 0.8 < found / size < 1.25
  assert found == pytest.approx(
    fit_temperature(2 * logits, labels) / 2, rel=1e-4
  )


@pytest.mark.parametrize("wrong", [False, True])
def test_labels_that_no_temperature_fits(wrong):
  logits, _ = rows(1.0)
  labels = logits.argmin(axis=1) if wrong else logits.argmax(axis=1)
  with pytest.raises(InputError, match="no temperature fits these 500 rows"):
    fit_temperature(logits, labels)
