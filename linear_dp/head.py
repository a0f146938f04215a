"""A linear head: the only trained part of the classifier."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linear_dp.clipping import ClippedGradientGrid


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

  @classmethod
  def initial(cls, grid: ClippedGradientGrid) -> "LinearHead":
    """The public starting point: kernel zero, bias b0."""
    return cls(
      kernel=np.zeros((grid.feature_dim, grid.num_classes), np.float32),
      bias=np.full(grid.num_classes, grid.initial_bias, np.float32),
    )

  @property
  def feature_dim(self) -> int:
    return self.kernel.shape[0]

  @property
  def num_classes(self) -> int:
    return self.kernel.shape[1]

  def logits(self, embedding: Float[Array, "n d"]) -> Float[Array, "n K"]:
    """Scores of each class, for embeddings as they are."""
    products = jnp.matmul(embedding, self.kernel, precision="highest")
    if self.unit_norm:
      products *= reciprocal_norm(embedding)
    return products + self.bias


def reciprocal_norm(embedding: Float[Array, "n d"]) -> Float[Array, "n 1"]:
  """1/‖x‖, whatever float32 makes of ‖x‖²; 0 for a row of zeros."""
  largest = jnp.abs(embedding).max(axis=1, keepdims=True)
  safe = jnp.where(largest > 0, largest, 1)
  norm = jnp.linalg.norm(embedding / safe, axis=1, keepdims=True)
  return jnp.where(largest > 0, 1 / (safe * jnp.where(norm > 0, norm, 1)), 0)
