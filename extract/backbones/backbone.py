"""A frozen feature extractor with its weights: what the extraction job runs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float32, UInt8

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.images.preprocess import Preprocessing, normalize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backbone:
  """A frozen feature extractor, ready to be jitted.

  Attributes:
    name: as in the configuration.
    embedding: the layer that is read.
    feature_dim: d.
    preprocessing: what the images have gone through before `apply`, and the
      mean and std that it applies.
    weights_sha256: SHA-256 of the weights file, or of the parameters' bytes
      where there is no file; None for a user's function without parameters.
    code_sha256: SHA-256 of the Python file of a user's own function.
    compute_dtype: dtype of the matrix products; None where it is the user's
      function that decides.
    params: tree of arrays, on the host; placing them on devices is the
      caller's.
    apply: (params, uint8 images [b, s, s, 3]) to float32 embeddings [b, d];
      pure, and does the normalisation.
  """

  name: str
  embedding: str
  feature_dim: int
  preprocessing: Preprocessing
  weights_sha256: str | None
  code_sha256: str | None = None
  compute_dtype: ComputeDtype | None
  params: Any
  apply: Callable[[Any, UInt8[Array, "b s s 3"]], Float32[Array, "b d"]]


# One function for equal settings, so that JAX compiles it once, however often
# the backbone is loaded; few, since what is compiled lives as long.
@functools.lru_cache(maxsize=8)
def apply_function(
  network: nn.Module | Callable[..., Any], preprocessing: Preprocessing
) -> Callable[..., Any]:
  """`Backbone.apply` of a module or of (params, normalised images) → [b, d]."""
  is_module = isinstance(network, nn.Module)

  def apply(
    params: Any, images: UInt8[Array, "b s s 3"]
  ) -> Float32[Array, "..."]:
    x = normalize(images, preprocessing)
    out = (
      network.apply({"params": params}, x) if is_module else network(params, x)
    )
    return jnp.asarray(out, jnp.float32)

  return apply


def output_shape(
  apply: Callable[..., Any], params: Any, image_size: int
) -> tuple[int, ...]:
  """The shape that `apply` gives for two images, without computing anything.

  (Two, so that a leading 1 is not taken for the batch.)
  """
  images = jax.ShapeDtypeStruct((2, image_size, image_size, 3), jnp.uint8)
  return jax.eval_shape(apply, params, images).shape
