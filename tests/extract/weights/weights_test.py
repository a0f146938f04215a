"""Weights: from a store, the Hub, a path; both formats, and what is neither.

Stores and the Hub are on 127.0.0.1, and misbehave as told.
"""

import contextlib
import hashlib
import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import constants

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import storage
from oneshot_dp.extract.weights import local_weights, read_tensors
from tests.extract import object_server
from tests.extract.refusals import refused

BODY = np.random.default_rng(0).bytes(1_500_000)
OTHER = np.random.default_rng(1).bytes(1_500_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
NAME = "models/ViT-Ti 16.npz"
URL = f"s3://{object_server.BUCKET}/{NAME}"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """An empty cache, and nobody's credentials."""
  monkeypatch.setenv("ONESHOT_DP_WEIGHTS_DIR", str(tmp_path / "cache"))
  for name in ("HF_TOKEN", "http_proxy", "https_proxy"):
    monkeypatch.delenv(name, raising=False)
  return tmp_path / "cache"


@pytest.fixture
def store(tmp_path, monkeypatch):
  monkeypatch.setattr(storage, "_WAITS", ())
  with object_server.served(monkeypatch, tmp_path) as made:
    made.objects[NAME] = BODY
    yield made


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_it_is_whole_readably_named_and_fetched_once(store, cache, scheme):
  url = URL.replace("s3", scheme)
  path = local_weights(url)
  assert path.read_bytes() == BODY
  assert path.parent == cache
  assert path.name.endswith("-ViT-Ti_16.npz")
  store.calls()
  assert local_weights(url) == path
  assert local_weights(url, SHA256.upper()) == path
  assert not any(call.startswith("GET") for call in store.calls())
  path.write_bytes(BODY[:-1])  # the disk was full, or lost its end
  assert local_weights(url).read_bytes() == BODY
  assert list(cache.iterdir()) == [path]


def test_what_is_new_or_changes_meanwhile(store, cache):
  """Parts of two versions are not joined."""
  old = local_weights(URL)
  store.objects[NAME] = OTHER[1:]

  def changed(method: str) -> None:
    if method == "GET":
      store.objects[NAME] = OTHER

  store.fault = changed
  with refused("was changed meanwhile", RunError):
    local_weights(URL)
  assert list(cache.iterdir()) == [old]
  with refused(f", not {SHA256}: correct one"):
    local_weights(URL, SHA256)
  assert local_weights(URL).read_bytes() == OTHER
  with refused("none.npz is not there"):
    local_weights(URL.replace(NAME, "none.npz"))


PLACES = {
  "file:///w.npz": "give a path",
  "gs://": "give a path",
  "https://ann:sesame@host/a/w.npz?key=sesame": "host/a/w.npz: .* download",
  "hf://a/b": "give a path|hf",
  "/absent/w.npz": "No such file",
  "/dev/zero": "not a regular file",
  "w\x1b[31m.npz": r"w\\x1b",
  "w\0.npz": "null byte",
}


def test_what_is_no_place_or_hash_is_one_line(tmp_path):
  for location, said in PLACES.items():
    with refused(said) as caught:
      local_weights(location)
    assert "sesame" not in str(caught.value)
  (path := tmp_path / "w.npz").write_bytes(BODY)
  assert local_weights(str(path)) == local_weights(str(path), SHA256) == path
  for sha256, said in (
    *((no, "is no SHA-256") for no in ("", "g" * 64, "a" * 63)),
    ("1" * 64, f"{SHA256}, not {'1' * 64}"),
  ):
    with refused(said):
      local_weights(str(path), sha256)


def test_the_hub_is_asked_once_and_says_what_it_denies(tmp_path, monkeypatch):
  """A local server, which says `answer` of the file."""
  file = "/timm/vit/resolve/main/model.safetensors"
  location = "hf://timm/vit@main/model.safetensors"

  def ask(method, path, headers, body):
    return server.answer if path == file else (404, [], b"")

  server: Any = object_server.ObjectServer(ask)
  template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
  monkeypatch.setattr(constants, "ENDPOINT", server.url)
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
  monkeypatch.setattr("time.sleep", lambda _: None)  # between its tries
  with object_server.running(server):
    for status, code in (404, "RepoNotFound"), (401, "GatedRepo"), (403, ""):
      server.answer = status, [("X-Error-Code", code)], b""
      kind = RunError if status == 403 else InputError
      with refused(f"^{location}: .*hf auth login", kind):
        local_weights(location)
    commit = [("X-Repo-Commit", "a" * 40), ("ETag", '"one"')]
    server.answer = 200, commit, BODY
    server.calls()
    path = local_weights(location)
    assert path.read_bytes() == BODY
    calls = [call for call in server.calls() if call.endswith(file)]
    assert calls == [f"HEAD {file}", f"GET {file}"]
  # Without the network.
  assert local_weights(location, SHA256) == path
  with refused(r"^hf://timm/vit.*--weights", RunError):
    local_weights(f"{location}2")


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
