"""The network in training: `glyph_vit` and a linear head on its embedding."""

import pathlib
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import linen as nn
from jaxtyping import Array, Float32, Key

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.registry import find_architecture
from oneshot_dp.extract.backbones.vit.glyph_vit import NAME
from oneshot_dp.extract.pretraining.augmentation import IMAGE_SIZE
from oneshot_dp.extract.pretraining.characters import CLASSES

Params = dict[str, Any]


class Classifier(nn.Module):
  """Images of glyphs to a logit for every class: the backbone, and `head`."""

  @nn.compact
  def __call__(self, images: Float32[Any, "b 32 32"]) -> Float32[Array, "b k"]:
    """Logits of images in [0, 1]."""
    architecture = find_architecture(NAME)
    backbone = architecture.build(architecture.embeddings[0], "float32")
    backbone = backbone.clone(parent=self)
    nn.share_scope(self, backbone)
    reference = architecture.reference
    mean, std = reference.mean[0], reference.std[0]
    rgb = jnp.repeat((images[..., None] - mean) / std, 3, axis=-1)
    return nn.Dense(len(CLASSES), use_bias=False, name="head")(backbone(rgb))


_init = jax.jit(Classifier().init)


def logits(
  params: Params, images: Float32[Any, "b 32 32"]
) -> Float32[Array, "b k"]:
  """What a `Classifier` of these weights makes of images in [0, 1]."""
  return jnp.asarray(Classifier().apply({"params": params}, images))


def initial_params(key: Key[Array, ""]) -> Params:
  """Random weights."""
  images = jnp.zeros((1, IMAGE_SIZE, IMAGE_SIZE))
  return dict(_init(key, images)["params"])


def save(params: Params, path: pathlib.Path) -> None:
  """Writes the weights in float16."""
  flat = flax.traverse_util.flatten_dict(jax.device_get(params), sep="/")
  half = {name: np.asarray(v, np.float16) for name, v in flat.items()}
  try:
    path.write_bytes(safetensors.numpy.save(half))
  except OSError as error:
    raise InputError(
      f"{path}: the weights cannot be written ({error.strerror})."
    ) from error


def load(path: pathlib.Path) -> Params:
  """Weights that `save` wrote, in float32."""
  flat = safetensors.numpy.load(path.read_bytes())
  return flax.traverse_util.unflatten_dict(
    {name: value.astype(np.float32) for name, value in flat.items()}, sep="/"
  )
