"""An `Architecture` is a network without its weights; a `Backbone` has them.

Each family is a module with `find(name)`, which gives the `Architecture` of a
name or None, and `EXAMPLES`, names to list and to suggest.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from importlib.resources.abc import Traversable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float32, UInt8

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.images.preprocess import Preprocessing, normalize

Shape = tuple[int, ...]
Arrays = dict[str, np.ndarray]

IMAGENET: dict[str, Any] = {
  "mean": (0.485, 0.456, 0.406),
  "std": (0.229, 0.224, 0.225),
}
"""ImageNet's mean and standard deviation, fields of `Preprocessing`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
  """A network before its weights are read.

  Attributes:
    name: as in the configuration, for instance "vit_b16".
    summary: one line: what it is, and its sizes.
    layouts: the public files of weights that it reads, in a few words each.
    embeddings: the layers that one can be read from, the default first;
      "last<k>_cls" stands for any number k of layers.
    reference: the preprocessing that the public weights were made for.
    network: (embedding, compute_dtype) to a linen module whose call takes
      normalised float32 images [b, s, s, 3] and gives float32 [b, d].
    rename: (arrays of a file by name, shape of each parameter of the module by
      "/"-joined name, path for messages) to the module's parameters. Arrays
      that an embedding does not need, such as the classification head, are left
      out; unknown ones keep their name, for an error. Raises InputError where
      the file is recognisably another network.
    embedded_weights: the file to read where none is given, if the package
      brings one.
  """

  name: str
  summary: str
  layouts: tuple[str, ...]
  embeddings: tuple[str, ...]
  reference: Preprocessing
  network: Callable[[str, ComputeDtype], nn.Module]
  rename: Callable[[Mapping[str, np.ndarray], Mapping[str, Shape], str], Arrays]
  embedded_weights: Traversable | None = None

  def build(self, embedding: str, compute_dtype: ComputeDtype) -> nn.Module:
    """The network up to an embedding, if it has that one."""
    patterns = [each.replace("<k>", "[1-9][0-9]*") for each in self.embeddings]
    if not any(re.fullmatch(pattern, embedding) for pattern in patterns):
      raise InputError(
        f"embedding={embedding} is none that {self.name} has: use "
        f"{', '.join(self.embeddings)}."
      )
    return self.network(embedding, compute_dtype)


def products(compute_dtype: ComputeDtype) -> dict[str, Any]:
  """How matrix products and convolutions are computed: linen's arguments.

  "float32" asks the device for true float32 products; a TPU and a GPU would
  otherwise round their inputs to fewer bits.
  """
  highest = compute_dtype == "float32"
  return {
    "dtype": jnp.dtype(compute_dtype),
    "precision": jax.lax.Precision.HIGHEST if highest else None,
  }


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
    compute_dtype: of the matrix products; None where a user's function decides.
    params: tree of arrays, on the host.
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
