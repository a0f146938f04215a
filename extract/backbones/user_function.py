"""A user's own function as the backbone: FILE.py:FUNCTION."""

import hashlib
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from oneshot_dp.extract import files
from oneshot_dp.extract.images import Preprocessing

MAX_CODE_BYTES = 1 << 24


def load_function(place: str, name: str) -> tuple[Callable[..., Any], str]:
  """Runs a Python file, and returns one of its functions.

  Modules that the file imports are not hashed.

  Args:
    place: path of the file.
    name: of the function.

  Returns:
    The function and the SHA-256 of the file.

  Raises:
    InputError: the file cannot be read.
    Exception: whatever the file raises, and AttributeError if it has no such
      function.
  """
  source = files.read_regular(place, most_bytes=MAX_CODE_BYTES)
  code_sha256 = hashlib.sha256(source).hexdigest()
  # Under a name of its own among the modules: dataclasses, and so Flax, look
  # there for the module of a class.
  module = types.ModuleType(f"oneshot_dp_backbone_{code_sha256[:16]}")
  sys.modules[module.__name__] = module
  # The bytes that were hashed are run, not the file at some later time.
  exec(compile(source, place, "exec"), module.__dict__)
  return getattr(module, name), code_sha256


def check_function(
  apply: Callable[..., Any], params: Any, preprocessing: Preprocessing
) -> int:
  """Checks that a function embeds every image alone; returns d.

  If an embedding depended on the other images of its batch, one example would
  move the rows of others, and no guarantee would hold. One try shows whether
  the first embedding changes with its neighbor.

  Args:
    apply: (params, uint8 images [b, s, s, 3]) → [b, d], which is jitted here.
    params: what it takes first.
    preprocessing: has the side s of the images.

  Returns:
    The dimension of the embeddings.

  Raises:
    ValueError: the embeddings are not [b, d], or depend on other images.
    Exception: whatever the function raises.
  """
  side = preprocessing.image_size
  images = jax.ShapeDtypeStruct((2, side, side, 3), np.uint8)
  shape = jax.eval_shape(apply, params, images).shape
  if len(shape) != 2 or shape[0] != 2:
    raise ValueError(f"{list(shape)} for 2 images; it must give [b, d]")
  run = jax.jit(apply)
  # Two batches with the same first image and opposite second ones. A difference
  # of the first embeddings beyond rounding can only come from the neighbor.
  rng = np.random.default_rng(0)
  batch = rng.integers(0, 256, images.shape, dtype=np.uint8)
  with_other_neighbor = np.stack([batch[0], ~batch[0]])
  embedding = run(params, batch)[0]
  again = run(params, with_other_neighbor)[0]
  if not np.allclose(embedding, again, rtol=1e-4, atol=1e-6, equal_nan=True):
    raise ValueError(
      "an image's embedding depends on what else is in its batch: one example"
      " could move the rows of others, and no epsilon would hold"
    )
  return shape[1]
