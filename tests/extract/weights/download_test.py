"""Downloads from a server on 127.0.0.1 that misbehaves as told."""

import resource

import numpy as np
import pytest
from huggingface_hub import constants

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.weights import local_weights
from tests.extract.refusals import refused
from tests.extract.weights.file_server import Served, running

BODY = np.random.default_rng(0).bytes(1_500_000)
OTHER = np.random.default_rng(1).bytes(1_500_000)
PATH = "/models/ViT-Ti%2016.npz"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """An empty cache, and nobody's credentials."""
  monkeypatch.setenv("ONESHOT_DP_WEIGHTS_DIR", str(tmp_path / "cache"))
  for name in ("HF_TOKEN", "http_proxy", "https_proxy"):
    monkeypatch.delenv(name, raising=False)
  return tmp_path / "cache"


@pytest.fixture
def server():
  with running() as server:
    yield server


@pytest.fixture
def served(server):
  return server.files.setdefault(PATH, Served(body=BODY))


@pytest.fixture
def url(server, served):
  return server.url + PATH


def test_it_is_whole_readably_named_and_fetched_once(
  url, served, server, cache
):
  path = local_weights(url)
  assert path.read_bytes() == BODY
  assert path.parent == cache
  assert path.name.endswith(f"-{served.sha256}-ViT-Ti_16.npz")
  assert list(cache.iterdir()) == [path]
  assert local_weights(url) == local_weights(url, served.sha256.upper()) == path
  assert len(server.asked) == 1


def test_a_cut_connection_is_resumed(url, served, server):
  served.cuts = [700_000]
  assert local_weights(url).read_bytes() == BODY
  (_, _, first), (_, asked, second) = server.asked
  assert first == 700_000
  assert asked.startswith("bytes=")
  assert second < len(BODY)


@pytest.mark.parametrize("etag", ["", '"two"'])
def test_what_breaks_for_good_leaves_nothing(url, served, cache, etag):
  """As where the rest is that of another version, which is not joined."""
  served.etag_of_rests = etag
  served.cuts = [700_000] + ([] if etag else [0] * 20)
  with refused("run the same command again", RunError):
    local_weights(url)
  assert not list(cache.iterdir())
  served.cuts = []
  assert local_weights(url, served.sha256).read_bytes() == BODY


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_server_that_denies_is_one_line(url, served, status):
  served.statuses = [status] * 40
  said = f"ViT-Ti%2016.npz: .*{status} .*check that you may read it"
  with refused(said, RunError if status == 500 else InputError):
    local_weights(url)


def test_a_full_disk_is_one_line(url):
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
  try:
    with refused("cannot be written: File too large", RunError):
      local_weights(url)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert local_weights(url).read_bytes() == BODY


def test_a_hash_that_is_wanted_must_arrive(url, served, server):
  with refused(f"{served.sha256}, not {'0' * 64}"):
    local_weights(url, "0" * 64)
  served.body = OTHER  # and a newer file is fetched where it is the wanted one
  assert local_weights(url).read_bytes() == BODY
  assert local_weights(url, served.sha256).read_bytes() == OTHER


def test_a_damaged_download_is_fetched_again(url, server):
  path = local_weights(url)
  path.write_bytes(BODY[:-1])
  assert local_weights(url).read_bytes() == BODY
  assert len(server.asked) == 2


def test_a_malformed_hash_is_refused_before_any_request(url, server):
  for sha256 in ("", "g" * 64, "a" * 63):
    with refused("is no SHA-256"):
      local_weights(url, sha256)
  assert not server.asked


PLACES = [
  ("file:///w.npz", "give a path"),
  ("gs://", "give a path"),
  ("https://host/", "give a path"),
  ("http://weights.example.org/a/w.npz", "not https://"),
  ("https://ann:sesame@host/a/w.npz", "host/a/w.npz: .* password"),
  ("https://host/a/w.npz?key=sesame", "a/w.npz: what has a query"),
  ("hf://a/b", "hf"),
  ("/absent/w.npz", "No such file"),
  ("/dev/zero", "not a regular file"),
  ("w\x1b[31m.npz", r"w\\x1b"),
  ("w\0.npz", "null byte"),
]


def test_what_is_no_place_is_one_line():
  for location, said in PLACES:
    with refused(said) as caught:
      local_weights(location)
    assert "sesame" not in str(caught.value)


def test_a_path_is_given_back_and_its_hash_checked(tmp_path):
  path = tmp_path / "w.npz"
  path.write_bytes(BODY)
  sha256 = Served(body=BODY).sha256
  assert local_weights(str(path)) == local_weights(str(path), sha256) == path
  with refused(f"{sha256}, not {'1' * 64}"):
    local_weights(str(path), "1" * 64)


class TestHub:
  FILE = "/timm/vit/resolve/main/model.safetensors"
  LOCATION = "hf://timm/vit@main/model.safetensors"

  @pytest.fixture
  def hub(self, server, monkeypatch, tmp_path):
    """The local server as the Hub."""
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return server

  def test_it_is_fetched_once_and_used_without_network(self, hub):
    commit: dict[str, str] = {"X-Repo-Commit": "a" * 40}
    hub.files[self.FILE] = Served(body=BODY, headers=commit)
    path = local_weights(self.LOCATION)
    assert path.read_bytes() == BODY
    assert [path for path, _, _ in hub.asked] == [self.FILE]
    del hub.files[self.FILE]
    hub.shutdown()
    assert local_weights(self.LOCATION, Served(body=BODY).sha256) == path

  @pytest.mark.parametrize(
    ("status", "code"), [(404, "RepoNotFound"), (401, "GatedRepo"), (403, "")]
  )
  def test_what_is_denied_is_one_line(self, hub, status, code):
    headers = {"X-Error-Code": code}
    hub.files[self.FILE] = Served(
      body=b"", statuses=[status] * 20, headers=headers
    )
    said = r"^hf://timm/vit@main/model.safetensors: .*hf auth login"
    with refused(said, RunError if status == 403 else InputError):
      local_weights(self.LOCATION)

  def test_no_network_is_one_line(self, hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # between its tries
    hub.shutdown()
    hub.server_close()
    with refused(r"^hf://timm/vit.*--weights", RunError):
      local_weights(self.LOCATION)
