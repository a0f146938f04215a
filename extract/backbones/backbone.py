"""A backbone by name: a frozen network with its weights, ready to be jitted.

Modules bear timm's names: parameter `blocks.0/attn.qkv/kernel` of Flax is the
transpose of timm's `blocks.0.attn.qkv.weight`.
"""

import dataclasses
import functools
import hashlib
import pathlib
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float32, UInt8

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.extract_config import ComputeDtype, PreprocessConfig
from oneshot_dp.extract import files
from oneshot_dp.extract.backbones import norm_free, resnet_v2, vit
from oneshot_dp.extract.backbones.google_names import in_timm_names
from oneshot_dp.extract.backbones.names import named
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.extract.weights import (
  Arrays,
  flax_params,
  local_weights,
  read_tensors,
)

# Each has network_of, name_of and fitted.
FAMILIES: Any = {"vit": vit, "resnet_v2": resnet_v2, "norm_free": norm_free}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backbone:
  """A frozen feature extractor.

  Attributes:
    name: as it was asked for.
    embedding: the layer that is read: "cls", "mean", "pooled" …
    feature_dim: d.
    preprocessing: what the images have gone through before `apply`, and the
      mean and std that it applies.
    weights_sha256: of the weights file; None for a function without one.
    code_sha256: of the Python file of a user's own function.
    compute_dtype: of the matrix products; None where a user's function decides.
    params: tree of arrays, on the host.
    apply: (params, uint8 images [b, s, s, 3]) to float32 embeddings [b, d];
      pure, normalises, and treats every image alone.
    network: the Flax module; None for a function.
    timm: the architecture in timm, such as "vit_tiny_patch16_224", if any.
    weights_path: the file of weights on this machine.
  """

  name: str
  embedding: str
  feature_dim: int
  preprocessing: Preprocessing
  weights_sha256: str | None
  code_sha256: str | None = None
  compute_dtype: ComputeDtype | None
  params: Any = dataclasses.field(repr=False)
  apply: Callable[[Any, UInt8[Array, "b s s 3"]], Float32[Array, "b d"]]
  network: Any = None
  timm: str | None = None
  weights_path: pathlib.Path | None = None

  @property
  def identity(self) -> dict[str, Any]:
    """What makes its embeddings what they are, as JSON has it."""
    preprocess = dataclasses.asdict(self.preprocessing)
    preprocess |= {key: list(preprocess[key]) for key in ("mean", "std")}
    return {
      "name": self.name,
      "layer": self.embedding,
      "feature_dim": self.feature_dim,
      "weights_sha256": self.weights_sha256,
      "code_sha256": self.code_sha256,
      "preprocess": preprocess,
    }


# One function for equal settings, so that JAX compiles it once, however often
# the backbone is loaded; few, since what is compiled lives as long.
@functools.lru_cache(maxsize=8)
def apply_function(
  network: Any, preprocessing: Preprocessing
) -> Callable[..., Any]:
  """`Backbone.apply` of a module or of (params, normalised images) → [b, d].

  Normalised is (x/255 − mean)/std, on the device.
  """
  mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
  # Constants in float64 first: one rounding instead of four.
  scale = (1 / (255 * std)).astype(np.float32)
  shift = (-mean / std).astype(np.float32)
  # Products of float32 are not rounded to fewer bits.
  is_float32 = getattr(network, "compute_dtype", None) == "float32"
  precision: Any = "highest" if is_float32 else None

  def apply(
    params: Any, images: UInt8[Array, "b s s 3"]
  ) -> Float32[Array, "..."]:
    x = jnp.asarray(images, jnp.float32) * scale + shift
    if not isinstance(network, nn.Module):
      return jnp.asarray(network(params, x), jnp.float32)
    with jax.default_matmul_precision(precision):
      embeddings: Any = network.apply({"params": params}, x)
    return embeddings

  return apply


def load_backbone(
  name: str,
  weights: str | None = None,
  weights_sha256: str | None = None,
  embedding: str | None = None,
  compute_dtype: ComputeDtype | None = None,
  preprocess: PreprocessConfig = PreprocessConfig(),  # noqa: B008
) -> Backbone:
  """A network with its weights in memory, fetched if need be, and checked.

  >>> backbone = load_backbone("glyph_vit")
  >>> backbone.feature_dim, backbone.preprocessing.image_size
  (128, 32)

  Its arguments are as `ExtractConfig` has them. InputError: an unknown name;
  weights that are missing or not those of the backbone; an image size or an
  embedding that it does not have; a user's function that fails, or whose
  embeddings depend on the other images. RunError: a download failed.
  """
  if ".py:" in name:
    if embedding or compute_dtype:
      raise InputError(
        f"--backbone {escaped(name)} decides itself what it returns and how it"
        " computes: leave out --embedding and --compute-dtype."
      )
    path = local_weights(weights, weights_sha256) if weights else None
    return _user_function(name, path, Preprocessing().changed(preprocess))
  row = named(name)
  preprocessing = Preprocessing(**row.reference).changed(preprocess)
  side, on_cpu = preprocessing.image_size, jax.default_backend() == "cpu"
  compute_dtype = compute_dtype or ("float32" if on_cpu else "bfloat16")
  if (place := weights or row.address) is None:
    raise InputError(
      f"--backbone {name} has no weights that are published as plain arrays:"
      " give --weights, a path or an address of an npz or safetensors."
    )
  path = local_weights(place, weights_sha256)
  family = FAMILIES[row.family]
  try:
    arrays, sha256 = _read(path)
    network = family.network_of(arrays, embedding or row.embedding)
    if embedding not in (None, network.embedding):
      raise ValueError(f"its only embedding is {network.embedding}")
    looks = family.name_of(network)
    if name not in (looks, looks.replace("vit_", "deit_"), "glyph_vit"):
      raise ValueError(f"the weights look like {looks}")
    network = network.clone(compute_dtype=compute_dtype, **row.unsaid)
    params = flax_params(network, family.fitted(network, arrays, side), side)
  except InputError:
    raise
  except (KeyError, IndexError, TypeError, ValueError) as error:
    said = f"no array {error}" if isinstance(error, KeyError) else str(error)
    said = escaped(said).replace("\n", "\\n")[:1000]
    raise InputError(
      f"--backbone {name}: {escaped(str(path))} does not fit: {said}."
    ) from error
  apply = apply_function(network, preprocessing)
  image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.uint8)
  return Backbone(
    name=name,
    embedding=network.embedding,
    feature_dim=jax.eval_shape(apply, params, image).shape[1],
    preprocessing=preprocessing,
    weights_sha256=sha256,
    compute_dtype=compute_dtype,
    params=params,
    apply=apply,
    network=network,
    timm=row.timm and row.timm.partition(".")[0],
    weights_path=path,
  )


def timm_tensors(backbone: Backbone) -> Arrays:
  """The arrays of its weights as timm has them, float32, without classifier.

  Position embeddings are those of its image size. InputError: timm has no such
  network, or the file has changed since.
  """
  path, network = backbone.weights_path, backbone.network
  if path is None or network is None or backbone.timm is None:
    raise InputError(f"--backbone {backbone.name} is no network that timm has.")
  arrays, sha256 = _read(path)
  if sha256 != backbone.weights_sha256:
    raise InputError(f"{escaped(str(path))} has changed since it was read.")
  if isinstance(network, vit.ViT):
    arrays = vit.fitted(network, arrays, backbone.preprocessing.image_size)
  return {name: array.astype(np.float32) for name, array in arrays.items()}


def _read(path: pathlib.Path) -> tuple[Arrays, str]:
  """A file's arrays by timm's names, without what its labels were fitted to."""
  arrays, sha256 = read_tensors(path)
  if any("/" in name for name in arrays):  # Google's
    arrays = in_timm_names(arrays)
  other = r"(head|head_dist)\..*|mask_token"
  return {k: v for k, v in arrays.items() if not re.fullmatch(other, k)}, sha256


def _user_function(
  name: str, weights: pathlib.Path | None, preprocessing: Preprocessing
) -> Backbone:
  """A function (params, normalised images [b, s, s, 3]) → [b, d] of the user's.

  `params` are the arrays of the weights file by name, {} without one. It is
  jitted: it must be pure, and treat every image alone, or one example would
  move the rows of others, and the guarantee would be void. Modules that the
  file imports are not hashed.
  """
  place, _, function = name.rpartition(":")
  params, weights_sha256 = read_tensors(weights) if weights else ({}, None)
  source = files.read_regular(place, most_bytes=2**24)
  code_sha256 = hashlib.sha256(source).hexdigest()
  # Under a name of its own among the modules: dataclasses, and so Flax, look
  # there for the module of a class.
  module = types.ModuleType(f"oneshot_dp_backbone_{code_sha256[:16]}")
  sys.modules[module.__name__] = module
  try:
    # Of the bytes that were hashed, not of the file at some later time.
    exec(compile(source, place, "exec"), vars(module))
    apply = apply_function(getattr(module, function), preprocessing)
    side = preprocessing.image_size
    images = jax.ShapeDtypeStruct((2, side, side, 3), jnp.uint8)
    shape = jax.eval_shape(apply, params, images).shape
    if len(shape) != 2 or shape[0] != 2:
      raise ValueError(f"{list(shape)} for 2 images; it must give [b, d]")
    # In one try: does the first embedding change with its neighbour?
    rng, run = np.random.default_rng(0), jax.jit(apply)
    batch = rng.integers(0, 256, images.shape, dtype=np.uint8)
    both = [run(params, x)[0] for x in (batch, np.stack([batch[0], ~batch[0]]))]
    if not np.allclose(*both, rtol=1e-4, atol=1e-6, equal_nan=True):
      raise ValueError(
        "an image's embedding depends on what else is in its batch: one example"
        " could move the rows of others, and no epsilon would hold"
      )
  except Exception as error:
    said = escaped(" ".join(f"{type(error).__name__}: {error}".split()))[:500]
    raise InputError(f"--backbone {escaped(name)}: {said}.") from error
  return Backbone(
    name=f"{pathlib.Path(place).name}:{function}",
    embedding="what the function returns",
    feature_dim=shape[1],
    preprocessing=preprocessing,
    weights_sha256=weights_sha256,
    code_sha256=code_sha256,
    compute_dtype=None,
    params=params,
    apply=apply,
    weights_path=weights,
  )
