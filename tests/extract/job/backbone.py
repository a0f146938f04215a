"""A backbone of no weights: the image itself, and some work for the device."""

import jax.numpy as jnp


def embed(params, images):
  rows = images.reshape(len(images), -1)[:, :4096]
  return rows + jnp.tanh(rows @ jnp.ones((rows.shape[1], 1)))
