import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from oneshot_dp.extract.backbones.resnet.group_norm import GroupNormRelu


def draw(mean: float) -> tuple[dict, jax.Array]:
  rng = np.random.default_rng(0)
  per_channel = mean * rng.normal(size=24)
  images = rng.normal(size=(3, 7, 5, 24)) + per_channel
  params = {
    "scale": rng.uniform(0.5, 1.5, size=24),
    "bias": rng.normal(size=24),
  }
  variables = {"params": params}
  return jax.tree.map(
    lambda x: jnp.asarray(x, jnp.float32), (variables, images)
  )


def normalized(groups: int, variables: dict, images: jax.Array) -> jax.Array:
  return jnp.asarray(GroupNormRelu(groups).apply(variables, images))


@pytest.mark.parametrize("groups", [1, 4, 24])
def test_equals_group_norm_in_float64(groups):
  variables, images = draw(mean=2.0)
  params = variables["params"]
  got = normalized(groups, variables, images)
  wide = np.asarray(images, np.float64).reshape(3, 35, groups, -1)
  centred = wide - wide.mean(axis=(1, 3), keepdims=True)
  var = np.square(centred).mean(axis=(1, 3), keepdims=True)
  want = (centred / np.sqrt(var + 1e-5)).reshape(images.shape)
  want = np.maximum(want * params["scale"] + params["bias"], 0)
  np.testing.assert_allclose(got, want, atol=2e-6)


def test_a_large_mean_does_not_cost_digits():
  variables, images = draw(mean=0.0)
  plain = normalized(4, variables, images)
  np.testing.assert_allclose(
    normalized(4, variables, images + 1000), plain, atol=1e-3
  )
  # linen's default forgets what is small beside the mean
  linen = nn.GroupNorm(4, epsilon=1e-5).apply(variables, images + 1000)
  linen = jnp.asarray(linen)
  assert abs(nn.relu(linen) - plain).max() > 1e-2


def test_bfloat16_activations_have_float32_statistics():
  variables, images = draw(mean=2.0)
  narrow = jnp.asarray(images, jnp.bfloat16)
  got = normalized(4, variables, narrow)
  want = normalized(4, variables, narrow.astype(jnp.float32))
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))
