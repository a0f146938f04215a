"""A `Backbone` is a frozen network with its weights, ready to be jitted.

Modules bear timm's names: parameter `blocks.0/attn.qkv/kernel` of Flax is the
transpose of timm's `blocks.0.attn.qkv.weight`.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float32, UInt8

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.images.resize import Preprocessing, normalize

Arrays = dict[str, np.ndarray]
Images = Float32[Array, "b s s 3"]
"""Normalised."""


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


def products(compute_dtype: ComputeDtype) -> dict[str, Any]:
  """Arguments of linen's layers; float32 is not rounded to fewer bits."""
  highest = compute_dtype == "float32"
  precision = jax.lax.Precision.HIGHEST if highest else None
  return {"dtype": jnp.dtype(compute_dtype), "precision": precision}


# One function for equal settings, so that JAX compiles it once, however often
# the backbone is loaded; few, since what is compiled lives as long.
@functools.lru_cache(maxsize=8)
def apply_function(
  network: Any, preprocessing: Preprocessing
) -> Callable[..., Any]:
  """`Backbone.apply` of a module or of (params, normalised images) → [b, d]."""

  def apply(
    params: Any, images: UInt8[Array, "b s s 3"]
  ) -> Float32[Array, "..."]:
    x = normalize(images, preprocessing)
    if isinstance(network, nn.Module):
      out = network.apply({"params": params}, x)
    else:
      out = network(params, x)
    return jnp.asarray(out, jnp.float32)

  return apply


def output_shape(
  apply: Callable[..., Any], params: Any, image_size: int
) -> tuple[int, ...]:
  """The shape that `apply` gives for two images, without computing anything."""
  images = jax.ShapeDtypeStruct((2, image_size, image_size, 3), jnp.uint8)
  return jax.eval_shape(apply, params, images).shape


@functools.lru_cache(maxsize=8)  # of a deep network it takes a second
def parameters(
  network: Any, image_size: int
) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
  """Path in Flax and shape in PyTorch of every parameter, by timm's name."""
  images = jax.ShapeDtypeStruct((1, image_size, image_size, 3), jnp.float32)
  tree = jax.eval_shape(network.init, jax.random.key(0), images)
  found = {}
  leaves: dict[Any, Any] = flax.traverse_util.flatten_dict(tree["params"])
  for path, leaf in leaves.items():
    last = {"kernel": "weight", "scale": "weight"}.get(path[-1], path[-1])
    axes = range(leaf.ndim)
    if path[-1] == "kernel":
      axes = (1, 0) if leaf.ndim == 2 else (3, 2, 0, 1)
    shape = tuple(leaf.shape[axis] for axis in axes)
    found[".".join((*path[:-1], last))] = path, shape
  return found


def check_arrays(
  network: Any, arrays: Mapping[str, np.ndarray], image_size: int
) -> None:
  """ValueError: arrays are missing, unexpected or misshapen; names them."""
  wanted = parameters(network, image_size)
  faults = {
    "missing": wanted.keys() - arrays.keys(),
    "unexpected": arrays.keys() - wanted.keys(),
    "of another shape": [
      f"{name} {list(arrays[name].shape)} instead of {list(shape)}"
      for name, (_, shape) in wanted.items()
      if name in arrays and arrays[name].shape != shape
    ],
  }
  said = [
    f"{k}: {', '.join(sorted(some))}" for k, some in faults.items() if some
  ]
  if said:
    raise ValueError("; ".join(said))


def flax_params(
  network: Any, arrays: Mapping[str, np.ndarray], image_size: int
) -> dict[str, Any]:
  """Arrays by timm's names, in PyTorch's layout, as a module's parameters.

  In float32, but for the kernels of a network of bfloat16: they take half the
  memory, and the products would round them there in any case. ValueError: some
  are missing, unexpected, misshapen or not finite.
  """
  check_arrays(network, arrays, image_size)
  params = {}
  for name, (path, _) in parameters(network, image_size).items():
    array = arrays[name].astype(np.float32, copy=False)
    if not np.isfinite(array).all():
      raise ValueError(f"{name} has values that are not finite")
    if path[-1] == "kernel":
      array = array.T if array.ndim == 2 else array.transpose(2, 3, 1, 0)
      array = array.astype(jnp.dtype(network.compute_dtype))
    params[path] = np.asarray(array, order="C")
  return flax.traverse_util.unflatten_dict(params)
