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
  """

  kernel: Float[np.ndarray | Array, "d K"]
  bias: Float[np.ndarray | Array, " K"]

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
    """Scores of each class; sigmoid of them is the model's probability."""
    products = jnp.matmul(embedding, self.kernel, precision="highest")
    return products + self.bias
