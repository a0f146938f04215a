"""A backbone by name: its weights fetched, read, checked and joined to it."""

import hashlib
import importlib.resources
import pathlib
import re
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.extract_config import ComputeDtype, PreprocessConfig
from oneshot_dp.extract.backbones import (
  norm_free,
  random_patches,
  resnet_v2,
  vit_file,
)
from oneshot_dp.extract.backbones.backbone import (
  Arrays,
  Backbone,
  apply_function,
  flax_params,
  output_shape,
)
from oneshot_dp.extract.backbones.names import Named, named
from oneshot_dp.extract.backbones.user_function import load_user_function
from oneshot_dp.extract.images.resize import Preprocessing
from oneshot_dp.extract.weights.download import local_weights
from oneshot_dp.extract.weights.google_names import in_timm_names
from oneshot_dp.extract.weights.tensors import read_tensors

# Each has network_of, name_of, fitted and folded.
_FAMILIES: dict[str, ModuleType] = {
  "vit_file": vit_file,
  "resnet_v2": resnet_v2,
  "norm_free": norm_free,
}


def load_backbone(
  name: str,
  weights: str | None = None,
  weights_sha256: str | None = None,
  embedding: str | None = None,
  compute_dtype: ComputeDtype | None = None,
  preprocess: PreprocessConfig = PreprocessConfig(),  # noqa: B008
) -> Backbone:
  """Fetches, reads and checks the weights; every call reads them again.

  >>> backbone = load_backbone("random_patches")
  >>> backbone.feature_dim, backbone.preprocessing.image_size
  (256, 8)

  Args:
    name: a listed one, or FILE.py:FUNCTION, a function of the user's.
    weights: a path or an address (see `local_weights`); None is the published
      file that the name stands for, downloaded once.
    weights_sha256: what its SHA-256 must be, in hexadecimal.
    embedding: where it is taken; None is the usual place.
    compute_dtype: of the matrix products; None is bfloat16 on a TPU or GPU, and
      float32 on a CPU.
    preprocess: changes to what the backbone's weights were made for.

  Returns:
    The network with its weights in memory, ready for batches of images.

  Raises:
    InputError: an unknown name; weights missing where they are needed, given
      where they are not, or not those of the backbone; an image size or an
      embedding that it does not have.
    RunError: a download failed.
  """
  decides = ".py:" in name or name == "random_patches"
  if decides and (embedding is not None or compute_dtype is not None):
    raise InputError(
      f"--backbone {escaped(name)} decides itself what it returns and how it"
      " computes: leave out --embedding and --compute-dtype."
    )
  if ".py:" in name:
    path = weights and local_weights(weights, weights_sha256)
    changed = Preprocessing().changed(preprocess)
    return load_user_function(name, path or None, changed)
  row = named(name)
  preprocessing = Preprocessing(**row.reference).changed(preprocess)
  if not row.family:
    if weights or weights_sha256:
      raise InputError(
        f"--backbone {name} has no weights: leave out --weights."
      )
    return _random_patches(preprocessing)
  if compute_dtype is None:
    on_cpu = jax.default_backend() == "cpu"
    compute_dtype = "float32" if on_cpu else "bfloat16"
  path = _weights_file(row, weights, weights_sha256)
  family, side = _FAMILIES[row.family], preprocessing.image_size
  if name == "glyph_vit":
    embedding = embedding or "pre_logits"
  arrays, sha256 = read_tensors(path)
  try:
    arrays = _without_heads(in_timm_names(arrays))
    network = family.network_of(arrays, embedding)
    looks = family.name_of(network)
    if name not in (looks, looks.replace("vit_", "deit_"), "glyph_vit"):
      raise ValueError(f"they look like {looks}")
    network = network.clone(compute_dtype=compute_dtype, **row.unsaid)
    arrays = family.folded(network, family.fitted(network, arrays, side))
    params = flax_params(network, arrays, side, jnp.dtype(compute_dtype))
  except (KeyError, IndexError, ValueError) as error:
    raise InputError(
      f"{escaped(str(path))}: the weights do not fit --backbone {name}:"
      f" {escaped(str(error))[:1000]}."
    ) from error
  apply = apply_function(network, preprocessing)
  return Backbone(
    name=name,
    embedding=network.embedding,
    feature_dim=output_shape(apply, params, side)[1],
    preprocessing=preprocessing,
    weights_sha256=sha256,
    compute_dtype=compute_dtype,
    params=params,
    apply=apply,
    network=network,
    timm=row.timm and row.timm.partition(".")[0],
    weights_path=path,
  )


def timm_tensors(backbone: Backbone) -> Arrays:
  """The arrays of its weights as timm has them, float32, without classifier.

  Position embeddings are those of the backbone's image size.

  Raises:
    InputError: timm has no such network, or the file has changed since.
  """
  path, network = backbone.weights_path, backbone.network
  if path is None or network is None or backbone.timm is None:
    raise InputError(f"--backbone {backbone.name} is no network that timm has.")
  arrays, sha256 = read_tensors(path)
  if sha256 != backbone.weights_sha256:
    raise InputError(f"{escaped(str(path))} has changed since it was read.")
  family, side = named(backbone.name).family, backbone.preprocessing.image_size
  arrays = _without_heads(in_timm_names(arrays))
  kept = _FAMILIES[family].fitted(network, arrays, side)
  return {name: array.astype(np.float32) for name, array in kept.items()}


def _without_heads(arrays: Arrays) -> Arrays:
  """Without what is fitted to the labels of the pretraining."""
  heads = r"(head|head_dist)\..*|mask_token"
  return {k: v for k, v in arrays.items() if not re.fullmatch(heads, k)}


def _weights_file(
  row: Named, weights: str | None, sha256: str | None
) -> pathlib.Path:
  if weights is None and row.name == "glyph_vit":
    folder = importlib.resources.files("oneshot_dp.extract.backbones")
    weights = str(folder / "glyph_vit.safetensors")
  weights = weights or row.address
  if weights is None:
    raise InputError(
      f"--backbone {row.name} has no weights that are published as plain"
      " arrays: give --weights, a path or an address of an npz or safetensors."
    )
  return local_weights(weights, sha256)


def _random_patches(preprocessing: Preprocessing) -> Backbone:
  apply = apply_function(random_patches.apply, preprocessing)
  params = random_patches.make_params()
  digest = hashlib.sha256()
  for key in sorted(params):
    digest.update(params[key].astype("<f4").tobytes())
  return Backbone(
    name="random_patches",
    embedding="grid_mean",
    # Refuses an image size it cannot take, before the job starts.
    feature_dim=output_shape(apply, params, preprocessing.image_size)[1],
    preprocessing=preprocessing,
    weights_sha256=digest.hexdigest(),
    compute_dtype="float32",
    params=params,
    apply=apply,
  )
