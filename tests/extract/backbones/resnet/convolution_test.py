import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from oneshot_dp.extract.backbones.resnet.convolution import Convolution


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


def test_bfloat16_products_give_bfloat16_whatever_the_kernels_dtype():
  images = draw_images(5)
  conv = Convolution(8, 3, padding=1, compute_dtype="bfloat16")
  wide = conv.init(jax.random.key(0), images)
  narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), wide)
  got = jnp.asarray(conv.apply(wide, images))
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, conv.apply(narrow, images))
