import concurrent.futures
import json
import os
import pathlib
import resource
import socket
import traceback

import numpy as np
import pytest
from huggingface_hub import constants

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.weights import download, locations
from oneshot_dp.extract.weights.locations import local_weights
from tests.extract.processes import python
from tests.extract.refusals import refused
from tests.extract.weights.file_server import Served, running

BODY = np.random.default_rng(0).bytes(1_500_000)
OTHER = np.random.default_rng(1).bytes(1_500_000)
PATH = "/models/ViT-Ti 16.npz".replace(" ", "%20")
CUT = 700_000
# Apart, so that tracebacks do not quote it from this file.
SECRET = "sesame"
ELSEWHERE = "http://weights.example.org"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """An empty cache, no waiting, and nobody's credentials."""
  folder = tmp_path / "cache"
  monkeypatch.setenv("ONESHOT_DP_WEIGHTS_DIR", str(folder))
  for name in ("STORAGE_EMULATOR_HOST", "HF_ENDPOINT", "HF_TOKEN"):
    monkeypatch.delenv(name, raising=False)
  for name in ("HF_HOME", "HOME"):
    monkeypatch.setenv(name, str(tmp_path / "home"))
  monkeypatch.setattr(download, "_FIRST_PAUSE_SECONDS", 0.001)
  return folder


@pytest.fixture
def server():
  with running() as server:
    yield server


@pytest.fixture
def served(server):
  server.files[PATH] = Served(body=BODY)
  return server.files[PATH]


@pytest.fixture
def url(server, served):
  return server.url + PATH


def part_of(cache):
  (part,) = cache.glob("*.part")
  return part


def broken_once(url, served):
  """Leaves part of the file behind, as a run that gave up does."""
  served.always_cut = 0
  served.cuts = [CUT]
  with pytest.raises(RunError):
    local_weights(url)
  served.always_cut = None


def ask_elsewhere(location, cache, **environment):
  """`local_weights` in another process: its answer or its error."""
  code = (
    "import sys\n"
    "from oneshot_dp.extract.weights.locations import local_weights\n"
    "try: print(local_weights(sys.argv[1]))\n"
    "except Exception as e: print(type(e).__name__, e)\n"
  )
  return python(code, location, **environment).strip()


def test_unknown_scheme_is_refused_naming_the_known():
  for location in ("s3://b/w.npz", "file:///w.npz", "HDFS://h/w.npz"):
    with refused(r"https://, gs://.* hf://"):
      local_weights(location)


class TestPath:
  def test_is_given_back_and_its_hash_checked_in_either_case(self, tmp_path):
    path = tmp_path / "w.npz"
    path.write_bytes(BODY)
    right, wrong = (Served(body=body).sha256 for body in (BODY, OTHER))
    for sha256 in (None, right, right.upper()):
      assert local_weights(str(path), sha256) == path
    with refused(f"{right}, not {wrong}"):
      local_weights(str(path), wrong)
    assert path.exists()

  def test_must_be_a_file(self, tmp_path):
    with refused("path .* does not exist: give a path, https"):
      local_weights(str(tmp_path / "missing.npz"))
    with refused("is not a file"):
      local_weights(str(tmp_path))


@pytest.mark.parametrize("sha256", ["", "abc", "g" * 64, "a" * 63, "a" * 65])
def test_malformed_hash_is_refused_before_any_request(url, server, sha256):
  with refused("64 hexadecimal digits"):
    local_weights(url, sha256)
  assert not server.asked


class TestDownload:
  def test_is_whole_and_readably_named(self, url, cache):
    path = local_weights(url)
    assert path.read_bytes() == BODY
    assert path.parent == cache
    assert path.name.endswith("-ViT-Ti_16.npz")
    assert not list(cache.glob("*.part*"))

  def test_happens_once(self, url, served, server):
    assert local_weights(url) == local_weights(url)
    assert local_weights(url, served.sha256).read_bytes() == BODY
    assert len(server.asked) == 1

  def test_default_cache_is_the_users(self, url, monkeypatch, tmp_path):
    monkeypatch.delenv("ONESHOT_DP_WEIGHTS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = tmp_path / "xdg" / "oneshot-dp" / "weights"
    assert local_weights(url).parent == folder

  def test_compressed_is_declined_and_refused(self, url, served, server):
    served.headers = {"Content-Encoding": "gzip"}
    with refused("is sent compressed"):
      local_weights(url)
    assert server.asked[0].headers["Accept-Encoding"] == "identity"

  @pytest.mark.parametrize(
    "changes",
    [
      {"body": b""},
      {"headers": {"Transfer-Encoding": "identity", "Connection": "close"}},
    ],
  )
  def test_of_no_or_unknown_length(self, url, served, changes):
    vars(served).update(changes)
    assert local_weights(url).read_bytes() == served.body


class TestResume:
  def test_within_a_call(self, url, served, server):
    served.cuts = [CUT]
    assert local_weights(url).read_bytes() == BODY
    _, second = server.asked
    start = int(second.headers["Range"].removeprefix("bytes=")[:-1])
    assert 0 < start <= CUT
    assert second.status == 206
    assert second.headers["If-Range"] == served.etag
    assert second.sent == len(BODY) - start

  def test_by_a_later_call(self, url, served, server, cache):
    broken_once(url, served)
    held = part_of(cache).stat().st_size
    assert 0 < held <= CUT
    del server.asked[:]
    assert local_weights(url, served.sha256).read_bytes() == BODY
    (asked,) = server.asked
    assert asked.headers["Range"] == f"bytes={held}-"
    assert asked.sent == len(BODY) - held
    assert not list(cache.glob("*.part*"))

  def test_by_last_modified_where_the_etag_is_weak(self, url, served, server):
    served.etag = 'W/"one"'
    served.last_modified = "Wed, 01 Jan 2025 00:00:00 GMT"
    broken_once(url, served)
    assert local_weights(url).read_bytes() == BODY
    assert server.asked[-1].headers["If-Range"] == served.last_modified

  @pytest.mark.parametrize(
    "changes",
    [
      {"body": OTHER, "etag": '"two"'},
      {"body": OTHER, "etag": '"two"', "honest_if_range": False},
      {"ranges": False},
      {"statuses": [416]},
    ],
  )
  def test_what_is_no_rest_of_the_file_starts_anew(self, url, served, changes):
    broken_once(url, served)
    for name, value in changes.items():
      setattr(served, name, value)
    assert local_weights(url).read_bytes() == served.body

  @pytest.mark.parametrize("modified", ["Wed, 01 Jan 2025 00:00:00 GMT", ""])
  def test_another_length_starts_anew(self, url, served, server, modified):
    served.etag, served.last_modified = "", modified
    broken_once(url, served)
    served.body = OTHER[:-1]
    assert local_weights(url).read_bytes() == OTHER[:-1]
    assert modified or "Range" not in server.asked[-1].headers

  def test_part_without_its_note_starts_anew(self, url, served, cache):
    broken_once(url, served)
    part = part_of(cache)
    part.with_name(part.name + ".json").write_text("{")
    assert local_weights(url).read_bytes() == BODY

  def test_whole_part_needs_no_request(self, url, served, server, cache):
    broken_once(url, served)
    part_of(cache).write_bytes(BODY)
    del server.asked[:]
    assert local_weights(url).read_bytes() == BODY
    assert not server.asked


class TestBrokenConnection:
  def test_truncated_always_ends_with_what_is_here(self, url, served, server):
    served.ranges, served.always_cut = False, CUT
    with refused(r"of 1500000 bytes are here: run", RunError):
      local_weights(url)
    assert len(server.asked) == download._ATTEMPTS

  def test_attempts_are_counted_anew_while_bytes_arrive(self, url, served):
    served.always_cut = 1 << 18  # one chunk of the client's
    assert local_weights(url).read_bytes() == BODY

  @pytest.mark.parametrize("status", [408, 503])
  def test_passing_trouble_is_waited_for(self, url, served, server, status):
    served.statuses = [status, status]
    assert local_weights(url).read_bytes() == BODY
    assert len(server.asked) == 3

  def test_lasting_trouble_is_not(self, url, served, monkeypatch):
    pauses = []
    monkeypatch.setattr(download.time, "sleep", pauses.append)
    served.statuses, served.seconds = [500] * 10, 0
    with refused("HTTP 500; 0 of unknown bytes", RunError):
      local_weights(url)
    assert pauses == [0.001, 0.002, 0.004, 0.008]

  def test_nobody_there_is_one_line(self):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      port = free.getsockname()[1]
      # Still bound, so that no other process listens there meanwhile.
      with refused("Connection refused", RunError):
        local_weights(f"http://127.0.0.1:{port}/w.npz")


class TestDenied:
  @pytest.mark.parametrize("status", [401, 404, 418])
  def test_is_not_tried_again(self, url, served, server, status):
    served.statuses = [status]
    with refused(f"HTTP {status}.*check the address"):
      local_weights(url)
    assert len(server.asked) == 1

  def test_full_disk(self, url, cache):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
      with refused("cannot be written: File too large", RunError):
        local_weights(url)
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert local_weights(url).read_bytes() == BODY


class TestHash:
  def test_wrong_one_removes_the_file(self, url, served, server, cache):
    wrong = Served(body=OTHER).sha256
    with refused(f"{served.sha256}, not {wrong}"):
      local_weights(url, wrong)
    assert not list(cache.glob("*.npz"))
    assert local_weights(url, served.sha256).read_bytes() == BODY
    assert len(server.asked) == 2

  def test_the_right_one_of_a_newer_file_fetches_it(self, url, server):
    local_weights(url)
    server.files[PATH].body = OTHER
    sha256 = server.files[PATH].sha256.upper()
    assert local_weights(url, sha256).read_bytes() == OTHER

  def test_a_wrong_one_leaves_the_cached_file_alone(self, url, server):
    path = local_weights(url)
    with refused("was removed"):
      local_weights(url, "0" * 64)
    assert path.read_bytes() == BODY
    before = len(server.asked)
    assert local_weights(url) == path
    assert len(server.asked) == before

  def test_damage_is_seen_by_size_and_time(self, url, server):
    local_weights(url).write_bytes(BODY[:-1])
    assert local_weights(url).read_bytes() == BODY
    assert len(server.asked) == 2

  def test_damage_of_the_same_size_is_seen_with_one(self, url, served, server):
    path = local_weights(url)
    stat = path.stat()
    path.write_bytes(OTHER)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert local_weights(url, served.sha256).read_bytes() == BODY
    assert len(server.asked) == 2

  def test_a_copied_cache_is_used(self, url, server):
    os.utime(local_weights(url))
    local_weights(url)
    assert len(server.asked) == 1


class TestTrust:
  def test_http_elsewhere_is_refused(self):
    with refused(r"use https://, or .* SHA-256"):
      local_weights(f"{ELSEWHERE}/w.npz")

  def test_http_elsewhere_needs_a_hash(self, server, served, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    server.files[f"{ELSEWHERE}/w.npz"] = served
    path = local_weights(f"{ELSEWHERE}/w.npz", served.sha256)
    assert path.read_bytes() == BODY

  def test_redirect_to_http_elsewhere_is_refused(self, server, served):
    location = {"Location": f"{ELSEWHERE}/w.npz?key=sesame"}
    server.files["/old"] = Served(body=b"", statuses=[302], headers=location)
    with refused(r"redirects to .*/w.npz, which") as e:
      local_weights(f"{server.url}/old", served.sha256)
    assert "sesame" not in str(e.value)


class TestSecrets:
  @pytest.mark.parametrize("statuses", [[404], [418], [500] * 10])
  def test_are_used_but_not_shown(self, server, served, cache, statuses):
    served.statuses = statuses
    secret = server.url.replace("//", f"//ann:{SECRET}@") + PATH
    with pytest.raises((InputError, RunError)) as e:
      local_weights(secret + f"?key={SECRET}#{SECRET}")
    assert SECRET not in "".join(traceback.format_exception(e.value))
    assert f"{server.url}{PATH}" in str(e.value)
    assert server.asked[0].path.endswith(f"?key={SECRET}")
    assert server.asked[0].headers["Authorization"].startswith("Basic ")

  def test_are_not_shown_where_nobody_answers(self):
    with refused(r"^https://weights.invalid/w: ", RunError) as e:
      local_weights(f"https://ann:{SECRET}@weights.invalid/w?key={SECRET}")
    assert SECRET not in "".join(traceback.format_exception(e.value))

  @pytest.mark.parametrize("host", ["[::1", "h:port", ""])
  def test_are_not_shown_where_the_address_is_malformed(self, host):
    with refused("address") as e:
      local_weights(f"https://ann:{SECRET}@{host}/w?key={SECRET}")
    assert SECRET not in "".join(traceback.format_exception(e.value))

  def test_are_not_in_the_cache_nor_make_another_file(self, url, cache):
    secret = url.replace("//", f"//ann:{SECRET}@")
    assert local_weights(secret) == local_weights(url)
    assert local_weights(f"{secret}?v={SECRET}") != local_weights(f"{url}?v=2")
    for path in cache.iterdir():
      assert SECRET not in path.name
      assert SECRET.encode() not in path.read_bytes()


class TestTogether:
  @pytest.mark.slow
  def test_two_processes_download_once(self, url, served, server, cache):
    served.seconds = 1.5
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
      first, second = pool.map(ask_elsewhere, [url, url], [cache, cache])
    assert first == second
    assert pathlib.Path(first).read_bytes() == BODY
    assert len(server.asked) == 1


class TestGoogleStorage:
  @pytest.mark.parametrize("scheme", ["http://", ""])
  def test_object_of_a_bucket(self, server, monkeypatch, scheme):
    host = server.url.removeprefix("http://")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", scheme + host)
    server.files["/vit_models/a%20b/w%23.npz"] = Served(body=BODY, cuts=[CUT])
    path = local_weights("gs://vit_models/a b/w#.npz")
    assert path.read_bytes() == BODY
    assert [a.status for a in server.asked] == [200, 206]
    assert "Authorization" not in server.asked[0].headers

  def test_missing_object_names_itself_and_the_fix(self, server, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    with refused(r"^gs://b/w.npz: HTTP 404; .*gcloud"):
      local_weights("gs://b/w.npz")

  @pytest.mark.parametrize("location", ["gs://", "gs://b", "gs://b/"])
  def test_name_is_checked(self, location):
    with refused("must be gs://BUCKET/OBJECT"):
      local_weights(location)

  def test_without_credentials_it_is_anonymous(self, server, monkeypatch):
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setattr(locations, "_GOOGLE_STORAGE", server.url)
    server.files["/b/w.npz"] = Served(body=BODY)
    assert local_weights("gs://b/w.npz").read_bytes() == BODY
    assert "Authorization" not in server.asked[0].headers

  def test_a_service_account_s_token_is_sent(
    self, server, monkeypatch, tmp_path
  ):
    pytest.importorskip("google.auth", reason="comes with the extra gcp")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
      serialization.Encoding.PEM,
      serialization.PrivateFormat.PKCS8,
      serialization.NoEncryption(),
    )
    account = {
      "type": "service_account",
      "project_id": "p",
      "client_email": "a@example.org",
      "private_key": pem.decode(),
      "token_uri": server.url + "/token",
    }
    path = tmp_path / "account.json"
    path.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setattr(locations, "_GOOGLE_STORAGE", server.url)
    token = {"access_token": SECRET, "expires_in": 3600}
    server.files["/token"] = Served(body=json.dumps(token).encode())
    server.files["/b/w.npz"] = Served(body=BODY)
    assert local_weights("gs://b/w.npz").read_bytes() == BODY
    assert server.asked[-1].headers["Authorization"] == f"Bearer {SECRET}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    server.files["/b/v.npz"] = Served(body=BODY)
    local_weights("gs://b/v.npz")
    assert "Authorization" not in server.asked[-1].headers


class TestHub:
  FILE = "/google/vit/resolve/main/sub/w.safetensors"

  @pytest.fixture
  def hub(self, server, monkeypatch):
    """The local server as the hub, without another process."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(
      constants,
      "HUGGINGFACE_CO_URL_TEMPLATE",
      template.replace(constants.ENDPOINT, server.url),
    )
    return server

  def test_resumes_where_it_was_interrupted(self, hub):
    hub.files[self.FILE] = file = Served(body=BODY)
    broken_once("hf://google/vit/sub/w.safetensors", file)
    del hub.asked[:]
    path = local_weights("hf://google/vit/sub/w.safetensors", file.sha256)
    assert path.read_bytes() == BODY
    assert [a.status for a in hub.asked] == [206]

  @pytest.mark.parametrize(
    ("revision", "escaped"), [("v1.0", "v1.0"), ("refs/pr/3", "refs%2Fpr%2F3")]
  )
  def test_revision(self, hub, revision, escaped):
    hub.files[f"/google/vit/resolve/{escaped}/w.npz"] = Served(body=BODY)
    path = local_weights(f"hf://google/vit@{revision}/w.npz")
    assert path.read_bytes() == BODY

  def test_token_does_not_follow_to_another_host(self, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    with running() as store:
      store.files["/blob"] = Served(body=BODY)
      location = {"Location": store.url + "/blob"}
      hub.files[self.FILE] = Served(body=b"", statuses=[302], headers=location)
      path = local_weights("hf://google/vit/sub/w.safetensors")
      assert path.read_bytes() == BODY
      assert "Authorization" in hub.asked[0].headers
      assert "Authorization" not in store.asked[0].headers

  def test_netrc_does_not_replace_the_token(self, hub, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password p\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    hub.files[self.FILE] = Served(body=BODY)
    local_weights("hf://google/vit/sub/w.safetensors")
    assert hub.asked[0].headers["Authorization"] == "Bearer hf_sesame"

  def test_denied_file_names_itself_and_the_fix(self, hub):
    hub.files[self.FILE] = Served(body=b"", statuses=[401])
    said = r"^hf://google/vit/sub/w.safetensors: HTTP 401; .*hf auth login"
    with refused(said):
      local_weights("hf://google/vit/sub/w.safetensors")

  def test_file_in_the_hubs_own_cache_is_used(self, hub, monkeypatch, tmp_path):
    commit = "a" * 40
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repo = tmp_path / "hub" / "models--google--vit"
    held = repo / "snapshots" / commit / "sub" / "w.safetensors"
    held.parent.mkdir(parents=True)
    held.write_bytes(BODY)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    hub.files[self.FILE] = newer = Served(body=OTHER)
    location = "hf://google/vit/sub/w.safetensors"
    assert local_weights(location) == held
    assert local_weights(location, newer.sha256).read_bytes() == OTHER
    assert held.read_bytes() == BODY

  @pytest.mark.parametrize(
    "place", ["", "w.npz", "a/b", "a/b@v1", "buckets/a/b/w.npz", "a//w.npz"]
  )
  def test_name_is_checked(self, place):
    with refused("must be hf://OWNER/REPO"):
      local_weights(f"hf://{place}")
