"""Files on a disk and in stores that misbehave; the same calls for all."""

import collections
import contextlib
import datetime
import hashlib
import multiprocessing
import os
import signal
import time

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import object_store, storage
from oneshot_dp.extract.cache import shard_file
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import check_cache, open_cache
from oneshot_dp.extract.cache.write import finalize, start_or_resume
from tests.extract.cache.caches import (
  digest,
  make_info,
  put,
  put_late,
  run_job,
)
from tests.extract.object_server import BUCKET, real_server, served
from tests.extract.refusals import refused

FAULTS = ("reset", "cut", "lose", 500, 503, 429)


@pytest.fixture
def place(request, tmp_path, monkeypatch):
  """A folder that is not there yet, and the server, if it is not a disk."""
  kind = request.param
  if kind == "disk":
    yield str(tmp_path / "store"), None
    return
  scheme = kind.removeprefix("real-")
  with contextlib.ExitStack() as stack:
    real = kind != scheme
    ask = stack.enter_context(real_server(scheme, tmp_path)) if real else None
    server = stack.enter_context(served(monkeypatch, tmp_path, ask))
    yield f"{scheme}://{BUCKET}/some/cache", server


_STORES = ["s3", "gs"] + [
  pytest.param(f"real-{s}", marks=pytest.mark.stores) for s in ("s3", "gs")
]
STORES = pytest.mark.parametrize("place", _STORES, indirect=True)
EVERYWHERE = pytest.mark.parametrize("place", ["disk", *_STORES], indirect=True)


@EVERYWHERE
def test_a_store_keeps_what_it_is_given(place):
  store = storage.store_at(place[0])
  assert storage.list_files(store) == {}
  assert storage.read(store, "a/b") is None
  assert storage.write_if_absent(store, "a/b", b"one") == b"one"
  assert storage.write_if_absent(store, "a/b", b"two") == b"one"
  assert storage.read(store, "a/b") == b"one"
  content = os.urandom(3 << 20)
  storage.write_if_absent(store, "large", content)
  assert [*(there := storage.list_files(store))] == ["a/b", "large"]
  size, version = storage.state(store, "large")
  assert (size, version) == there["large"] == (3 << 20, version)
  assert storage.read_range(store, "large", 5, 7) == (content[5:12], version)
  with storage.seekable(store, "large", size) as file:
    file.seek(-10, os.SEEK_END)
    assert file.read() == content[-10:]
    file.seek(1 << 20)
    assert file.read(5) == content[1 << 20 : (1 << 20) + 5]
  for missing in ("none", "a/none"):
    with pytest.raises(FileNotFoundError):
      storage.state(store, missing)
  with refused("large.* are too many|more than"):
    storage.read(store, "large", 100)
  storage.remove(store, ["a/b", "none", "large"])
  assert storage.list_files(store) == {}


@EVERYWHERE
def test_overwrite_replaces_a_file_or_makes_one(place):
  store = storage.store_at(place[0])

  storage.overwrite(store, "a/b", b"one")
  storage.overwrite(store, "a/b", b"two")

  assert storage.read(store, "a/b") == b"two"
  assert list(storage.list_files(store)) == ["a/b"]


def test_read_range_of_a_disk_that_fails_names_the_file():
  # The first page of a process is mapped to nothing: to read it is an I/O
  # error, as of a broken disk.
  with refused("/proc/self/mem: cannot read it: Input/output error"):
    storage.read_range(storage.store_at("/proc/self"), "mem", 0, 8)


@pytest.mark.parametrize("place", ["s3", "gs"], indirect=True)
def test_listing_that_was_cut_goes_on_after_the_last_name(place, monkeypatch):
  url, server = place
  monkeypatch.setattr(storage, "_WAITS", (0.01,) * 4)
  monkeypatch.setattr(object_store, "_LISTED_AT_ONCE", 2)
  monkeypatch.setitem(object_store.RETRIES, "max_retries", 0)
  storage._remote.cache_clear()
  server.page_names = 2
  names = [f"{i}.png" for i in range(9)]
  server.objects = {f"some/cache/{name}": b"x" for name in names}
  pages = []

  def fault(kind):
    pages.append(kind)
    return 500 if len(pages) % 2 == 0 else None

  server.fault = fault
  assert list(storage.list_files(storage.store_at(url))) == names
  after = [call for call in server.calls() if "start-after" in call]
  assert "start-after=some/cache/1.png" in after[0]
  assert len(pages) < 12


ODD_NAMES = ("a//2.png", "a/./2.png", "b/x\ny.png")


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize("page_names", [1000, 2])
def test_listing_goes_on_past_odd_names_and_names_them(
  place, page_names, capfd
):
  url, server = place
  server.page_names = page_names
  names = ["a/0.png", "a/1.png", "b/3.png", "c.png"]
  for name in [*names, *ODD_NAMES]:
    server.objects[f"some/cache/{name}"] = name.encode()

  listed = storage.list_files(storage.store_at(url))

  assert list(listed) == names
  assert listed["a/1.png"] == storage.state(storage.store_at(url), "a/1.png")
  said = capfd.readouterr().err
  assert said.count("passed over, for its name") == len(ODD_NAMES)
  assert "a//2.png" in said


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_listing_past_an_odd_name_that_failed_loses_nothing(
  place, monkeypatch, capfd
):
  url, server = place
  monkeypatch.setattr(storage, "_WAITS", (0.01,) * 4)
  monkeypatch.setitem(object_store.RETRIES, "max_retries", 0)
  storage._remote.cache_clear()
  names = [f"cat/{i}.png" for i in range(6)]
  for name in [*names, "cat/9//x.png"]:
    server.objects[f"some/cache/{name}"] = b"x"
  heads = []

  def fault(kind):
    heads.append(kind == "HEAD")
    return 500 if sum(heads) == 4 and heads[-1] else None

  server.fault = fault

  listed = storage.list_files(storage.store_at(url))

  assert sum(heads) > len(names)  # some were asked for again
  assert list(listed) == names
  assert capfd.readouterr().err.count("passed over, for its name") == 1


@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_odd_name_in_gs_is_named(place):
  url, server = place
  server.objects["some/cache/a//2.png"] = b"x"

  with refused("a//2.png.*empty path segment; rename or remove it"):
    storage.list_files(storage.store_at(url))


@pytest.mark.slow
@STORES
def test_a_bad_network_makes_the_same_bytes_at_the_first_try(
  place, tmp_path, monkeypatch
):
  """One call in five is refused, reset, cut or lost."""
  url, server = place
  asked = collections.Counter()
  done = set()

  def fault(kind):
    asked[kind] += 1
    turn = asked[kind] % 5 == 2
    which = asked[kind] // 5 % len(FAULTS)
    done.add((FAULTS[which] if turn else None, kind))
    return FAULTS[which] if turn else None

  server.fault = fault
  monkeypatch.setattr(storage, "_WAITS", (0.01,) * 8)
  soon = {"init_backoff": datetime.timedelta(milliseconds=5), "base": 2}
  soon["max_backoff"] = datetime.timedelta(milliseconds=100)
  monkeypatch.setitem(object_store.RETRIES, "backoff", soon)
  storage._remote.cache_clear()
  info = make_info(120, 64, shard_rows=5)
  cache = run_job(url, info)
  local = run_job(tmp_path / "local", info)
  # Of these obstore itself does not try again.
  assert {("reset", "PUT"), ("cut", "GET")} <= done
  assert cache.private_digest == local.private_digest
  assert check_cache(url) == []
  store = storage.store_at(url)
  assert {
    name: hashlib.sha256(storage.read(store, name) or b"").hexdigest()
    for name in storage.list_files(store)
  } == digest(tmp_path / "local")


@STORES
def test_calls_of_a_job_and_of_a_reader(place):
  url, server = place
  info = make_info(64)  # 8 shards
  run_job(url, info)
  calls = server.calls()
  shards = [call for call in calls if ".array_record-" in call]
  lists = [call for call in calls if call.startswith("LIST")]
  assert len(shards) == 2 * 8  # one looks if it is there, one puts it
  assert len(lists) == 2  # of a new directory, and of the finished one
  assert len(calls) - len(shards) - len(lists) < 16
  list(open_cache(url).blocks())
  assert len(server.calls()) == 1 + 8  # the metadata, each shard
  run_job(url, info)
  assert len(server.calls()) == 5  # job, metadata twice, a shard, the list


PERMISSIONS = {
  ("GET",): ("s3:GetObject", "storage.objects.get"),
  ("PUT",): ("s3:PutObject", "storage.objects.create"),
  ("POST", "DELETE"): ("s3:DeleteObject", "storage.objects.delete"),
  ("LIST",): ("s3:ListBucket", "storage.objects.list"),
}


@pytest.mark.slow
@STORES
def test_what_a_store_refuses_is_one_line(place, monkeypatch):
  url, server = place
  for calls, (s3, gs) in PERMISSIONS.items():
    said = s3 if url.startswith("s3") else gs
    server.fault = lambda kind, calls=calls: 403 if kind in calls else None
    with refused(f"^{url}.*{said}") as caught:
      run_job(url, make_info())
    assert "loopback-secret-0" not in str(caught.value)
  server.fault = lambda kind: None
  cache = run_job(url, make_info())
  monkeypatch.setitem(object_store.RETRIES, "max_retries", 0)
  monkeypatch.setattr(storage, "_WAITS", (0.01,))
  storage._remote.cache_clear()
  for fault in (500, "reset", "cut"):
    server.fault = lambda kind, fault=fault: fault
    for read in (lambda: open_cache(url), lambda: list(cache.blocks())):
      with refused(url, RunError):
        read()
  server.fault = lambda kind: 404
  with refused("there is no such bucket"):
    run_job(url, make_info())


CREDENTIAL_FAULTS = [
  (403, "SignatureDoesNotMatch", "the secret key is wrong"),
  (403, "InvalidAccessKeyId", "does not know this access key"),
  (400, "ExpiredToken", "the session token has expired"),
  (301, "PermanentRedirect", "in another region; set AWS_REGION"),
  (400, "AuthorizationHeaderMalformed", "in another region"),
  (403, "AccessDenied", "lack the permission s3:(Get|List|Put)"),
  (404, "NoSuchBucket", "there is no such bucket"),
  (401, "Unauthorized", "these credentials are not valid"),
]


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize(("status", "code", "message"), CREDENTIAL_FAULTS)
def test_credentials_each_fault_has_its_own_line_and_no_second_try(
  place, status, code, message
):
  url, server = place
  server.fault = lambda kind: (status, code)
  store = storage.store_at(url)
  for call in (
    lambda: storage.read(store, "x"),
    lambda: storage.list_files(store),
    lambda: storage.write_if_absent(store, "x", b"x"),
  ):
    with refused(f"^s3://.*{message}"):
      call()
  assert len(server.calls()) == 3


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_store_error_does_not_repeat_the_password_of_an_endpoint(
  place, monkeypatch, request
):
  url, server = place
  with_password = server.url.replace("//", "//somebody:secret@")
  monkeypatch.setenv("AWS_ENDPOINT_URL_S3", with_password)
  monkeypatch.setattr(storage, "_WAITS", (0.01,))
  storage._remote.cache_clear()
  request.addfinalizer(storage._remote.cache_clear)
  server.fault = lambda kind: (400, "SomethingElse")

  with pytest.raises((InputError, RunError)) as raised:
    storage.read(storage.store_at(url), "x")

  assert "…@" in str(raised.value)
  assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["s3://key:secret@data/x", "gs://secret@data"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url):
  with pytest.raises(InputError, match="credentials come from") as raised:
    storage.store_at(url)
  assert "secret" not in str(raised.value)


def test_a_store_without_a_network_is_said_at_once(
  tmp_path, monkeypatch, request
):
  with served(monkeypatch, tmp_path) as server:
    url = server.url
  # Its port is closed now, and nobody has spoken to the store before.
  monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
  storage._remote.cache_clear()
  request.addfinalizer(storage._remote.cache_clear)
  begin = time.monotonic()
  with refused("cannot be reached .*Connection refused"):
    storage.read(storage.store_at(f"s3://{BUCKET}/a"), "x")
  assert time.monotonic() - begin < 2


@pytest.mark.slow
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_a_write_may_take_as_long_as_its_bytes_need(place, monkeypatch):
  url, server = place
  store = storage.store_at(url)
  storage.list_files(store)
  monkeypatch.setattr(object_store, "_WRITE_SECONDS", 1)
  monkeypatch.setattr(object_store, "_SLOWEST_BYTES_PER_SECOND", 100_000)
  server.calls()
  server.fault = lambda kind: "slow"  # 2 s
  data = bytes(300_000)
  assert storage.write_if_absent(store, "x", data) == data
  assert [call.split()[0] for call in server.calls()] == ["PUT"]


@pytest.mark.slow
@EVERYWHERE
def test_an_orphan_of_another_job_is_never_counted(
  place, tmp_path, capfd, request
):
  """A worker of a job wakes after another began, in the same place."""
  out, _ = place
  store = storage.store_at(out)
  info = make_info(40)
  job = shard_file.CacheJob(info=info, extra_identity="listing")
  other = shard_file.CacheJob(info=info, extra_identity="other")
  assert start_or_resume(out, job)
  spawn = multiprocessing.get_context("spawn")
  late = [spawn.Process(target=put_late, args=(out, job, i)) for i in (1, 2)]
  for worker in late:
    worker.start()
    request.addfinalizer(worker.kill)
    assert worker.pid
    _, status = os.waitpid(worker.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)

  def wakes(worker):
    os.kill(worker.pid, signal.SIGCONT)
    worker.join()
    return worker.exitcode

  storage.remove(store, list(storage.list_files(store)))
  assert start_or_resume(out, other)
  put(out, other, 0)
  assert wakes(late[0]) == 0
  # Whoever comes to it refuses it, and nothing counts it.
  with refused("belongs to another job, which may still run", RunError):
    put(out, other, 1)
  assert INFO_FILE not in storage.list_files(store)
  storage.remove(store, list(storage.list_files(store)))
  cache = run_job(out, info, "other")
  assert wakes(late[1]) == 1
  assert "belongs to another job" in capfd.readouterr().err
  assert check_cache(out) == []
  # Its launcher, too, if it wakes: it neither finishes nor changes the other's.
  own = run_job(tmp_path / "own", info, "listing").info.shards
  with refused("do not exist|taken over by another job", RunError):
    finalize(out, job, own)
  assert open_cache(out).private_digest == cache.private_digest
