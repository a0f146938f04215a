"""Files of weights: both formats, and what is neither."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import struct
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


def npz(arrays: dict) -> bytes:
  file = io.BytesIO()
  np.savez(file, allow_pickle=True, **arrays)
  return file.getvalue()


@pytest.mark.parametrize("pack", [npz, safetensors.numpy.save])
def test_the_content_says_the_format(tmp_path, pack):
  path = tmp_path / "weights.dat"
  path.write_bytes(pack(ARRAYS))
  found, sha256 = read_tensors(path)
  assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
  assert found.keys() == ARRAYS.keys()
  for name, array in ARRAYS.items():
    np.testing.assert_array_equal(found[name], array)
    assert found[name].dtype == array.dtype


class Trap:
  """A pickle of it makes a folder."""

  def __reduce__(self):
    return os.mkdir, ("trapped",)


def test_pickles_are_refused(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pickled = pickle.dumps(Trap())
  with zipfile.ZipFile(torch := io.BytesIO(), "w") as archive:
    archive.writestr("archive/data.pkl", pickled)  # as PyTorch writes it
  for name, data, said in (
    ("w.PTH", pickled, "can run code .* model.safetensors"),
    ("w.npz", pickled, "no whole npz or safetensors"),
    ("w.npz", npz({"a": np.array([Trap()])}), "no whole npz"),
    ("w.npz", torch.getvalue(), "can run code"),
  ):
    (path := tmp_path / name).write_bytes(data)
    with refused(said):
      read_tensors(path)
  assert not (tmp_path / "trapped").exists()


def test_what_is_no_floating_point_is_refused(tmp_path):
  path = tmp_path / "w"
  for dtype in (np.int64, complex, "datetime64[s]", [("x", "f4")], "U4"):
    path.write_bytes(npz({"a\n\x1b[31m": np.zeros(2, dtype)}))
    with refused("not floating point"):
      read_tensors(path)


def header(length: int, text: str = "") -> bytes:
  return struct.pack("<Q", length) + text.encode()


def entry(shape: list, offsets: list, dtype: str = "F32") -> str:
  fields = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
  return json.dumps({"a": fields})


def test_headers_that_lie_are_one_line(tmp_path):
  path = tmp_path / "w"
  texts = (
    entry([2**62, 4], [0, 2**64]),
    entry([2], [0, 4]),
    entry([1], [0, 4], "F99"),
    *("[" * 200_000, ""),
  )
  for data in (
    *(header(len(text), text) for text in texts),
    *(header(2**40, "{"), b"", header(2, "{}") + b"rest"),
    *(npz(ARRAYS)[:-30], npz(ARRAYS)[30:]),
  ):
    path.write_bytes(data)
    with refused("no whole npz or safetensors"):
      read_tensors(path)


def test_bombs_are_refused_before_they_unfold(tmp_path):
  path = tmp_path / "bomb.npz"
  np.savez_compressed(path, a=np.zeros(2**22))  # 32 MB in 32 kB
  assert path.stat().st_size < 2**20
  with refused("would unfold"):
    read_tensors(path)
  with zipfile.ZipFile(path, "w") as archive:  # a shape that is not there
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427,)}"
    text = text.ljust(117) + "\n"
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text))
    archive.writestr("a.npy", head + text.encode())
  with refused("no whole npz"):
    read_tensors(path)


def test_two_arrays_of_one_name_are_refused(tmp_path):
  path = tmp_path / "w.npz"
  path.write_bytes(npz(ARRAYS))
  with (
    pytest.warns(UserWarning, match="Duplicate"),
    zipfile.ZipFile(path, "a") as archive,
  ):
    archive.writestr("float32.npy", b"")
  with refused("two arrays have one name"):
    read_tensors(path)


@pytest.mark.parametrize("pack", [npz, safetensors.numpy.save])
def test_damaged_files_are_one_line_or_arrays(tmp_path, pack):
  whole, rng = pack(ARRAYS), np.random.default_rng(0)
  for at in rng.integers(0, len(whole), 150):
    flipped = bytes([whole[at] ^ (1 << int(rng.integers(8)))])
    (tmp_path / "w").write_bytes(whole[:at] + flipped + whole[at + 1 :])
    with contextlib.suppress(InputError):
      read_tensors(tmp_path / "w")
