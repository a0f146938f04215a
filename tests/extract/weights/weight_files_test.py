"""Files of weights: read by their content, or refused without running it."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import struct
import warnings
import zipfile

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.weights import read_tensors
from tests.extract.refusals import refused

ARRAYS = {
  dtype.__name__: np.arange(6).reshape(2, 3).astype(dtype)
  for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)
}


def npz(arrays: dict, save=np.savez) -> bytes:
  file = io.BytesIO()
  save(file, allow_pickle=True, **arrays)
  return file.getvalue()


def zipped(name: str, data: bytes, before: bytes = b"") -> bytes:
  """An archive with one more file in it."""
  file = io.BytesIO(before)
  file.seek(0, io.SEEK_END)
  with (
    warnings.catch_warnings(action="ignore"),  # of a second of one name
    zipfile.ZipFile(file, "a") as archive,
  ):
    archive.writestr(name, data)
  return file.getvalue()


def header(text: str) -> bytes:
  """The beginning of a safetensors file."""
  return struct.pack("<Q", len(text)) + text.encode()


def entry(shape: list, offsets: list, dtype: str = "F32") -> bytes:
  fields = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
  return header(json.dumps({"a": fields}))


class Trap:
  """A pickle of it makes a folder."""

  def __reduce__(self):
    return os.mkdir, ("trapped",)


PICKLED = pickle.dumps(Trap())
# The header of an array of 18 TB, padded as NumPy writes it.
HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427,)}"
HUGE_NPY = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
HUGE_NPY += f"{HUGE:117}\n".encode()
NOT_WHOLE = "no whole npz or safetensors"
NO_FLOATS = "not floating point"
BAD_DTYPES = (np.int64, complex, "datetime64[s]", [("x", "f4")], "U4")
# Deeper than any parser follows.
NESTED_LISTS = "[".ljust(200_000, "[")
BAD_FILES: list[tuple[bytes, str]] = [
  (PICKLED, NOT_WHOLE),
  (npz({"a": np.array([Trap()])}), NOT_WHOLE),
  (zipped("archive/data.pkl", PICKLED), "can run code"),  # PyTorch's
  *((npz({"a\n\x1b[31m": np.zeros(2, d)}), NO_FLOATS) for d in BAD_DTYPES),
  (entry([2**62, 4], [0, 2**64]), NOT_WHOLE),
  (entry([2], [0, 4]), NOT_WHOLE),
  (entry([1], [0, 4], "F99"), NOT_WHOLE),
  (header(NESTED_LISTS), NOT_WHOLE),
  (header(""), NOT_WHOLE),
  (struct.pack("<Q", 2**40) + b"{", NOT_WHOLE),
  (b"", NOT_WHOLE),
  (header("{}") + b"rest", NOT_WHOLE),
  (npz(ARRAYS)[:-30], NOT_WHOLE),
  (npz(ARRAYS)[30:], NOT_WHOLE),
  # 32 MB in 32 kB.
  (npz({"a": np.zeros(2**22)}, np.savez_compressed), "would unfold"),
  (zipped("a.npy", HUGE_NPY), NOT_WHOLE),
  (zipped("float32.npy", b"", npz(ARRAYS)), "two arrays have one name"),
]


@pytest.fixture(params=[npz, safetensors.numpy.save])
def packed(request) -> bytes:
  """`ARRAYS` as a file of each format."""
  return request.param(ARRAYS)


def test_file_of_any_name_is_read_by_its_content(tmp_path, packed):
  path = tmp_path / "weights.dat"
  path.write_bytes(packed)
  arrays, sha256 = read_tensors(path)
  assert sha256 == hashlib.sha256(packed).hexdigest()
  assert arrays.keys() == ARRAYS.keys()
  for name, array in ARRAYS.items():
    np.testing.assert_array_equal(arrays[name], array)
    assert arrays[name].dtype == array.dtype


@pytest.mark.slow
def test_file_with_a_flipped_bit_is_read_or_refused(tmp_path, packed):
  """Nothing else is raised."""
  path = tmp_path / "weights.dat"
  rng = np.random.default_rng(0)
  for place in rng.integers(0, len(packed), 150):
    damaged = bytearray(packed)
    damaged[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(damaged)
    with contextlib.suppress(InputError):
      read_tensors(path)


@pytest.mark.parametrize(("data", "message"), BAD_FILES)
def test_file_that_is_no_plain_arrays_is_refused_and_runs_no_code(
  tmp_path, monkeypatch, data, message
):
  monkeypatch.chdir(tmp_path)
  path = tmp_path / "w.npz"
  path.write_bytes(data)
  with refused(message):
    read_tensors(path)
  assert not (tmp_path / "trapped").exists()


def test_file_named_as_a_pickle_is_refused_unread(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "w.PTH").write_bytes(PICKLED)
  with refused("can run code .* model.safetensors"):
    read_tensors(tmp_path / "w.PTH")
  assert not (tmp_path / "trapped").exists()
