"""A linear head: the only trained part of the classifier."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LinearHead:
  """The weights of a linear classifier: logits = x·kernel + bias.

  Attributes:
    kernel: [d, K] float32.
    bias: [K] float32.
    unit_norm: whether x is the embedding scaled to norm 1; otherwise it is the
      embedding as it is.
  """

  kernel: Float[np.ndarray | Array, "d K"]
  bias: Float[np.ndarray | Array, " K"]
  unit_norm: bool = False

  @property
  def feature_dim(self) -> int:
    """The dimension d of embeddings."""
    return self.kernel.shape[0]

  @property
  def num_classes(self) -> int:
    """The number of classes K."""
    return self.kernel.shape[1]

  def logits(self, embedding: Float[Array, "n d"]) -> Float[Array, "n K"]:
    """Computes the score of each class in float32.

    Args:
      embedding: [n, d], not yet normalized.

    Returns:
      Logits [n, K]; they rank the classes of a row.
    """
    if self.unit_norm:
      embedding = at_unit_norm(embedding)
    # At the default precision GPUs and TPUs multiply in 10 or fewer bits, and
    # heads would rank some rows otherwise than on a CPU.
    products = jnp.matmul(embedding, self.kernel, precision="highest")
    return products + self.bias

  def ranking(self) -> "LinearHead":
    """Returns a head with the same ranking, whose largest bias is 0.

    A common bias of −10 would swallow small logits in float32.
    """
    bias = np.asarray(self.bias)
    return dataclasses.replace(self, bias=bias - bias.max())


def at_unit_norm(embedding: Float[Array, "n d"]) -> Float[Array, "n d"]:
  """Returns x/‖x‖ for each row; a row of zeros stays what it is.

  Rows are divided by their largest number first, since ‖x‖² of a long or short
  row may leave the range of float32.
  """
  largest = jnp.abs(embedding).max(axis=1, keepdims=True)
  scaled = embedding / jnp.where(largest > 0, largest, 1)
  norm = jnp.linalg.norm(scaled, axis=1, keepdims=True)
  return scaled / jnp.where(norm > 0, norm, 1)
