"""A linear head: the only trained part of the classifier."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LinearHead:
  """logits = x·kernel + bias.

  Attributes:
    kernel: [d, K] float32.
    bias: [K] float32.
    unit_norm: x is the embedding at norm 1, not as it is.
  """

  kernel: Float[np.ndarray | Array, "d K"]
  bias: Float[np.ndarray | Array, " K"]
  unit_norm: bool = False

  @property
  def feature_dim(self) -> int:
    return self.kernel.shape[0]

  @property
  def num_classes(self) -> int:
    return self.kernel.shape[1]

  def logits(self, embedding: Float[Array, "n d"]) -> Float[Array, "n K"]:
    """Scores of each class, for embeddings as they are, in float32."""
    if self.unit_norm:
      embedding = at_unit_norm(embedding)
    products = jnp.matmul(embedding, self.kernel, precision="highest")
    return products + self.bias

  def ranking(self) -> "LinearHead":
    """Less its largest bias: −10 would swallow small float32 logits."""
    bias = np.asarray(self.bias)
    return dataclasses.replace(self, bias=bias - bias.max())


def at_unit_norm(embedding: Float[Array, "n d"]) -> Float[Array, "n d"]:
  """x/‖x‖, whatever float32 makes of ‖x‖²; a row of zeros stays what it is."""
  largest = jnp.abs(embedding).max(axis=1, keepdims=True)
  scaled = embedding / jnp.where(largest > 0, largest, 1)
  norm = jnp.linalg.norm(scaled, axis=1, keepdims=True)
  return scaled / jnp.where(norm > 0, norm, 1)
