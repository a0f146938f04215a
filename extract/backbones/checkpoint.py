"""Pretrained weights from an npz file into a parameter tree, or a clear error.

The layout is that of google-research/vision_transformer: one array per
parameter, its name the path in the tree joined by "/".
"""

import hashlib
import math
import pathlib
import zipfile
import zlib
from collections.abc import Iterable, Mapping

import flax.traverse_util
import numpy as np
import scipy.ndimage
from jaxtyping import Float32

from configs.errors import InputError

Shape = tuple[int, ...]

_POSITION = "Transformer/posembed_input/pos_embedding"
# Fitted to the labels that the backbone was pretrained on.
_HEAD = ("head/", "pre_logits/")
_MAX_NAMED = 8


def load_vit(
  path: str, expected: Mapping[str, Shape], name: str
) -> tuple[dict, str]:
  """Reads the weights of a Vision Transformer, fitted to the image size.

  Position embeddings of another resolution are interpolated. Arrays of the
  classification head in the file are ignored unless `expected` has a head.

  Args:
    path: the npz file.
    expected: shape of every parameter, by "/"-joined name.
    name: the backbone's name, for messages.

  Returns:
    The parameter tree, nested dicts of float32 arrays, and the file's SHA-256
    in hexadecimal.

  Raises:
    InputError: the file is missing or damaged, or its arrays are not the
      ones expected; then every one that differs is named (the first 8).
  """
  arrays, sha256 = read_npz(path)
  if not any(key.startswith(_HEAD) for key in expected):
    arrays = {k: v for k, v in arrays.items() if not k.startswith(_HEAD)}
  found = _architecture({key: v.shape for key, v in arrays.items()})
  wanted = _architecture(expected)
  if found and found != wanted:
    raise InputError(
      f"{path}: the weights look like {found}; {name} expects {wanted}: give "
      "the weights or the name of the other."
    )
  if _POSITION in arrays and _POSITION in expected:
    arrays[_POSITION] = interpolate_positions(
      arrays[_POSITION], expected[_POSITION][1], path
    )
  _check_names_and_shapes(arrays, expected, path, name)
  params = {key: _float32(arrays[key], key, path) for key in expected}
  return flax.traverse_util.unflatten_dict(params, sep="/"), sha256


def read_npz(path: str) -> tuple[dict[str, np.ndarray], str]:
  """Every array of an npz file, by name, and the file's SHA-256.

  Raises:
    InputError: no such file, or not an npz that can be read in full.
  """
  try:
    with pathlib.Path(path).open("rb") as file:
      # Both from one open file, so that the hash is of what was read.
      sha256 = hashlib.file_digest(file, "sha256").hexdigest()
      file.seek(0)
      if not zipfile.is_zipfile(file):
        raise InputError(f"{path} is not an npz file of weights.")
      file.seek(0)
      with np.load(file, allow_pickle=False) as npz:
        return {key: npz[key] for key in npz.files}, sha256
  except OSError as error:
    raise InputError(
      f"{path}: the weights cannot be read ({error.strerror or error}); check "
      "backbone.weights."
    ) from error
  except InputError:
    raise
  except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise InputError(
      f"{path}: the weights are damaged or not plain arrays "
      f"({' '.join(str(error).split())}); fetch the file again."
    ) from error


def interpolate_positions(
  positions: np.ndarray, num_tokens: int, path: str
) -> np.ndarray:
  """Position embeddings for another image size; the class token's is kept.

  Bilinear over the grid of patches with the corners aligned, because that is
  what vision_transformer does when it fine-tunes at a higher resolution: the
  same weights then give the same embeddings as there.

  Args:
    positions: [1, 1 + m², width] of the weights.
    num_tokens: 1 + g², class token and patches of the image.
    path: the file, for messages.

  Returns:
    [1, 1 + g², width]; `positions` itself where the size is the same.

  Raises:
    InputError: the patches in the file do not form a square.
  """
  if positions.ndim != 3 or positions.shape[1] == num_tokens:
    return positions
  old, new = math.isqrt(positions.shape[1] - 1), math.isqrt(num_tokens - 1)
  if positions.shape[1] != 1 + old**2 or not old:
    raise InputError(
      f"{path}: {_POSITION} has {positions.shape[1]} tokens, which are not a "
      "class token and a square grid of patches."
    )
  grid = positions[0, 1:].reshape(old, old, -1).astype(np.float32)
  grid = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1)
  patches = grid.reshape(1, new * new, -1)
  return np.concatenate([positions[:, :1], patches], axis=1)


def _architecture(shapes: Mapping[str, Shape]) -> str:
  """What a set of shapes is, in words; "" where it is no ViT."""
  embedding = shapes.get("embedding/kernel", ())
  if len(embedding) != 4:
    return ""
  blocks = {
    key.split("/")[1]
    for key in shapes
    if key.startswith("Transformer/encoderblock_")
  }
  return f"width {embedding[3]} depth {len(blocks)} patch {embedding[0]}"


def _check_names_and_shapes(
  arrays: Mapping[str, np.ndarray],
  expected: Mapping[str, Shape],
  path: str,
  name: str,
) -> None:
  wrong = [
    f"{key} {list(arrays[key].shape)} instead of {list(shape)}"
    for key, shape in expected.items()
    if key in arrays and arrays[key].shape != shape
  ]
  faults = [
    ("missing", expected.keys() - arrays.keys()),
    ("unexpected", arrays.keys() - expected.keys()),
    ("of another shape", wrong),
  ]
  if any(keys for _, keys in faults):
    listed = "; ".join(f"{kind}: {_some(k)}" for kind, k in faults if k)
    raise InputError(f"{path} is not a file of weights for {name}: {listed}.")


def _some(keys: Iterable[str]) -> str:
  ordered = sorted(keys)
  rest = len(ordered) - _MAX_NAMED
  more = f" and {rest} more" if rest > 0 else ""
  return ", ".join(ordered[:_MAX_NAMED]) + more


def _float32(
  array: np.ndarray, key: str, path: str
) -> Float32[np.ndarray, "..."]:
  if not np.issubdtype(array.dtype, np.floating):
    raise InputError(f"{path}: {key} is {array.dtype}, not floating point.")
  array = array.astype(np.float32, copy=False)
  if not np.isfinite(array).all():
    raise InputError(f"{path}: {key} has values that are not finite.")
  return array
