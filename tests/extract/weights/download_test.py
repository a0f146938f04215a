"""Downloads from a store and the Hub on 127.0.0.1, which misbehave as told."""

import hashlib
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import storage
from oneshot_dp.extract.weights import local_weights
from tests.extract import object_server
from tests.extract.refusals import refused

BODY = np.random.default_rng(0).bytes(1_500_000)
OTHER = np.random.default_rng(1).bytes(1_500_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
NAME = "models/ViT-Ti 16.npz"


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


def url(scheme: str = "s3", name: str = NAME) -> str:
  return f"{scheme}://{object_server.BUCKET}/{name}"


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_it_is_whole_readably_named_and_fetched_once(store, cache, scheme):
  path = local_weights(url(scheme))
  assert path.read_bytes() == BODY
  assert path.parent == cache
  assert path.name.endswith("-ViT-Ti_16.npz")
  store.calls()
  assert local_weights(url(scheme)) == path
  assert local_weights(url(scheme), SHA256.upper()) == path
  assert not any(call.startswith("GET") for call in store.calls())
  path.write_bytes(BODY[:-1])  # the disk was full, or lost its end
  assert local_weights(url(scheme)).read_bytes() == BODY
  assert list(cache.iterdir()) == [path]


def test_what_is_new_or_changes_meanwhile(store, cache):
  """Parts of two versions are not joined."""
  old = local_weights(url())
  store.objects[NAME] = OTHER[1:]

  def changed(method: str) -> None:
    if method == "GET":
      store.objects[NAME] = OTHER

  store.fault = changed
  with refused("was changed meanwhile", RunError):
    local_weights(url())
  assert list(cache.iterdir()) == [old]
  with refused(f", not {SHA256}: correct one"):
    local_weights(url(), SHA256)
  assert local_weights(url()).read_bytes() == OTHER
  with refused("none.npz is not there"):
    local_weights(url(name="none.npz"))


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
