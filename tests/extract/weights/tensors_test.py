"""Files of weights: both formats, and what is neither."""

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
  (file := io.BytesIO(before)).seek(0, io.SEEK_END)
  with (
    warnings.catch_warnings(action="ignore"),  # of a second of one name
    zipfile.ZipFile(file, "a") as archive,
  ):
    archive.writestr(name, data)
  return file.getvalue()


def header(text: str, length: int | None = None) -> bytes:
  """The beginning of a safetensors file."""
  size = len(text) if length is None else length
  return struct.pack("<Q", size) + text.encode()


def entry(shape: list, offsets: list, dtype: str = "F32") -> bytes:
  fields = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
  return header(json.dumps({"a": fields}))


class Trap:
  """A pickle of it makes a folder."""

  def __reduce__(self):
    return os.mkdir, ("trapped",)


PICKLED, NO_NUMBERS = pickle.dumps(Trap()), "not floating point"
LONG = "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427,)}"
LONG = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + f"{LONG:117}\n".encode()
WHOLE = "no whole npz or safetensors"
BAD: list[tuple[bytes, str]] = [
  (PICKLED, WHOLE),
  (npz({"a": np.array([Trap()])}), WHOLE),
  (zipped("archive/data.pkl", PICKLED), "can run code"),  # as PyTorch writes it
  *(
    (npz({"a\n\x1b[31m": np.zeros(2, dtype)}), NO_NUMBERS)
    for dtype in (np.int64, complex, "datetime64[s]", [("x", "f4")], "U4")
  ),
  (entry([2**62, 4], [0, 2**64]), WHOLE),
  (entry([2], [0, 4]), WHOLE),
  (entry([1], [0, 4], "F99"), WHOLE),
  *((header(text), WHOLE) for text in ("[" * 200_000, "")),
  (header("{", 2**40), WHOLE),
  (b"", WHOLE),
  (header("{}") + b"rest", WHOLE),
  *((npz(ARRAYS)[part], WHOLE) for part in (slice(-30), slice(30, None))),
  # 32 MB in 32 kB, a shape that is not there, and two arrays of one name
  (npz({"a": np.zeros(2**22)}, np.savez_compressed), "would unfold"),
  (zipped("a.npy", LONG), WHOLE),
  (zipped("float32.npy", b"", npz(ARRAYS)), "two arrays have one name"),
]


@pytest.mark.parametrize("pack", [npz, safetensors.numpy.save])
def test_the_content_says_the_format_and_damage_is_one_line(tmp_path, pack):
  path, whole = tmp_path / "weights.dat", pack(ARRAYS)
  path.write_bytes(whole)
  found, sha256 = read_tensors(path)
  assert sha256 == hashlib.sha256(whole).hexdigest()
  assert found.keys() == ARRAYS.keys()
  for name, array in ARRAYS.items():
    np.testing.assert_array_equal(found[name], array)
    assert found[name].dtype == array.dtype
  rng = np.random.default_rng(0)
  for at in rng.integers(0, len(whole), 150):
    flipped = bytes([whole[at] ^ (1 << int(rng.integers(8)))])
    path.write_bytes(whole[:at] + flipped + whole[at + 1 :])
    with contextlib.suppress(InputError):
      read_tensors(path)


def test_what_is_neither_is_refused_and_runs_no_code(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  path = tmp_path / "w.npz"
  for data, said in BAD:
    path.write_bytes(data)
    with refused(said):
      read_tensors(path)
  (tmp_path / "w.PTH").write_bytes(PICKLED)
  with refused("can run code .* model.safetensors"):
    read_tensors(tmp_path / "w.PTH")
  assert not (tmp_path / "trapped").exists()
