"""A frozen feature extractor with its weights: what the extraction job runs."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, UInt8

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.images.preprocess import Preprocessing


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


def output_shape(
  apply: Callable[..., Any], params: Any, image_size: int
) -> jax.ShapeDtypeStruct:
  """What `apply` gives for two images, found without computing anything.

  (Two, so that a leading 1 is not taken for the batch.)
  """
  images = jax.ShapeDtypeStruct((2, image_size, image_size, 3), jnp.uint8)
  return jax.eval_shape(apply, params, images)
