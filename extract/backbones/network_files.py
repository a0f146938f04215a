"""Builds a network and its parameters from a weights file."""

import math
import pathlib
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.family import (
  FAMILIES,
  Family,
  describe_layout,
)
from oneshot_dp.extract.backbones.google_names import to_timm_names
from oneshot_dp.extract.backbones.kinds import BackboneSpec
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.extract.weights import Arrays, flax_params, read_tensors


class LoadedNetwork(NamedTuple):
  """A network with the weights of a file.

  Attributes:
    network: the Flax module.
    params: its parameters.
    sha256: of the file.
    resized_positions: how position embeddings were resized, such as "24 x 24 to
      14 x 14"; "" where they fit the images, or there are none.
    is_google: whether the arrays are named as by Google, who trained all of its
      networks on images that were normalized alike.
  """

  network: Any
  params: dict[str, Any]
  sha256: str
  resized_positions: str
  is_google: bool


class WeightsFile(NamedTuple):
  """The arrays of a weights file, less those of the pretraining task.

  Attributes:
    arrays: by timm's names, in PyTorch's layout.
    sha256: of the file.
    is_google: whether Google named the arrays in the file.
  """

  arrays: Arrays
  sha256: str
  is_google: bool


def load_network(
  spec: BackboneSpec,
  path: pathlib.Path,
  embedding: str | None,
  compute_dtype: ComputeDtype,
  preprocessing: Preprocessing,
) -> LoadedNetwork:
  """Builds the network that a weights file belongs to.

  Args:
    spec: of the backbone that the file should be of.
    path: of the weights file.
    embedding: the layer to read; default: the usual one.
    compute_dtype: of matrix products.
    preprocessing: how its images will be prepared.

  Returns:
    The network, and what was made of the file.

  Raises:
    InputError: the file is not of this backbone, or was trained on images that
      were normalized otherwise.
  """
  # A file decides what it is: the network is inferred from the shapes of its
  # arrays, and compared with the name. So a wrong file is refused, whatever it
  # is called.
  family = FAMILIES[spec.family]
  image_size = preprocessing.image_size
  try:
    file = read_without_classifier(path, family, preprocessing)
    arrays = file.arrays
    # Arrays, network, arrays of that network, parameters: each step refuses
    # what does not fit, so that one wrong file has one error.
    network = _infer_network(spec, family, arrays, embedding)
    network = network.clone(compute_dtype=compute_dtype, **spec.model_kwargs)
    adapted = family.adapt_weights(network, arrays, image_size)
    params = flax_params(network, adapted, image_size)
  except InputError:
    raise
  except (KeyError, IndexError, TypeError, ValueError) as error:
    message = str(error)
    if isinstance(error, KeyError):
      message = f"no array {error}"
    message = escaped(message).replace("\n", "\\n")[:1000]
    raise InputError(
      f"backbone {spec.name}: {escaped(str(path))} does not fit: {message}."
    ) from error
  return LoadedNetwork(
    network,
    params,
    file.sha256,
    _resized_positions(arrays, adapted),
    file.is_google,
  )


def _resized_positions(arrays: Arrays, adapted: Arrays) -> str:
  """How many positions there are of each side, before and after; or ""."""
  if "pos_embed" not in arrays or "pos_embed" not in adapted:
    return ""
  # Both have the same few tokens beside the patches, so a square's side is
  # found by rounding down.
  before = arrays["pos_embed"].shape[1]
  after = adapted["pos_embed"].shape[1]
  if before == after:
    return ""
  old_side = math.isqrt(before)
  new_side = math.isqrt(after)
  return f"{old_side} x {old_side} to {new_side} x {new_side}"


def _infer_network(
  spec: BackboneSpec, family: Family, arrays: Arrays, embedding: str | None
) -> Any:
  """The network of a file; ValueError: it is not the one that was named."""
  try:
    network = family.infer_network(arrays, embedding or spec.embedding)
  except (KeyError, IndexError, TypeError) as error:
    # Arrays that this architecture needs are missing: it is another one.
    raise ValueError(describe_layout(arrays)) from error
  if embedding not in (None, network.embedding):
    raise ValueError(f"its only embedding is {network.embedding}")
  if not _is_name_of(spec, family.inferred_name(network)):
    raise ValueError(describe_layout(arrays))
  return network


def _is_name_of(spec: BackboneSpec, inferred_name: str) -> bool:
  """Whether a network of this name is the one that was asked for."""
  # The glyph ViT is of no published size.
  return inferred_name == spec.network_name or spec.name == "glyph_vit"


def read_without_classifier(
  path: pathlib.Path, family: Family, preprocessing: Preprocessing
) -> WeightsFile:
  """Reads the arrays of a weights file, less those of the pretraining task.

  Args:
    path: an npz or safetensors.
    family: whose classifier is left out.
    preprocessing: how images are to be prepared, which must be Google's if the
      file is.

  Raises:
    InputError: the file cannot be read.
    KeyError, ValueError: its arrays are named as Google's, and are not, or were
      trained on images that were normalized otherwise.
  """
  arrays, sha256 = read_tensors(path)
  is_google = any("/" in name for name in arrays)
  if is_google:
    _check_normalization(arrays, preprocessing)
    arrays = to_timm_names(arrays)
  # Classifiers of the pretraining task are dropped before the network is
  # inferred: there are many kinds of them, and none is read.
  kept = {}
  for name, array in arrays.items():
    if not name.startswith(family.CLASSIFIER_WEIGHTS):
      kept[name] = array
  return WeightsFile(kept, sha256, is_google)


def _check_normalization(
  google_arrays: Arrays, preprocessing: Preprocessing
) -> None:
  """ValueError: Google's ViT or BiT would see images normalized otherwise.

  Google trained all of them on pixels in [-1, 1]. Under a name that means
  another normalization nothing would fail, and many points of accuracy be lost.
  """
  # jax_privacy's WRNs have slashes in their names as well, and were trained
  # otherwise.
  is_vit_or_bit = any(
    name.startswith(("Transformer/", "resnet/root_block/"))
    for name in google_arrays
  )
  half = (0.5, 0.5, 0.5)
  if is_vit_or_bit and (preprocessing.mean, preprocessing.std) != (half, half):
    raise ValueError(
      "Google trained these weights with mean 0.5 and std 0.5, and here images"
      f" would be normalized with mean {preprocessing.mean} and std"
      f" {preprocessing.std}; use the name of Google's network (vit_…, bit_…)"
    )
