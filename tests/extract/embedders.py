"""Backbones so small that a test knows their embeddings."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.images.preprocess import Preprocessing


def first_pixel(on_trace: Callable[[], object] = lambda: None) -> Backbone:
  """An embedding that tells which image it is of: (index, 1)."""

  def apply(params: dict, images: jax.Array) -> jax.Array:
    on_trace()
    value = images[:, 0, 0, :1].astype(jnp.float32)
    return jnp.concatenate([value, jnp.ones_like(value)], axis=1) * params["a"]

  return _backbone(apply, {"a": np.float32(1)}, feature_dim=2, side=4)


def attention() -> Backbone:
  """Mixes everything within an image, and nothing between images."""

  def apply(params: dict, images: jax.Array) -> jax.Array:
    tokens = images.reshape(len(images), 64, 3) / 255 @ params["in"]
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", tokens, tokens))
    return jnp.einsum("bqk,bkd->bqd", weights, tokens).mean(axis=1)

  kernel = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
  return _backbone(apply, {"in": kernel}, feature_dim=32, side=8)


def mean_colour() -> Backbone:
  """An embedding that any number of views have: (red, green, blue)."""

  def apply(params: dict, images: jax.Array) -> jax.Array:
    return images.astype(jnp.float32).mean(axis=(1, 2))

  return _backbone(apply, {}, feature_dim=3, side=4)


def _backbone(
  apply: Callable, params: dict, *, feature_dim: int, side: int
) -> Backbone:
  return Backbone(
    name="small",
    embedding="-",
    feature_dim=feature_dim,
    preprocessing=Preprocessing(image_size=side),
    weights_sha256="-",
    compute_dtype="float32",
    params=params,
    apply=apply,
  )
