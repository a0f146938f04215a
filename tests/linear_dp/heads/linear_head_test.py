import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from oneshot_dp.linear_dp.heads.linear_head import LinearHead


def make_head(d=3, num_classes=4, seed=0):
  rng = np.random.default_rng(seed)
  return LinearHead(
    kernel=rng.standard_normal((d, num_classes)).astype(np.float32),
    bias=rng.standard_normal(num_classes).astype(np.float32),
  )


def test_logits_of_rows_at_norm_1():
  """Rows of every length, and one of zeros, which has no direction."""
  head = dataclasses.replace(make_head(), unit_norm=True)
  rows = np.random.default_rng(1).standard_normal((5, 3))
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  expected = np.einsum("nd,dk->nk", rows, head.kernel) + head.bias
  for length in (1e-36, 1e-30, 1e-20, 1.0, 1e20, 5e37):
    found = head.logits(jnp.asarray(rows * length, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  found = head.logits(jnp.zeros((2, 3)))
  np.testing.assert_array_equal(found, [head.bias] * 2)


@pytest.mark.parametrize("entry", [np.inf, np.nan])
def test_what_is_not_finite_has_no_logits(entry):
  """As for rows as they are: it is no hit of any class."""
  head = dataclasses.replace(make_head(), unit_norm=True)
  rows = jnp.asarray([[entry, 1.0, 2.0], [1.0, 2.0, 3.0]])
  found = np.asarray(head.logits(rows))
  assert np.isnan(found[0]).all()
  assert np.isfinite(found[1]).all()


def test_a_common_bias_does_not_swallow_small_logits():
  kernel = 1e-9 * np.eye(3, dtype=np.float32)
  head = LinearHead(kernel=kernel, bias=np.full(3, -10, np.float32))
  rows = jnp.eye(3)
  assert np.ptp(np.asarray(head.logits(rows))) == 0
  found = np.asarray(head.ranking().logits(rows))
  assert found.argmax(axis=1).tolist() == [0, 1, 2]
