"""Runs the convolutional networks on weights of a public layout."""

from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from oneshot_dp.extract.backbones.backbone import Architecture, Arrays, Shape
from oneshot_dp.extract.backbones.registry import parameter_shapes
from oneshot_dp.extract.backbones.resnet import (
  bit_layouts,
  bit_resnet,
  nf_layouts,
  norm_free,
)
from tests.extract.backbones import conv_cases

TINY: dict[str, nn.Module] = {
  "bit": bit_resnet.BitResNet(**conv_cases.BIT_TINY),
  "nfnet": norm_free.NormFreeNet("nfnet", **conv_cases.NFNET_TINY),
  "nf_resnet": norm_free.NormFreeNet("nf_resnet", **conv_cases.NF_RESNET_TINY),
}


def shapes_of(module: nn.Module, side: int = 32) -> dict[str, Shape]:
  return parameter_shapes(module, side)


def renamed(case: str, weights: Arrays) -> Arrays:
  """Parameters of a small network, of public names."""
  module = TINY[case]
  arguments = weights, shapes_of(module), "file"
  if isinstance(module, norm_free.NormFreeNet):
    kind, blocks = module.kind, module.blocks
    return nf_layouts.rename(*arguments, kind=kind, blocks=blocks)
  return bit_layouts.rename(*arguments)


def embed(
  module: nn.Module, params: Mapping[str, np.ndarray], images: np.ndarray
) -> np.ndarray:
  tree = flax.traverse_util.unflatten_dict(dict(params), sep="/")
  apply = jax.jit(module.apply, compiler_options=conv_cases.SOON)
  output = apply({"params": tree}, images)
  assert output.dtype == jnp.float32
  return np.asarray(output)


def architecture(name: str) -> Architecture:
  found = bit_resnet.find(name) or norm_free.find(name)
  assert found is not None
  return found


def expected_shapes(name: str) -> dict[str, Shape]:
  module: Any = architecture(name).build("pooled", "float32")
  # To trace dozens of blocks takes seconds, and all are as the second.
  few = module.clone(blocks=tuple(min(2, count) for count in module.blocks))
  shapes = shapes_of(few)
  return shapes | {
    key.replace("_block2/", f"_block{i}/"): shape
    for key, shape in shapes.items()
    for stage, count in enumerate(module.blocks)
    for i in range(3, count + 1)
    if key.startswith(f"stage{stage + 1}_block2/")
  }
