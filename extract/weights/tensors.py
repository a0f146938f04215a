"""The arrays of a file of weights: npz or safetensors, neither carries code."""

import pathlib
import zipfile

import ml_dtypes
import numpy as np
import safetensors

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.extract.weights.download import file_sha256

_PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle", ".msgpack")
_MOST_TIMES = 64
"""Weights hardly compress: what unfolds to more times its size is a bomb."""


def read_tensors(path: pathlib.Path) -> tuple[dict[str, np.ndarray], str]:
  """Every array of a file by name, all floating point, and its SHA-256.

  Raises:
    InputError: it is no regular file, a pickle (which can run code), damaged,
      or holds what is no floating-point array.
  """
  shown, sha256 = escaped(str(path)), file_sha256(path)
  try:
    if path.suffix.lower() in _PICKLES:
      raise InputError
    if zipfile.is_zipfile(path):
      arrays = _from_npz(path)
    else:
      with safetensors.safe_open(path, framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name, array in arrays.items():
      # (NumPy does not count bfloat16 among its floating types.)
      if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        raise ValueError(f"{name} is {array.dtype}, not floating point")
  except InputError:
    raise InputError(
      f"{shown}: a pickle can run code when it is loaded, and is not read; give"
      " the model.safetensors of the same repository, or an npz of its arrays."
    ) from None
  except Exception as error:  # whatever their parsing of damaged bytes meets
    reason = escaped(" ".join(str(error).split()))[:300]
    raise InputError(
      f"{shown}: the weights are no whole npz or safetensors file of plain"
      f" arrays ({type(error).__name__}: {reason}); fetch them again."
    ) from error
  return arrays, sha256


def _from_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
  with zipfile.ZipFile(path) as archive:
    members = archive.infolist()
  names = {member.filename for member in members}
  whole = sum(member.file_size for member in members)
  if any(name.endswith("data.pkl") for name in names):  # PyTorch's
    raise InputError
  if whole > 2**24 + _MOST_TIMES * path.stat().st_size:
    raise ValueError(f"it would unfold to {whole} bytes")
  if len(names) < len(members):
    raise ValueError("two arrays have one name")
  with np.load(path, allow_pickle=False) as npz:
    arrays = {name: npz[name] for name in npz.files}
  # An npz says no more of bfloat16 than that it has two bytes.
  return {
    name: array.view(ml_dtypes.bfloat16) if array.dtype.str == "|V2" else array
    for name, array in arrays.items()
  }
