"""Files on a disk and in stores: the same calls for all."""

import multiprocessing
import os
import signal

import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract import object_store, storage
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.extract.cache.shard_file import CacheJob
from oneshot_dp.extract.cache.write import finalize, start_or_resume
from tests.extract.cache.caches import make_info, put, put_late, run_job
from tests.extract.refusals import refused
from tests.extract.stores import EVERYWHERE, STORE_KINDS, open_place

# Each has a server of its own.
pytestmark = pytest.mark.slow


@pytest.fixture
def store(place):
  return storage.store_at(place.url)


# Reading and writing.


@EVERYWHERE
def test_list_files_of_an_empty_store_is_empty(store):
  assert storage.list_files(store) == {}


@EVERYWHERE
def test_read_of_a_missing_file_is_none(store):
  assert storage.read(store, "a/b") is None


@EVERYWHERE
def test_write_if_absent_keeps_and_returns_what_was_written_first(store):
  assert storage.write_if_absent(store, "a/b", b"one") == b"one"
  assert storage.write_if_absent(store, "a/b", b"two") == b"one"

  assert storage.read(store, "a/b") == b"one"


@EVERYWHERE
def test_list_files_is_sorted_by_name_with_the_state_of_each(store):
  for name, content in (("large", bytes(1000)), ("a/b", b"one")):
    storage.write_if_absent(store, name, content)

  listed = storage.list_files(store)

  assert list(listed) == ["a/b", "large"]
  assert listed["large"] == storage.state(store, "large")
  assert listed["large"][0] == 1000


@pytest.fixture
def large(store) -> bytes:
  """The content of the file `large`, of more than a read-ahead."""
  content = os.urandom(3 << 20)
  storage.write_if_absent(store, "large", content)
  return content


@EVERYWHERE
def test_read_range_returns_its_bytes_and_the_version(store, large):
  _, version = storage.state(store, "large")

  assert storage.read_range(store, "large", 5, 7) == (large[5:12], version)


@EVERYWHERE
def test_seekable_file_is_read_from_its_end_and_from_its_middle(store, large):
  with storage.seekable(store, "large", len(large)) as file:
    file.seek(-10, os.SEEK_END)
    assert file.read() == large[-10:]
    file.seek(1 << 20)
    assert file.read(5) == large[1 << 20 : (1 << 20) + 5]


@EVERYWHERE
def test_read_of_more_bytes_than_are_allowed_is_refused(store):
  storage.write_if_absent(store, "file", bytes(101))

  with refused("file.* are too many|more than"):
    storage.read(store, "file", 100)


@EVERYWHERE
@pytest.mark.parametrize("missing", ["none", "a/none"])
def test_state_of_a_missing_file_is_an_error(store, missing):
  storage.write_if_absent(store, "a/b", b"one")

  with pytest.raises(FileNotFoundError):
    storage.state(store, missing)


@EVERYWHERE
def test_remove_takes_away_files_and_passes_over_what_does_not_exist(store):
  for name in ("a/b", "c"):
    storage.write_if_absent(store, name, b"one")

  storage.remove(store, ["a/b", "none", "c"])

  assert storage.list_files(store) == {}


@EVERYWHERE
def test_overwrite_replaces_a_file_or_makes_one(store):
  storage.overwrite(store, "a/b", b"one")
  storage.overwrite(store, "a/b", b"two")

  assert storage.read(store, "a/b") == b"two"
  assert list(storage.list_files(store)) == ["a/b"]


def test_read_range_of_a_disk_that_fails_names_the_file():
  # The first page of a process is mapped to nothing: to read it is an I/O
  # error, as of a broken disk.
  with refused("/proc/self/mem: cannot read it: Input/output error"):
    storage.read_range(storage.store_at("/proc/self"), "mem", 0, 8)


# Listing.


@pytest.mark.parametrize("place", ["s3", "gs"], indirect=True)
def test_listing_that_was_cut_goes_on_after_the_last_name(
  place, no_waits, monkeypatch
):
  monkeypatch.setattr(object_store, "_LISTED_AT_ONCE", 2)
  server = place.server
  server.page_names = 2
  names = [f"{i}.png" for i in range(9)]
  for name in names:
    server.objects[f"some/cache/{name}"] = b"x"
  pages = []

  def fail_every_second_page(kind):
    pages.append(kind)
    if len(pages) % 2 == 0:
      return 500
    return None

  server.fault = fail_every_second_page

  assert list(storage.list_files(storage.store_at(place.url))) == names
  after = [call for call in server.calls() if "start-after" in call]
  assert "start-after=some/cache/1.png" in after[0]
  assert len(pages) < 12


ODD_NAMES = ("a//2.png", "a/./2.png", "b/x\ny.png")


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize("page_names", [1000, 2])
def test_listing_goes_on_past_odd_names_and_names_them(
  place, store, page_names, capfd
):
  place.server.page_names = page_names
  names = ["a/0.png", "a/1.png", "b/3.png", "c.png"]
  for name in [*names, *ODD_NAMES]:
    place.server.objects[f"some/cache/{name}"] = name.encode()

  listed = storage.list_files(store)

  assert list(listed) == names
  assert listed["a/1.png"] == storage.state(store, "a/1.png")
  stderr = capfd.readouterr().err
  assert stderr.count("passed over, for its name") == len(ODD_NAMES)
  assert "a//2.png" in stderr


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_listing_past_an_odd_name_that_failed_loses_nothing(
  place, no_waits, capfd
):
  names = [f"cat/{i}.png" for i in range(6)]
  for name in [*names, "cat/9//x.png"]:
    place.server.objects[f"some/cache/{name}"] = b"x"
  heads = []

  def fail_the_fourth_head(kind):
    if kind != "HEAD":
      return None
    heads.append(kind)
    if len(heads) == 4:
      return 500
    return None

  place.server.fault = fail_the_fourth_head

  listed = storage.list_files(storage.store_at(place.url))

  assert len(heads) > len(names)  # some were asked for again
  assert list(listed) == names
  assert capfd.readouterr().err.count("passed over, for its name") == 1


@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_listing_of_gs_with_an_odd_name_is_refused_with_the_name(place, store):
  place.server.objects["some/cache/a//2.png"] = b"x"

  with refused("a//2.png.*empty path segment; rename or remove it"):
    storage.list_files(store)


# How often a job and a reader call a store.


@pytest.fixture(scope="module", params=STORE_KINDS)
def calls_of_cache(request, tmp_path_factory, ask_real):
  """Calls of a job of 8 shards, of a reader, and of the job once more."""
  info = make_info(64)
  folder = tmp_path_factory.mktemp("calls")
  with (
    pytest.MonkeyPatch.context() as patch,
    open_place(request.param, folder, ask_real, patch) as place,
  ):
    assert place.server is not None
    run_job(place.url, info)
    job = place.server.calls()
    list(open_cache(place.url).blocks())
    reader = place.server.calls()
    run_job(place.url, info)
    return {"job": job, "reader": reader, "again": place.server.calls()}


def test_job_looks_for_each_shard_once_and_puts_it_once(calls_of_cache):
  shards = [call for call in calls_of_cache["job"] if ".array_record-" in call]

  assert len(shards) == 2 * 8


def test_job_lists_a_new_directory_and_the_finished_one(calls_of_cache):
  lists = [call for call in calls_of_cache["job"] if call.startswith("LIST")]

  assert len(lists) == 2


def test_job_makes_few_other_calls(calls_of_cache):
  assert len(calls_of_cache["job"]) - 2 * 8 - 2 < 16


def test_reader_reads_the_metadata_and_each_shard_once(calls_of_cache):
  assert len(calls_of_cache["reader"]) == 1 + 8


def test_finished_job_is_recognized_by_five_calls(calls_of_cache):
  """Of the job, the metadata twice, a shard, and the list."""
  assert len(calls_of_cache["again"]) == 5


# A worker that wakes after another job began in the same place.


@pytest.fixture
def job() -> CacheJob:
  return CacheJob(info=make_info(40), extra_identity="listing")


@pytest.fixture
def other_job() -> CacheJob:
  return CacheJob(info=make_info(40), extra_identity="other")


@pytest.fixture
def start_sleeping_worker(place, store, job):
  """Returns a function that starts a worker, and empties the place again.

  The worker stopped before it put a shard. It is to wake when another job has
  begun there. (What it prints is captured where it is started.)
  """
  workers = []

  def start():
    assert start_or_resume(place.url, job)
    spawn = multiprocessing.get_context("spawn")
    worker = spawn.Process(target=put_late, args=(place.url, job, 1))
    worker.start()
    workers.append(worker)
    assert worker.pid
    _, status = os.waitpid(worker.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    storage.remove(store, list(storage.list_files(store)))
    return worker

  yield start
  for worker in workers:
    worker.kill()


def wake(worker) -> int:
  """Lets a worker go on; returns its exit status."""
  os.kill(worker.pid, signal.SIGCONT)
  worker.join()
  return worker.exitcode


@EVERYWHERE
def test_shard_of_another_jobs_worker_is_refused_and_never_counted(
  place, store, other_job, start_sleeping_worker
):
  worker = start_sleeping_worker()
  assert start_or_resume(place.url, other_job)
  put(place.url, other_job, 0)

  assert wake(worker) == 0

  with refused("belongs to another job, which may still run", RunError):
    put(place.url, other_job, 1)
  assert INFO_FILE not in storage.list_files(store)


@EVERYWHERE
def test_worker_that_wakes_in_the_cache_of_another_job_fails_and_harms_nothing(
  place, other_job, start_sleeping_worker, capfd
):
  worker = start_sleeping_worker()
  run_job(place.url, other_job.info, "other")

  assert wake(worker) == 1

  assert "belongs to another job" in capfd.readouterr().err
  assert check_cache(place.url) == []


@EVERYWHERE
def test_finalize_does_not_change_the_cache_of_another_job(
  place, tmp_path, job
):
  own_shards = run_job(tmp_path / "own", job.info, "listing").info.shards
  cache = run_job(place.url, job.info, "other")

  with refused("do not exist|taken over by another job", RunError):
    finalize(place.url, job, own_shards)

  assert open_cache(place.url).private_digest == cache.private_digest
