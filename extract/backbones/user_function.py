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

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.extract.backbones.backbone import (
  Backbone,
  apply_function,
  output_shape,
)
from oneshot_dp.extract.images.resize import Preprocessing
from oneshot_dp.extract.weights.tensors import read_tensors

_MOST_BYTES = 2**24


def load_user_function(
  name: str, weights: pathlib.Path | None, preprocessing: Preprocessing
) -> Backbone:
  """Loads the function and its weights.

  Its identity in a cache is the file's name, the function's, and the SHA-256
  of the file and of the weights; modules that the file imports are not hashed.

  Raises:
    InputError: the file has no such function, it fails, does not give [b, d],
      or an embedding depends on what else is in the batch.
  """
  file, _, function = name.rpartition(":")
  path = pathlib.Path(file)
  embed, code_sha256 = _load(path, function)
  params: dict[str, np.ndarray] = {}
  weights_sha256 = None
  if weights is not None:
    params, weights_sha256 = read_tensors(weights)
  apply = apply_function(embed, preprocessing)
  side, where = preprocessing.image_size, f"--backbone {escaped(name)}"
  try:
    shape = output_shape(apply, params, side)
    ends = len(shape) == 2 and shape[0] == 2
    mixes = ends and _mixes_images(apply, params, side)
  except Exception as error:
    raise InputError(f"{where}: {_said(error)}") from error
  if not ends:
    raise InputError(
      f"{where} gives {list(shape)} for 2 images; embeddings must be [b, d]."
    )
  if mixes:
    raise InputError(
      f"{where}: the embedding of an image depends on what else is in its"
      " batch, so one example could move the rows of others and no epsilon"
      " would hold; leave out batch statistics."
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
    weights_path=weights,
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
  where = f"--backbone {escaped(str(path))}:{escaped(function)}"
  try:
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
      raise InputError(f"{where}: there is no such Python file.")
    source = path.read_bytes()
  except OSError as error:
    raise InputError(f"{where}: {error.strerror or error}.") from error
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
    raise InputError(f"{where}: {_said(error)}") from error
  found = getattr(module, function, None)
  if not callable(found):
    raise InputError(f"{where}: the file has no function {function[:80]!a}.")
  return found, digest


def _said(error: Exception) -> str:
  return escaped(
    f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
  )
