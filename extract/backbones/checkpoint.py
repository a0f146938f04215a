"""Files of weights: read whole, and fitted to a module or refused."""

import hashlib
import pathlib
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import flax.traverse_util
import ml_dtypes
import numpy as np
import safetensors

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.backbone import Architecture, Arrays, Shape

_MAX_NAMED = 8
_DAMAGED = (
  *(ValueError, EOFError, NotImplementedError),
  *(zipfile.BadZipFile, zlib.error),
)


def read_arrays(path: pathlib.Path) -> tuple[Arrays, str]:
  """Every array of an npz or safetensors file, and the file's SHA-256.

  The format is told by the content, not by the name. Neither format can carry
  code; pickles can, and are refused.
  """
  try:
    with path.open("rb") as file:
      sha256 = hashlib.file_digest(file, "sha256").hexdigest()
      file.seek(0)
      if zipfile.is_zipfile(file):
        file.seek(0)
        with np.load(file, allow_pickle=False) as npz:
          return {key: _as_bfloat16(npz[key]) for key in npz.files}, sha256
    with safetensors.safe_open(path, framework="np") as tensors:
      names = tensors.keys()
      return {name: tensors.get_tensor(name) for name in names}, sha256
  except OSError as error:
    raise InputError(
      f"{path}: the weights cannot be read ({error.strerror or error}); check "
      "backbone.weights."
    ) from error
  except safetensors.SafetensorError as error:
    raise InputError(
      f"{path} is neither an npz nor a whole safetensors file ({error}); fetch "
      "it again, or convert it (a pickle can run code and is not read)."
    ) from error
  except _DAMAGED as error:
    raise InputError(
      f"{path}: the weights are damaged or not plain arrays "
      f"({' '.join(str(error).split())}); fetch the file again."
    ) from error


def to_params(
  architecture: Architecture,
  arrays: Mapping[str, np.ndarray],
  shapes: Mapping[str, Shape],
  path: pathlib.Path,
) -> dict[str, Any]:
  """Arrays of a public file as the parameter tree of a module, in float32.

  For the arguments see `Architecture.rename`.

  Raises:
    InputError: arrays are missing, unexpected, of another shape or not finite;
      every one that differs is named (the first 8).
  """
  found = architecture.rename(arrays, shapes, str(path))
  wrong = [
    f"{key} {list(found[key].shape)} instead of {list(shape)}"
    for key, shape in shapes.items()
    if key in found and found[key].shape != shape
  ]
  faults = [
    ("missing", shapes.keys() - found.keys()),
    ("unexpected", found.keys() - shapes.keys()),
    ("of another shape", wrong),
  ]
  if any(keys for _, keys in faults):
    listed = "; ".join(f"{kind}: {_some(k)}" for kind, k in faults if k)
    raise InputError(
      f"{path} is not a file of weights for {architecture.name}: {listed}."
      f" (It reads {'; '.join(architecture.layouts)}.)"
    )
  params = {key: _float32(found[key], key, path) for key in shapes}
  return flax.traverse_util.unflatten_dict(params, sep="/")


def _as_bfloat16(array: np.ndarray) -> np.ndarray:
  """An npz says no more of bfloat16 than that it has two bytes."""
  return array.view(ml_dtypes.bfloat16) if array.dtype.str == "|V2" else array


def _some(keys: Iterable[str]) -> str:
  ordered = sorted(keys)
  rest = len(ordered) - _MAX_NAMED
  more = f" and {rest} more" if rest > 0 else ""
  return ", ".join(ordered[:_MAX_NAMED]) + more


def _float32(array: np.ndarray, key: str, path: pathlib.Path) -> np.ndarray:
  # (NumPy does not count bfloat16 among its floating types.)
  if not (
    np.issubdtype(array.dtype, np.floating) or array.dtype == ml_dtypes.bfloat16
  ):
    raise InputError(f"{path}: {key} is {array.dtype}, not floating point.")
  array = array.astype(np.float32, copy=False)
  if not np.isfinite(array).all():
    raise InputError(f"{path}: {key} has values that are not finite.")
  return array
