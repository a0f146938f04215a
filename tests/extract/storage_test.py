"""Files on a disk and in stores that misbehave; the same calls for all."""

import collections
import contextlib
import datetime
import os
import pathlib
import shutil
import socket
import subprocess
import time

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import files, storage
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import open_cache
from tests.extract.cache.caches import (
  columns,
  digest,
  make_info,
  refused,
  run_job,
)
from tests.extract.cache.jobs_test import check_orphans
from tests.extract.object_server import (
  BUCKET,
  ObjectServer,
  environment,
  passed_on,
  running,
)

ROOT = pathlib.Path(__file__).parents[2]
_REAL = {
  "s3": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
  "gs": "github.com/fsouza/fake-gcs-server@v1.56.1",
}
FAULTS = ("reset", "cut", "lose", 500, "slow", 503, 429)


def built(scheme: str) -> pathlib.Path:
  """A real server, made once in build/go."""
  module = _REAL[scheme]
  folder = ROOT / "build" / "go"
  program = folder / module.rpartition("/")[2].partition("@")[0]
  if not program.is_file():
    if not shutil.which("go"):
      pytest.skip("Go, which builds the server, is not installed")
    made = subprocess.run(
      ["go", "install", module],
      env={**os.environ, "GOBIN": str(folder)},
      capture_output=True,
      text=True,
      check=False,
    )
    if made.returncode:
      pytest.skip(f"go install {module}: {made.stderr.strip()[-200:]}")
  return program


@contextlib.contextmanager
def real_server(scheme, folder):
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
  (folder / "objects" / BUCKET).mkdir(parents=True)
  keys = {"ROOT_ACCESS_KEY": "loopback", "ROOT_SECRET_KEY": "loopback-secret-0"}
  address = f"127.0.0.1:{port}"
  s3 = ["--quiet", "--keep-alive", "--port", address]
  gs = ["-backend", "filesystem", "-filesystem-root", folder / "objects"]
  gs += ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
  gs += ["-public-host", address]
  words = {"s3": [*s3, "posix", folder / "objects"], "gs": gs}[scheme]
  with (folder / "log").open("w") as log:
    process = subprocess.Popen(
      [built(scheme), *words], env=os.environ | keys, stdout=log, stderr=log
    )
  try:
    for _ in range(600):
      with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        break
      time.sleep(0.1)
    yield port
  finally:
    process.kill()
    process.wait()


@pytest.fixture
def place(request, tmp_path, monkeypatch):
  """A folder that is not there yet, and the server, if it is not a disk."""
  kind = request.param
  if kind == "disk":
    yield str(tmp_path / "store"), None
    return
  scheme = kind.removeprefix("real-")
  with contextlib.ExitStack() as stack:
    ask = None
    if kind != scheme:
      port = stack.enter_context(real_server(scheme, tmp_path))
      ask = passed_on(scheme, port)
    server = stack.enter_context(running(ObjectServer(ask)))
    for name, value in environment(server.url, tmp_path).items():
      monkeypatch.setenv(name, value)
    storage._remote.cache_clear()
    yield f"{scheme}://{BUCKET}/some/cache", server
    server.fault = lambda number, method: None
    storage._remote.cache_clear()


_STORES = ["s3", "gs"] + [
  pytest.param(f"real-{s}", marks=pytest.mark.stores) for s in ("s3", "gs")
]
STORES = pytest.mark.parametrize("place", _STORES, indirect=True)
EVERYWHERE = pytest.mark.parametrize("place", ["disk", *_STORES], indirect=True)


@EVERYWHERE
def test_a_store_keeps_what_it_is_given(place):
  store = storage.store_at(place[0])
  assert storage.sizes(store) == {}
  assert storage.read(store, "a/b") is None
  assert storage.put_once(store, "a/b", b"one") == b"one"
  assert storage.put_once(store, "a/b", b"two") == b"one"
  assert storage.read(store, "a/b") == b"one"
  content = os.urandom(3 << 20)
  storage.put_once(store, "large", content)
  assert storage.sizes(store) == {"a/b": 3, "large": 3 << 20}
  assert storage.sizes(store, "a").keys() in ({"a/b"}, {"b"})
  size, version = storage.state(store, "large")
  assert (size, version) == storage.listed(store)["large"]
  assert storage.read_range(store, "large", 5, 7) == (content[5:12], version)
  with storage.local_copy(store, "large") as (path, file):
    assert pathlib.Path(path).read_bytes() == content == file.read()
  with storage.seekable(place[0], "large") as file:
    file.seek(-10, os.SEEK_END)
    assert file.read() == content[-10:]
    file.seek(1 << 20)
    assert file.read(5) == content[1 << 20 : (1 << 20) + 5]
  for missing in ("none", "a/none"):
    with pytest.raises(FileNotFoundError):
      storage.state(store, missing)
    with pytest.raises(FileNotFoundError), storage.local_copy(store, missing):
      pass
  with refused("large.* are too many|more than"):
    storage.read(store, "large", 100)
  storage.remove(store, ["a/b", "none", "large"])
  assert storage.sizes(store) == {}


def copied(url, to):
  store = storage.store_at(url)
  to.mkdir()
  for name in storage.sizes(store):
    (to / name).write_bytes(storage.read(store, name) or b"")
  return to


@STORES
def test_a_bad_network_makes_the_same_bytes_at_the_first_try(
  place, tmp_path, monkeypatch
):
  """One call in five is refused, reset, cut, lost or slow."""
  url, server = place
  asked, done = collections.Counter(), set()

  def fault(number, method):
    kind = "LIST" if "list-type" in server.seen[-1][1] else method
    asked[kind] += 1
    turn, which = asked[kind] % 5 == 2, asked[kind] // 5 % len(FAULTS)
    done.add((FAULTS[which] if turn else None, kind))
    return FAULTS[which] if turn else None

  server.fault = fault
  monkeypatch.setattr(storage, "_WAITS", (0.01,) * 8)
  soon = {"init_backoff": datetime.timedelta(milliseconds=5), "base": 2}
  soon["max_backoff"] = datetime.timedelta(milliseconds=100)
  monkeypatch.setitem(storage._RETRIES, "backoff", soon)
  storage._remote.cache_clear()
  info = make_info(120, 64, shard_rows=5)
  cache = run_job(url, info)
  local = run_job(tmp_path / "local", info)
  # Of these obstore itself does not try again.
  assert {("reset", "PUT"), ("cut", "GET")} <= done
  assert cache.private_digest == local.private_digest
  np.testing.assert_array_equal(
    columns(cache)["embedding"], columns(local)["embedding"]
  )
  assert check_cache(url) == []
  server.fault = lambda number, method: None
  assert digest(copied(url, tmp_path / "copy")) == digest(tmp_path / "local")


@STORES
def test_calls_of_a_job_and_of_a_reader(place, capsys):
  url, server = place
  info = make_info(160)  # 20 shards
  run_job(url, info)
  calls = server.calls()
  shards = [call for call in calls if ".array_record-" in call]
  lists = [call for call in calls if call.startswith("LIST")]
  assert len(shards) == 2 * 20  # one looks if it is there, one puts it
  assert len(lists) == 2  # of a new directory, and of the finished one
  others = len(calls) - len(shards) - len(lists)
  with capsys.disabled():
    print(f"\n{len(shards) / 20:g} calls a shard, {others + len(lists)} a job")
  assert others < 16
  list(open_cache(url).blocks())
  calls = server.calls()
  assert len(calls) == 1 + 20  # the metadata, each shard
  run_job(url, info)
  assert len(server.calls()) == 4  # metadata twice, one shard, the list


@STORES
@pytest.mark.parametrize(
  ("method", "s3", "gs"),
  [
    ("GET", "s3:GetObject", "storage.objects.get"),
    ("PUT", "s3:PutObject", "storage.objects.create"),
    ("DELETE", "s3:DeleteObject", "storage.objects.delete"),
    ("LIST", "s3:ListBucket", "storage.objects.list"),
  ],
)
def test_a_missing_permission_is_named(place, method, s3, gs):
  url, server = place
  seen = server.seen

  def fault(number, asked):
    listing = "list-type" in seen[-1][1]
    kind = {"POST": "DELETE"}.get(asked, asked)
    return 403 if method == ("LIST" if listing else kind) else None

  server.fault = fault
  with refused(s3 if url.startswith("s3") else gs) as caught:
    run_job(url, make_info())
  assert str(caught.value).startswith(url)
  assert "loopback-secret-0" not in str(caught.value)


@STORES
def test_a_store_that_stays_broken_is_one_line(place, monkeypatch):
  url, server = place
  cache = run_job(url, make_info())
  retries = storage._RETRIES | {"max_retries": 1}
  monkeypatch.setattr(storage, "_RETRIES", retries)
  monkeypatch.setattr(storage, "_WAITS", (0.01,))
  storage._remote.cache_clear()
  for fault in (500, "reset", "cut"):
    server.fault = lambda number, method, fault=fault: fault
    with refused(url, RunError):
      open_cache(url)
    with refused(url, RunError):
      list(cache.blocks())


@STORES
def test_no_such_bucket(place):
  url, server = place
  server.fault = lambda number, method: 404
  with refused("there is no such bucket"):
    run_job(url, make_info())


@STORES
def test_an_orphan_of_another_job_is_never_counted(place):
  url, _ = place
  store = storage.store_at(url)
  check_orphans(url, lambda: storage.remove(store, list(storage.sizes(store))))


@STORES
def test_a_shard_or_a_cache_that_is_not_there(place):
  url, _ = place
  cache = run_job(url, make_info())
  name = cache.info.shards[1].file
  storage.remove(storage.store_at(url), [name])
  with refused(f"{url}/{name} is not there"):
    list(cache.blocks())
  assert any(f"{name} is damaged, or not there" in p for p in check_cache(url))
  with refused("no such directory, or empty"):
    open_cache(f"{url}/other")
  assert INFO_FILE in storage.sizes(storage.store_at(url))


class TestDisk:
  def test_what_is_listed(self, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x").write_text("x")
    (tmp_path / "a" / "b" / "y").write_text("yy")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "x")
    (tmp_path / "gone").symlink_to(tmp_path / "none")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "twice").symlink_to(tmp_path / "a" / "b")
    os.mkfifo(tmp_path / "fifo")
    found = storage.sizes(storage.store_at(tmp_path))
    assert found.pop("twice/up/x") == 1
    assert found == {
      "a/b/up": -1,
      "a/b/y": 2,
      "a/x": 1,
      "fifo": -1,
      "gone": -1,
      "link": 1,
      "twice/up/b": -1,
      "twice/y": 2,
    }

  @pytest.mark.parametrize("kind", ["fifo", "folder", "zero", "gone", "sparse"])
  def test_what_is_no_file_is_refused_at_once(self, tmp_path, kind):
    path = tmp_path / "file\x1b[1m"
    match kind:
      case "fifo":
        os.mkfifo(path)
      case "folder":
        path.mkdir()
      case "zero":
        path.symlink_to("/dev/zero")
      case "sparse":
        with path.open("wb") as file:
          file.truncate(1 << 42)
    with refused("cannot be read") as caught:
      files.read_regular(path)
    assert "\x1b" not in str(caught.value)
    if kind == "fifo":
      return
    if kind != "sparse":
      with pytest.raises(InputError):
        files.open_regular(path)

  def test_written_once(self, tmp_path):
    path = tmp_path / "new" / "file"
    assert files.write_once(path, b"one")
    assert not files.write_once(path, b"two")
    assert path.read_bytes() == b"one"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["file"]

  def test_a_file_system_without_nameless_files(self, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE")
    assert files.write_once(tmp_path / "file", b"one")
    assert not files.write_once(tmp_path / "file", b"two")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]

  def test_a_full_disk_is_one_line_and_leaves_nothing(
    self, tmp_path, monkeypatch
  ):
    def full(handle):
      raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused("cannot be written: No space left", RunError):
      files.write_once(tmp_path / "file", b"one")
    assert list(tmp_path.iterdir()) == []

  def test_a_directory_that_may_not_be_written(self, tmp_path):
    (tmp_path / "file").write_text("x")
    with refused("cannot be written", RunError):
      storage.put_once(storage.store_at(tmp_path / "file"), "a", b"x")
