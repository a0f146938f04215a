"""A user's own backbone: `FILE.py:FUNCTION`.

    def embed(params, images):
      ...

takes the arrays of the weights file by name (an empty dict without one) and
normalised float32 images [b, s, s, 3], and gives embeddings [b, d]. It is
jitted: it must be pure, and treat every image alone, or one example would move
the rows of others, and the guarantee would be void.
"""

import hashlib
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import BackboneConfig, PreprocessConfig
from oneshot_dp.extract.backbones.backbone import (
  Backbone,
  apply_function,
  output_shape,
)
from oneshot_dp.extract.backbones.checkpoint import read_arrays
from oneshot_dp.extract.images.preprocess import Preprocessing
from oneshot_dp.extract.weights.locations import local_weights


def is_user_function(name: str) -> bool:
  """Whether a backbone's name means a file of the user's."""
  return ".py:" in name


def load_user_function(
  config: BackboneConfig, preprocess: PreprocessConfig
) -> Backbone:
  """Loads the function and its weights.

  Its identity in a cache is the file's name, the function's, and the SHA-256
  of the file and of the weights; modules that the file imports are not hashed.
  """
  if config.embedding is not None or config.compute_dtype is not None:
    raise InputError(
      f"backbone {config.name}: your own function decides what it returns and"
      " how it computes: leave out backbone.embedding and"
      " backbone.compute_dtype."
    )
  file, _, function = config.name.rpartition(":")
  path = pathlib.Path(file)
  embed, code_sha256 = _load(path, function)
  params, weights_sha256 = {}, None
  if config.weights is not None:
    local = local_weights(config.weights, config.weights_sha256)
    params, weights_sha256 = read_arrays(local)
  preprocessing = Preprocessing().changed(preprocess)

  apply = apply_function(embed, preprocessing)
  try:
    shape = output_shape(apply, params, preprocessing.image_size)
  except Exception as error:
    reason = " ".join(str(error).split())
    raise InputError(
      f"backbone {config.name}: {type(error).__name__}: {reason}"
    ) from error
  if len(shape) != 2 or shape[0] != 2:
    raise InputError(
      f"backbone {config.name} gives {list(shape)} for 2 images; embeddings"
      " must be [b, d]."
    )
  if _mixes_images(apply, params, preprocessing.image_size):
    raise InputError(
      f"backbone {config.name}: the embedding of an image depends on what else"
      " is in its batch, so one example could move the rows of others and no"
      " epsilon would hold; leave out batch statistics."
    )
  return Backbone(
    name=f"{path.name}:{function}",
    embedding="what the function returns",
    feature_dim=shape[1],
    preprocessing=preprocessing,
    weights_sha256=weights_sha256,
    code_sha256=code_sha256,
    compute_dtype=None,
    params=params,
    apply=apply,
  )


def _mixes_images(apply: Callable, params: Any, image_size: int) -> bool:
  """Whether an image's embedding changes with its neighbour; they never may.

  One try on random images: it finds batch statistics, and proves nothing.
  """
  shape = (2, image_size, image_size, 3)
  rng = np.random.default_rng(0)
  batch = rng.integers(0, 256, shape, dtype=np.uint8)
  beside_another = np.stack([batch[0], 255 - batch[0]])
  run = jax.jit(apply)
  alone, other = run(params, batch)[0], run(params, beside_another)[0]
  return not np.allclose(alone, other, rtol=1e-4, atol=1e-6, equal_nan=True)


def _load(path: pathlib.Path, function: str) -> tuple[Callable, str]:
  """The function, and the SHA-256 of the source that it was made from."""
  try:
    source = path.read_bytes()
  except OSError as error:
    raise InputError(
      f"backbone {path}:{function}: {error.strerror or error}."
    ) from error
  # Under a name of its own among the modules: dataclasses, and so Flax, look
  # there for the module of a class.
  digest = hashlib.sha256(source).hexdigest()
  module = types.ModuleType(f"oneshot_dp_backbone_{digest[:16]}")
  sys.modules[module.__name__] = module
  try:
    # Of the bytes that were hashed, not of the file at some later time.
    exec(compile(source, path, "exec"), vars(module))
  except Exception as error:
    del sys.modules[module.__name__]
    raise InputError(f"{path}: {type(error).__name__}: {error}") from error
  found = getattr(module, function, None)
  if not callable(found):
    raise InputError(f"{path} has no function {function!r}.")
  return found, digest
