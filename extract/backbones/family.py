"""The network architectures, and what each of them provides.

A new architecture is one module with what `Family` lists, and a row in
`FAMILIES`; its published networks are records in names.py.
"""

from typing import Any, Protocol, runtime_checkable

from oneshot_dp.extract.backbones import norm_free, resnet_v2, vit
from oneshot_dp.extract.weights import Arrays


@runtime_checkable
class Family(Protocol):
  """A module of one network architecture.

  Its networks are Flax modules from normalized float32 images [b, s, s, 3] to
  float32 embeddings [b, d]. They have the fields `embedding` (the layer that is
  read) and `compute_dtype` (of matrix products), and name their parameters as
  timm does: `blocks.0/attn.qkv/kernel` here is the transpose of timm's
  `blocks.0.attn.qkv.weight`.
  """

  CLASSIFIER_WEIGHTS: tuple[str, ...]
  """Prefixes of arrays that only the pretraining task needs. They are dropped
  from a weights file before anything else sees it."""

  def infer_network(self, arrays: Arrays, embedding: str | None) -> Any:
    """Returns the network, in float32, that a weights file belongs to.

    Args:
      arrays: the weights by timm's names, in PyTorch's layout.
      embedding: the layer that is to be read; None is the default one.

    Raises:
      KeyError, IndexError, ValueError: the arrays are not of this family, or
        the network has no such embedding.
    """
    ...

  def inferred_name(self, network: Any) -> str:
    """Returns the backbone name of a network of this kind and size."""
    ...

  def adapt_weights(
    self, network: Any, arrays: Arrays, image_size: int
  ) -> Arrays:
    """Returns exactly the arrays that the network has parameters for.

    What depends on the weights alone is computed here, once: position
    embeddings are resized to `image_size`, kernels are standardized, constants
    are multiplied into them.
    """
    ...


FAMILIES: dict[str, Family] = {
  "vit": vit,
  "resnet_v2": resnet_v2,
  "norm_free": norm_free,
}
