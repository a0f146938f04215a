"""Weights from a store, the Hub or a path, and what is remembered of them.

Stores and the Hub are on 127.0.0.1, and misbehave as they are told.
"""

import hashlib
import logging
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import storage
from oneshot_dp.extract.known_weights import (
  remember_location,
  remembered_location,
)
from oneshot_dp.extract.weights import local_weights
from tests.extract import local_hub, object_server
from tests.extract.refusals import refused

BODY = np.random.default_rng(0).bytes(1_500_000)
OTHER = np.random.default_rng(1).bytes(1_500_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
OTHER_SHA256 = "1".zfill(64)
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
def test_download_is_whole_and_readably_named(store, cache, scheme):
  path = local_weights(URL.replace("s3", scheme))
  assert path.read_bytes() == BODY
  assert path.parent == cache
  assert path.name.endswith("-ViT-Ti_16.npz")


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_download_is_done_once(store, scheme):
  url = URL.replace("s3", scheme)
  path = local_weights(url)
  store.calls()
  assert local_weights(url) == path
  assert local_weights(url, SHA256.upper()) == path
  assert not any(call.startswith("GET") for call in store.calls())


def test_download_that_was_cut_short_is_done_again(store, cache):
  path = local_weights(URL)
  path.write_bytes(BODY[:-1])  # the disk was full, or lost its end
  assert local_weights(URL).read_bytes() == BODY
  assert list(cache.iterdir()) == [path]


def test_download_of_an_object_that_changes_meanwhile_is_refused(store, cache):
  """Parts of two versions are not joined."""
  old = local_weights(URL)
  store.objects[NAME] = OTHER[1:]

  def change_object(method: str) -> None:
    if method == "GET":
      store.objects[NAME] = OTHER

  store.fault = change_object
  with refused("was changed meanwhile", RunError):
    local_weights(URL)
  assert list(cache.iterdir()) == [old]


def test_download_of_a_new_version_is_another_file(store):
  local_weights(URL)
  store.objects[NAME] = OTHER
  with refused(f", not {SHA256}: give the weights file"):
    local_weights(URL, SHA256)
  assert local_weights(URL).read_bytes() == OTHER


def test_download_of_an_absent_object_is_refused(store):
  with refused("none.npz does not exist"):
    local_weights(URL.replace(NAME, "none.npz"))


LOCATIONS = {
  "file:///w.npz": "give a path",
  "gs://": "give a path",
  "https://ann:sesame@host/a/w.npz?key=sesame": "host/a/w.npz: .* download",
  "hf://a/b": "give a path|hf",
  "/absent/w.npz": "No such file",
  "/dev/zero": "not a regular file",
  "w\x1b[31m.npz": r"w\\x1b",
  "w\0.npz": "null byte",
}


@pytest.mark.parametrize(("location", "message"), LOCATIONS.items())
def test_location_that_cannot_be_read_is_refused_without_secrets(
  location, message
):
  with refused(message) as caught:
    local_weights(location)
  assert "sesame" not in str(caught.value)


@pytest.fixture
def body_file(tmp_path):
  path = tmp_path / "w.npz"
  path.write_bytes(BODY)
  return path


def test_path_of_a_file_is_itself(body_file):
  assert local_weights(str(body_file)) == body_file
  assert local_weights(str(body_file), SHA256) == body_file


@pytest.mark.parametrize(
  ("sha256", "message"),
  [
    ("", "is not a SHA-256"),
    ("g".zfill(64), "is not a SHA-256"),
    ("a".zfill(63), "is not a SHA-256"),
    (OTHER_SHA256, f"{SHA256}, not {OTHER_SHA256}"),
  ],
)
def test_sha256_of_another_file_or_of_none_is_refused(
  body_file, sha256, message
):
  with refused(message):
    local_weights(str(body_file), sha256)


HUB_FILE = "/timm/vit/resolve/main/model.safetensors"
HUB_LOCATION = "hf://timm/vit@main/model.safetensors"


@pytest.fixture
def hub(tmp_path, monkeypatch):
  """A local Hub, which answers `hub.answer` when asked for the file."""

  def ask(method, path, headers, body):
    return server.answer if path == HUB_FILE else (404, [], b"")

  server: Any = object_server.ObjectServer(ask)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
  local_hub.ask_at(monkeypatch, server.url)
  commit = [("X-Repo-Commit", "0".zfill(40)), ("ETag", '"one"')]
  server.answer = (200, commit, BODY)
  with object_server.running(server):
    yield server


@pytest.mark.parametrize(
  ("status", "code", "kind"),
  [
    (404, "RepoNotFound", InputError),
    (401, "GatedRepo", InputError),
    (403, "", RunError),
  ],
)
def test_hub_that_denies_a_file_is_reported_in_one_line(
  hub, status, code, kind
):
  hub.answer = (status, [("X-Error-Code", code)], b"")
  with refused(f"^{HUB_LOCATION}: .*hf auth login", kind):
    local_weights(HUB_LOCATION)


def test_hub_that_is_out_of_reach_is_told_from_one_that_denies(
  hub, monkeypatch
):
  local_hub.ask_at(monkeypatch, "http://127.0.0.1:9")  # where nobody listens
  with refused("the Hub is out of reach.* as the weights", RunError):
    local_weights(HUB_LOCATION)


def test_hub_is_asked_for_a_file_once(hub):
  path = local_weights(HUB_LOCATION)
  assert path.read_bytes() == BODY
  calls = [call for call in hub.calls() if call.endswith(HUB_FILE)]
  assert calls == [f"HEAD {HUB_FILE}", f"GET {HUB_FILE}"]


def test_hub_out_of_reach_leaves_what_was_downloaded(hub, monkeypatch):
  path = local_weights(HUB_LOCATION)
  local_hub.ask_at(monkeypatch, local_hub.NOWHERE)
  assert local_weights(HUB_LOCATION, SHA256) == path
  with refused(r"^hf://timm/vit.*as the weights", RunError):
    local_weights(f"{HUB_LOCATION}2")


def test_hub_out_of_reach_is_one_error_and_no_log_of_retries(
  tmp_path, monkeypatch, caplog, capfd
):
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
  local_hub.ask_at(monkeypatch, local_hub.NOWHERE)
  logger = logging.getLogger("huggingface_hub")
  logger.addHandler(caplog.handler)
  with refused(r"^hf://timm/vit.*[^.]; check", RunError):
    local_weights(HUB_LOCATION)
  logger.removeHandler(caplog.handler)
  assert caplog.messages == []
  assert "Retry" not in capfd.readouterr().err


@pytest.fixture
def state(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  return tmp_path / "state"


def test_remembered_weights_are_found_by_their_sha256(
  state, body_file, monkeypatch
):
  monkeypatch.chdir(body_file.parent)
  remember_location(SHA256, body_file.name)
  monkeypatch.chdir("/")
  assert remembered_location(SHA256) == str(body_file)


def test_remembered_location_of_the_hub_is_the_location(state):
  remember_location(SHA256, HUB_LOCATION)
  assert remembered_location(SHA256) == HUB_LOCATION


def test_remembered_weights_that_moved_are_found_at_the_new_place(
  state, body_file
):
  remember_location(SHA256, "/absent/w.npz")
  remember_location(SHA256, str(body_file))
  assert remembered_location(SHA256) == str(body_file)


def test_remembered_weights_that_changed_are_not_found(state, body_file):
  remember_location(SHA256, str(body_file))
  body_file.write_bytes(OTHER)
  assert remembered_location(SHA256) is None
  body_file.unlink()
  assert remembered_location(SHA256) is None


def test_weights_that_nobody_noted_are_not_found(state):
  assert remembered_location(SHA256) is None
  assert remembered_location("../../etc/passwd") is None


def test_note_of_weights_is_for_its_user_alone(state, body_file):
  remember_location(SHA256, str(body_file))
  note = state / "oneshot-dp" / "weights" / SHA256
  assert note.stat().st_mode & 0o777 == 0o600


def test_note_that_cannot_be_written_is_no_error(state, body_file):
  state.write_text("a file in the folder's place")
  remember_location(SHA256, str(body_file))
  assert remembered_location(SHA256) is None
