"""What the registry needs to know about a network of a public family.

Each family is a module with `find(name)`, which gives the `Architecture` of a
name or None, and `EXAMPLES`, names to list and to suggest.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from importlib.resources.abc import Traversable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.images.preprocess import Preprocessing

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
    embeddings: the layers that an embedding can be read from, the default
      first. In general a name stands for itself; "last<k>_cls" stands for any
      number k of layers.
    reference: the preprocessing that the public weights were made for.
    network: (embedding, compute_dtype) to a linen module whose call takes
      normalised float32 images [b, s, s, 3] and gives float32 [b, d].
    rename: arrays of a file in any of the layouts to the module's own
      parameters. Takes the file's arrays by name, the shape that the module
      expects for every parameter by its "/"-joined name (to which position
      embeddings are resized), and the path for messages. Arrays that an
      embedding does not need, such as the classification head, are left out;
      what it does not know it hands on unchanged, to be named in an error.
      Raises InputError where the file is recognisably another network.
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
