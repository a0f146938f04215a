"""Runs the convolutional networks on weights of a public layout."""

from collections.abc import Mapping

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from oneshot_dp.extract.backbones.backbone import Architecture, Shape
from oneshot_dp.extract.backbones.registry import parameter_shapes
from oneshot_dp.extract.backbones.resnet import bit_resnet, norm_free


def shapes_of(module: nn.Module, side: int = 32) -> dict[str, Shape]:
  return parameter_shapes(module, side)


def embed(
  module: nn.Module, params: Mapping[str, np.ndarray], images: np.ndarray
) -> np.ndarray:
  tree = flax.traverse_util.unflatten_dict(dict(params), sep="/")
  # These are small: to compile takes longer than to run.
  fast = {"xla_backend_optimization_level": 0}
  output = jax.jit(module.apply, compiler_options=fast)(
    {"params": tree}, images
  )
  assert output.dtype == jnp.float32
  return np.asarray(output)


def architecture(name: str) -> Architecture:
  for family in (bit_resnet, norm_free):
    if found := family.find(name):
      return found
  raise AssertionError(name)


def expected_shapes(name: str) -> dict[str, Shape]:
  return shapes_of(architecture(name).build("pooled", "float32"))
