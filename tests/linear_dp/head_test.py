import jax
import jax.numpy as jnp
import numpy as np

from linear_dp.clipping import ClippedGradientGrid
from linear_dp.head import LinearHead


def make_head(d=3, num_classes=4, seed=0):
  rng = np.random.default_rng(seed)
  return LinearHead(
    kernel=rng.standard_normal((d, num_classes)).astype(np.float32),
    bias=rng.standard_normal(num_classes).astype(np.float32),
  )


def test_starts_from_zero_and_b0():
  grid = ClippedGradientGrid(num_classes=4, feature_dim=3, initial_bias=-2.5)
  head = LinearHead.initial(grid)
  assert (head.feature_dim, head.num_classes) == (3, 4)
  assert not head.kernel.any()
  assert (head.bias == -2.5).all()
  assert head.kernel.dtype == head.bias.dtype == np.float32
  # Every class has the probability that the closed form starts from.
  logits = head.logits(jnp.ones((1, 3)))
  probability = jax.nn.sigmoid(logits)
  np.testing.assert_allclose(probability, grid.initial_probability, rtol=1e-6)


def test_logits():
  head = make_head()
  x = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
  expected = np.einsum("nd,dk->nk", x, head.kernel) + head.bias
  np.testing.assert_allclose(head.logits(jnp.asarray(x)), expected, rtol=1e-5)
