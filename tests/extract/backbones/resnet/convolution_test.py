import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import linen as nn

from oneshot_dp.extract.backbones.resnet.convolution import (
  Convolution,
  GroupNorm,
  standardize,
)


def draw_images(side: int) -> jax.Array:
  images = np.random.default_rng(0).normal(size=(2, side, side, 12))
  return jnp.asarray(images, jnp.float32)


@pytest.mark.parametrize(
  ("size", "stride", "padding", "groups", "side"),
  [
    (1, 1, 0, 1, 5),
    (1, 2, 0, 1, 9),
    (1, 2, 0, 1, 8),
    (1, 1, 0, 3, 5),
    (3, 2, 1, 1, 9),
    (3, 2, "SAME", 1, 8),
    (3, 1, 1, 3, 9),
    (7, 2, 3, 1, 9),
  ],
)
def test_equals_linens_convolution(size, stride, padding, groups, side):
  images = draw_images(side)
  ours = Convolution(
    6, size, stride=stride, padding=padding, groups=groups, bias=True
  )
  linen = nn.Conv(
    6,
    (size, size),
    strides=stride,
    padding=padding,
    feature_group_count=groups,
    precision="highest",
  )
  rng = np.random.default_rng(1)
  shape = (size, size, 12 // groups, 6)
  kernel = rng.normal(size=shape) / np.prod(shape[:3]) ** 0.5
  params = {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.arange(6.0)}
  params = {"params": params}
  got = jax.jit(ours.apply)(params, images)
  want = jax.jit(linen.apply)(params, images)
  np.testing.assert_allclose(got, want, atol=3e-6)


@pytest.mark.slow
def test_bfloat16_products_give_bfloat16_whatever_the_kernels_dtype():
  images = draw_images(5)
  conv = Convolution(8, 3, padding=1, compute_dtype="bfloat16")
  kernel = np.random.default_rng(1).normal(size=(3, 3, 12, 8))
  apply = jax.jit(conv.apply)
  got, narrow = (
    apply({"params": {"kernel": kernel.astype(dtype)}}, images)
    for dtype in (np.float32, ml_dtypes.bfloat16)
  )
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, narrow)


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
  return jnp.asarray(jax.jit(GroupNorm(groups).apply)(variables, images))


@pytest.mark.slow
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
  forgets = nn.GroupNorm(4, epsilon=1e-5)
  linen = jax.jit(forgets.apply)(variables, images + 1000)
  linen = jnp.asarray(linen)
  assert abs(nn.relu(linen) - plain).max() > 1e-2


def test_bfloat16_activations_have_float32_statistics():
  variables, images = draw(mean=2.0)
  narrow = jnp.asarray(images, jnp.bfloat16)
  got = normalized(4, variables, narrow)
  want = normalized(4, variables, narrow.astype(jnp.float32))
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))


@hypothesis.given(
  seed=st.integers(0, 2**16),
  mean=st.floats(-100, 100),
  spread=st.floats(1e-2, 100),
  gain=st.tuples(*[st.floats(-10, 10)] * 5),
)
def test_every_channel_has_mean_0_and_deviation_gain(seed, mean, spread, gain):
  rng = np.random.default_rng(seed)
  kernel = rng.normal(mean, spread, size=(3, 3, 4, 5)).astype(np.float32)
  got = standardize(kernel, 1e-10, np.array(gain)).astype(np.float64)
  np.testing.assert_allclose(got.mean(axis=(0, 1, 2)), 0, atol=1e-4)
  found = (got * (kernel - kernel.mean(axis=(0, 1, 2)))).mean(axis=(0, 1, 2))
  spreads = kernel.std(axis=(0, 1, 2), dtype=np.float64)
  np.testing.assert_allclose(found / spreads, gain, rtol=1e-3, atol=1e-4)


def test_epsilon_is_added_to_the_variance():
  kernel = np.array([[-0.5, -2.0], [0.5, 2.0]], np.float32)
  got = standardize(kernel, 0.75)
  want = kernel / np.sqrt([0.25 + 0.75, 4 + 0.75])
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_constant_channel_becomes_0():
  assert not standardize(np.full((3, 3, 2, 2), 0.1, np.float32), 1e-10).any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_dtypes_are_computed_in_float64(dtype):
  kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 4)).astype(dtype)
  got = standardize(kernel, 1e-5)
  assert got.dtype == np.float32
  assert got.flags.c_contiguous
  np.testing.assert_array_equal(
    got, standardize(kernel.astype(np.float64), 1e-5)
  )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so_to_be_refused(bad):
  kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 2))
  kernel[0, 0, 0, 1] = bad
  got = standardize(kernel, 1e-10)
  assert np.isfinite(got[..., 0]).all()
  assert np.isnan(got[..., 1]).all()
