"""CLIP's image tower: a Vision Transformer with a projection.

It differs from `vit` in a LayerNorm before the blocks, a patch embedding
without bias, LayerNorm's epsilon, and a projection of the class token to the
space that images and texts share. OpenAI's, MetaCLIP's and some of DFN's
weights were trained with quick-GELU, which no array of a file tells: the name
does.

The default embedding is the class token before the projection: it is what the
authors train linear classifiers on.

Source: Radford et al., "Learning Transferable Visual Models From Natural
Language Supervision" (ICML 2021), section 2.4; "we use the features before the
linear projection", section 3.2 and appendix A.3.
"""

from oneshot_dp.extract.backbones import vit
from oneshot_dp.extract.weights import Arrays

# `head` is the projection, and is kept.
CLASSIFIER_WEIGHTS: tuple[str, ...] = ("mask_token",)
_EPSILON = 1e-5


def infer_network(arrays: Arrays, embedding: str | None) -> vit.ViT:
  """Returns the network that a weights file belongs to; see `Family`.

  Args:
    arrays: by timm's names.
    embedding: "projection" into the space that CLIP shares with texts, or a
      layer that `vit` has; None is the default of `vit`.

  Raises:
    KeyError: an array of a ViT is missing, or the projection is.
    ValueError: it is a ViT and no CLIP, or has no such embedding.
  """
  if "norm_pre.weight" not in arrays:
    raise ValueError("there is no LayerNorm before the blocks, as CLIP has")
  # A ViT has no projection: it infers the rest, as if the class token were
  # read.
  projection_dim = None
  read_by_vit = embedding
  if embedding == "projection":
    projection_dim = len(arrays["head.weight"])
    read_by_vit = "cls"
  network = vit.infer_network(arrays, read_by_vit)
  return network.clone(
    pre_norm=True,
    epsilon=_EPSILON,
    embedding=embedding or network.embedding,
    projection_dim=projection_dim,
  )


def inferred_name(network: vit.ViT) -> str:
  """Returns the backbone name of a network of this kind and size."""
  return f"clip{vit.inferred_name(network).removeprefix('vit')}"


def adapt_weights(network: vit.ViT, arrays: Arrays, image_size: int) -> Arrays:
  """Returns the arrays that are read, with positions for the image size.

  Args:
    network: from `infer_network`.
    arrays: by timm's names; the projection is left out where it is not read.
    image_size: in pixels.

  Raises:
    ValueError: the image size is smaller than a patch.
  """
  # A ViT leaves alone what it does not know, such as the projection; an array
  # that no parameter reads would be refused later on.
  adapted = vit.adapt_weights(network, arrays, image_size)
  if network.embedding != "projection":
    adapted.pop("head.weight", None)
    adapted.pop("head.bias", None)
  return adapted
