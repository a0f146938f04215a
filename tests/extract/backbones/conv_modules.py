"""Runs the convolutional networks on weights of a public layout."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from extract.backbones import bit_resnet, nf_resnet, nfnet
from extract.backbones.architecture import Architecture


def shapes_of(module: nn.Module, side: int = 32) -> dict[str, tuple[int, ...]]:
  images = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
  tree = jax.eval_shape(module.init, jax.random.key(0), images)["params"]
  flat: dict[str, Any] = flax.traverse_util.flatten_dict(tree, sep="/")
  return {name: leaf.shape for name, leaf in flat.items()}


def embed(
  module: nn.Module, params: Mapping[str, np.ndarray], images: np.ndarray
) -> np.ndarray:
  tree = flax.traverse_util.unflatten_dict(dict(params), sep="/")
  output = jax.jit(module.apply)({"params": tree}, images)
  assert output.dtype == jnp.float32
  return np.asarray(output)


def architecture(name: str) -> Architecture:
  for family in (bit_resnet, nf_resnet, nfnet):
    if found := family.find(name):
      return found
  raise AssertionError(name)


@functools.cache
def expected_shapes(name: str) -> dict[str, tuple[int, ...]]:
  return shapes_of(architecture(name).build("pooled", "float32"))
