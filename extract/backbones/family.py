"""The network architectures, and what each of them provides.

A new architecture is one module with what `Family` lists, and a row in
`FAMILIES`; its kinds are records in kinds.py, and its published networks in
names.py.
"""

from typing import Any, Protocol, runtime_checkable

from oneshot_dp.extract.backbones import (
  clip,
  convnext,
  norm_free,
  resnet_v2,
  rope_vit,
  vit,
)
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

    Args:
      network: from `infer_network` of the same arrays.
      arrays: the weights by timm's names, in PyTorch's layout; not changed.
      image_size: the side of the images that are to be embedded, in pixels.

    Returns:
      Arrays by timm's names, in PyTorch's layout, in any floating-point dtype.

    Raises:
      KeyError: an array is missing.
      ValueError: images of this size leave the network nothing to read.
    """
    ...


# The more particular first: most of CLIP's and DINOv3's arrays are a ViT's, and
# a file of weights is said to look like the first family that takes it.
FAMILIES: dict[str, Family] = {
  "clip": clip,
  "rope_vit": rope_vit,
  "convnext": convnext,
  "norm_free": norm_free,
  "resnet_v2": resnet_v2,
  "vit": vit,
}

# Arrays of files that are not timm's, and what wrote them.
_OTHER_LAYOUTS = {
  "embeddings.patch_embeddings.projection.weight": "Hugging Face transformers",
  "embeddings.patch_embeddings.weight": "Hugging Face transformers",
  "vision_model.embeddings.patch_embedding.weight": "Hugging Face transformers",
  "visual.conv1.weight": "OpenAI's CLIP or OpenCLIP",
  "conv_proj.weight": "torchvision",
  "layer1.0.conv1.weight": "torchvision or timm's plain ResNet",
  "features.0.0.weight": "torchvision",
}


def describe_layout(arrays: Arrays) -> str:
  """Says what a weights file looks like, for an error message.

  Args:
    arrays: by timm's names, or by whatever names a stranger's file has.

  Returns:
    A clause such as "the weights look like convnext_tiny".
  """
  # Names of other programs first, as the advice is another: the weights are the
  # right ones, in the wrong form.
  for name, program in _OTHER_LAYOUTS.items():
    if any(array == name or array.endswith(f".{name}") for array in arrays):
      return (
        f"its arrays are named as by {program}: give timm's model.safetensors"
        " of the same network"
      )
  for family in FAMILIES.values():
    try:
      name = family.inferred_name(family.infer_network(arrays, None))
    except (KeyError, IndexError, TypeError, ValueError):
      continue
    return f"the weights look like {name}"
  first_names = ", ".join(sorted(arrays)[:3]) or "none"
  return (
    f"the weights look like no network known here (arrays: {first_names} …)"
  )
