"""Backbones by name: what the extraction job needs to know about each."""

import dataclasses
import difflib
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, UInt8

from configs.errors import InputError
from configs.schema import BackboneConfig, PreprocessConfig
from extract.backbones import checkpoint, random_patches, vit
from extract.preprocess import normalize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backbone:
  """A frozen feature extractor, ready to be jitted.

  Attributes:
    name: as in the configuration.
    layer: where in the network the embedding is read.
    feature_dim: d.
    weights_sha256: SHA-256 of the weights file, or of the parameters' bytes
      where there is no file.
    params: tree of float32 arrays, on the host; placing them on devices is
      the caller's.
    apply: (params, uint8 images [b, s, s, 3]) to float32 embeddings [b, d];
      pure, and does the normalisation.
  """

  name: str
  layer: str
  feature_dim: int
  weights_sha256: str
  params: Any
  apply: Callable[[Any, UInt8[Array, "b s s 3"]], Float32[Array, "b d"]]


def backbone_names() -> dict[str, str]:
  """Every name, or pattern of names, with one line on what it is."""
  sizes = {
    f"vit_{key}<patch>": (
      f"Vision Transformer, width {size.width}, depth {size.depth}; any patch "
      f"size, as in vit_{key}16; weights: a vision_transformer npz"
    )
    for key, size in vit.SIZES.items()
  }
  return sizes | {
    "random_patches": "random cosine features of 5x5 patches; no weights"
  }


def load_backbone(
  config: BackboneConfig, preprocess: PreprocessConfig
) -> Backbone:
  """Reads and checks the weights; every call reads them again.

  Args:
    config: name, weights, pooling, dtype of the products.
    preprocess: image size and normalisation.

  Returns:
    The backbone for images of `preprocess.image_size`.

  Raises:
    InputError: an unknown name; weights missing where they are needed, given
      where they are not, or not those of the backbone; an image size that it
      cannot take.
  """
  if config.name == "random_patches":
    return _load_random_patches(config, preprocess)
  model = vit.from_name(config.name, config.pooling, config.compute_dtype)
  if model is None:
    raise InputError(_unknown(config.name))
  return _load_vit(model, config, preprocess)


def _load_vit(
  model: vit.VisionTransformer,
  config: BackboneConfig,
  preprocess: PreprocessConfig,
) -> Backbone:
  if config.weights is None:
    raise InputError(
      f"backbone {config.name} needs pretrained weights: set backbone.weights "
      "to an npz file in the layout of google-research/vision_transformer."
    )
  params, sha256 = checkpoint.load_vit(
    config.weights,
    vit.parameter_shapes(model, preprocess.image_size),
    config.name,
  )

  def apply(params: Any, images: UInt8[Array, "b s s 3"]) -> Array:
    return jnp.asarray(
      model.apply({"params": params}, normalize(images, preprocess))
    )

  return Backbone(
    name=config.name,
    layer=f"encoder_norm/{config.pooling}",
    feature_dim=model.size.width,
    weights_sha256=sha256,
    params=params,
    apply=apply,
  )


def _load_random_patches(
  config: BackboneConfig, preprocess: PreprocessConfig
) -> Backbone:
  plain = BackboneConfig(name=config.name)
  if config != plain:
    raise InputError(
      "backbone random_patches has nothing to choose: leave out weights="
      f"{config.weights}, pooling={config.pooling} and compute_dtype="
      f"{config.compute_dtype}, or name a ViT."
    )

  def apply(params: Any, images: UInt8[Array, "b s s 3"]) -> Array:
    return random_patches.apply(params, normalize(images, preprocess))

  params = random_patches.make_params()
  side = preprocess.image_size
  # Refuses an image size it cannot take, before the job starts.
  jax.eval_shape(
    apply, params, jax.ShapeDtypeStruct((1, side, side, 3), jnp.uint8)
  )
  digest = hashlib.sha256()
  for key in sorted(params):
    digest.update(params[key].astype("<f4").tobytes())
  return Backbone(
    name=config.name,
    layer="grid_mean",
    feature_dim=random_patches.FEATURE_DIM,
    weights_sha256=digest.hexdigest(),
    params=params,
    apply=apply,
  )


def _unknown(name: str) -> str:
  known = [f"vit_{size}{patch}" for size in vit.SIZES for patch in (14, 16, 32)]
  near = difflib.get_close_matches(name, [*known, "random_patches"], n=3)
  hint = f"did you mean {' or '.join(near)}?" if near else "the names are"
  names = "" if near else f" {', '.join(backbone_names())}."
  return f"backbone name {name!r} is unknown: {hint}{names}"
