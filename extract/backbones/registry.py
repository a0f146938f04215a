"""Backbones by name: finds the architecture, reads the weights, joins them."""

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import importlib.resources
import pathlib
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import linen as nn

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  BackboneConfig,
  ComputeDtype,
  PreprocessConfig,
)
from oneshot_dp.extract.backbones import random_patches
from oneshot_dp.extract.backbones.backbone import (
  Architecture,
  Backbone,
  Shape,
  apply_function,
  output_shape,
)
from oneshot_dp.extract.backbones.checkpoint import read_arrays, to_params
from oneshot_dp.extract.backbones.resnet import (
  bit_resnet,
  norm_free,
  wide_resnet,
)
from oneshot_dp.extract.backbones.user_function import (
  is_user_function,
  load_user_function,
)
from oneshot_dp.extract.backbones.vit import families as vit
from oneshot_dp.extract.backbones.vit import glyph_vit
from oneshot_dp.extract.images.preprocess import Preprocessing
from oneshot_dp.extract.weights import weights_cache
from oneshot_dp.extract.weights.locations import local_weights

_FAMILIES = (vit, bit_resnet, norm_free, wide_resnet, glyph_vit)
RANDOM_PATCHES = "random_patches"


def backbone_names() -> list[str]:
  """The names to list and to suggest; families take other sizes as well.

  >>> "vit_b16" in backbone_names()
  True

  Returns:
    Names for `BackboneConfig.name`, family by family.
  """
  listed = [name for family in _FAMILIES for name in family.EXAMPLES]
  return [*listed, RANDOM_PATCHES]


def find_architecture(name: str) -> Architecture:
  """The network of a name; refuses an unknown one with the nearest names."""
  for family in _FAMILIES:
    if architecture := family.find(name):
      return architecture
  near = difflib.get_close_matches(name.lower(), backbone_names(), n=3)
  hint = f"did you mean {' or '.join(near)}? " if near else ""
  raise InputError(
    f"backbone name {name!r} is unknown: {hint}`oneshot-dp backbones` lists"
    " them; a function of your own is FILE.py:FUNCTION."
  )


def load_backbone(
  config: BackboneConfig, preprocess: PreprocessConfig
) -> Backbone:
  """Fetches, reads and checks the weights; every call reads them again.

  >>> config = BackboneConfig(name="random_patches")
  >>> backbone = load_backbone(config, PreprocessConfig())
  >>> backbone.feature_dim, backbone.preprocessing.image_size
  (256, 8)

  Args:
    config: name, weights, embedding, dtype of the products.
    preprocess: changes to the backbone's own preprocessing.

  Returns:
    The network with its weights in memory, ready for batches of images.

  Raises:
    InputError: an unknown name; weights missing where they are needed, given
      where they are not, or not those of the backbone; an image size or an
      embedding that it does not have.
    RunError: a download failed.
  """
  if config.name == RANDOM_PATCHES:
    return _load_random_patches(config, preprocess)
  if is_user_function(config.name):
    return load_user_function(config, preprocess)
  architecture = find_architecture(config.name)
  preprocessing = architecture.reference.changed(preprocess)
  embedding = config.embedding or architecture.embeddings[0]
  config = resolved(config)
  compute_dtype = config.compute_dtype
  assert compute_dtype is not None
  module = architecture.build(embedding, compute_dtype)
  # Before the weights are read: an image size that it cannot take is refused.
  shapes = parameter_shapes(module, preprocessing.image_size)
  with _weights_file(architecture, config) as path:
    arrays, sha256 = read_arrays(path)
    params = to_params(architecture, arrays, shapes, path)
  if config.weights is not None:
    weights_cache.remember(config.weights, sha256)
  return Backbone(
    name=config.name,
    embedding=embedding,
    feature_dim=feature_dim(module, preprocessing),
    preprocessing=preprocessing,
    weights_sha256=sha256,
    compute_dtype=compute_dtype,
    params=stored_params(params, compute_dtype),
    apply=apply_function(module, preprocessing),
  )


def _weights_file(
  architecture: Architecture, config: BackboneConfig
) -> contextlib.AbstractContextManager[pathlib.Path]:
  if config.weights is not None:
    path = local_weights(config.weights, config.weights_sha256)
    return contextlib.nullcontext(path)
  if architecture.embedded_weights is not None:
    return importlib.resources.as_file(architecture.embedded_weights)
  raise InputError(
    f"backbone {config.name} needs pretrained weights: set backbone.weights "
    f"to a path or URL of one of: {'; '.join(architecture.layouts)}."
  )


def resolved(config: BackboneConfig) -> BackboneConfig:
  """With the compute dtype that this machine's devices are fast at, if None."""
  own = config.name == RANDOM_PATCHES or is_user_function(config.name)
  if own or config.compute_dtype is not None:
    return config
  on_cpu = jax.default_backend() == "cpu"
  return dataclasses.replace(
    config, compute_dtype="float32" if on_cpu else "bfloat16"
  )


def parameter_shapes(module: nn.Module, image_size: int) -> dict[str, Shape]:
  """Shape of every parameter by "/"-joined name, without computing any."""
  _, tree = _traced(module, image_size)
  flat: dict[str, Any] = flax.traverse_util.flatten_dict(
    tree["params"], sep="/"
  )
  return {name: leaf.shape for name, leaf in flat.items()}


def feature_dim(module: nn.Module, preprocessing: Preprocessing) -> int:
  """Width of a module's embeddings, without computing any."""
  output, _ = _traced(module, preprocessing.image_size)
  return output.shape[1]


@functools.cache  # of a deep network it takes a second
def _traced(module: nn.Module, image_size: int) -> Any:
  """What the module makes of one image, and its variables, as shapes."""
  images = jax.ShapeDtypeStruct((1, image_size, image_size, 3), jnp.float32)
  return jax.eval_shape(module.init_with_output, jax.random.key(0), images)


def stored_params(params: Any, compute_dtype: ComputeDtype) -> Any:
  """Kernels in the dtype of their products, at half the memory in bfloat16.

  A product would round them there in any case: the embeddings are the same.
  """
  if compute_dtype == "float32":
    return params

  def store(path: tuple, leaf: np.ndarray) -> np.ndarray:
    is_kernel = path[-1].key == "kernel"
    return leaf.astype(ml_dtypes.bfloat16) if is_kernel else leaf

  return jax.tree_util.tree_map_with_path(store, params)


def _load_random_patches(
  config: BackboneConfig, preprocess: PreprocessConfig
) -> Backbone:
  if config != BackboneConfig(name=config.name):
    raise InputError(
      "backbone random_patches has nothing to choose: leave out weights="
      f"{config.weights}, embedding={config.embedding} and compute_dtype="
      f"{config.compute_dtype}, or name another backbone."
    )
  preprocessing = random_patches.REFERENCE.changed(preprocess)
  apply = apply_function(random_patches.apply, preprocessing)
  params = random_patches.make_params()
  digest = hashlib.sha256()
  for key in sorted(params):
    digest.update(params[key].astype("<f4").tobytes())
  return Backbone(
    name=config.name,
    embedding="grid_mean",
    # Refuses an image size it cannot take, before the job starts.
    feature_dim=output_shape(apply, params, preprocessing.image_size)[1],
    preprocessing=preprocessing,
    weights_sha256=digest.hexdigest(),
    compute_dtype="float32",
    params=params,
    apply=apply,
  )
