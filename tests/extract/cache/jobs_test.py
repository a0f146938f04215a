"""Who owns a directory: jobs that resume, meet, are killed, sleep or wake."""

import concurrent.futures
import contextlib
import dataclasses
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.extract.cache.write import JOB_FILE, CacheJob, begin, finish
from tests.extract.cache.caches import (
  digest,
  make_info,
  put,
  refused,
  run_job,
)

INFO = make_info(40)
JOB = CacheJob(info=INFO, more="listing")


def test_what_is_there_is_kept(tmp_path):
  out = str(tmp_path / "cache")
  assert begin(out, JOB)
  kept = put(out, JOB, 2)
  before = (tmp_path / "cache" / kept.file).stat()
  run_job(out, INFO, "listing")
  after = (tmp_path / "cache" / kept.file).stat()
  assert (after.st_ino, after.st_mtime_ns) == (
    before.st_ino,
    before.st_mtime_ns,
  )
  run_job(tmp_path / "whole", INFO, "listing")
  assert digest(out) == digest(tmp_path / "whole")
  assert JOB_FILE not in digest(out)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
  ("changes", "listing", "said"),
  [
    ({}, "one image more", "images of the source came, went or changed"),
    ({"split": "test"}, "listing", 'split is "train" there and "test" now'),
    ({"views": {"count": 2}}, "listing", "views is null there"),
    ({"unit": "user"}, "listing", 'unit is "example" there'),
  ],
)
def test_another_job_is_refused(tmp_path, finished, changes, listing, said):
  out = tmp_path / "cache"
  begin(str(out), JOB)
  if finished:
    run_job(out, INFO, "listing")
  before = digest(out)
  with refused("belongs to another job") as caught:
    run_job(out, dataclasses.replace(INFO, **changes), listing)
  assert said in str(caught.value)
  assert digest(out) == before
  if finished:
    run_job(out, INFO, "listing")  # left alone
    assert digest(out) == before


def test_other_files_are_left_alone(tmp_path):
  (tmp_path / "photo.png").write_text("mine")
  with refused(r"holds other files, as .*photo\.png"):
    begin(str(tmp_path), JOB)
  (tmp_path / "photo.png").rename(tmp_path / JOB_FILE)
  with refused("is damaged"):
    begin(str(tmp_path), JOB)


def test_a_shard_that_went_missing_is_noticed(tmp_path):
  out = str(tmp_path)
  begin(out, JOB)
  shards = [put(out, JOB, i) for i in range(5)]
  (tmp_path / shards[3].file).unlink()
  with refused("1 of 5 shards are not there", RunError):
    finish(out, JOB, shards)
  assert INFO_FILE not in digest(out)
  (tmp_path / shards[3].file).write_bytes(b"short")
  with refused("1 of 5 shards are not there", RunError):
    finish(out, JOB, shards)


def test_two_jobs_at_once_share_the_work(tmp_path):
  out, made = str(tmp_path / "cache"), []
  assert begin(out, JOB)
  assert begin(out, JOB)

  def work(_):
    shards = []
    for i in range(5):
      there = storage.read(storage.store_at(out), INFO.shard_name(i)) is None
      made.append(there)
      shards.append(put(out, JOB, i))
    return finish(out, JOB, shards)

  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    caches = list(pool.map(work, range(4)))
  assert len({cache.private_digest for cache in caches}) == 1
  run_job(tmp_path / "whole", INFO, "listing")
  assert digest(out) == digest(tmp_path / "whole")


OTHER = CacheJob(info=INFO, more="another listing")
_ORPHAN = """
import os, signal, sys
from tests.extract.cache import caches
out, listing, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
job = caches.CacheJob(info=caches.make_info(40), more=listing)
encode = caches.encoded
def slept(*of):
  made = encode(*of)
  print("encoded", flush=True)
  os.kill(os.getpid(), signal.SIGSTOP)
  return made
caches.encoded = slept
try:
  caches.put(out, job, 1, seed)
except RuntimeError as error:
  sys.exit(str(error))
"""


@contextlib.contextmanager
def sleeper(out, listing, seed=1) -> Iterator[subprocess.Popen]:
  """A worker that is stopped when it has a shard in its hands."""
  words = [sys.executable, "-c", _ORPHAN, str(out), listing, str(seed)]
  worker = subprocess.Popen(
    words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  with worker:
    try:
      assert worker.stdout is not None
      assert worker.stdout.readline() == "encoded\n"
      state = pathlib.Path(f"/proc/{worker.pid}/stat")
      while " T " not in state.read_text():  # It sends itself the signal.
        time.sleep(0.01)
      yield worker
    finally:
      worker.kill()


def woken(worker: subprocess.Popen) -> tuple[int, str]:
  worker.send_signal(signal.SIGCONT)
  _, err = worker.communicate(timeout=60)
  return worker.returncode, err


def check_orphans(out: str, empty) -> None:
  """A worker of a job wakes after another began, in the same place."""
  assert begin(out, JOB)
  with sleeper(out, "listing") as late, sleeper(out, "listing") as early:
    _check_orphans(out, empty, late, early)


def _check_orphans(out, empty, late, early) -> None:
  empty()
  assert begin(out, OTHER)
  put(out, OTHER, 0)
  # It puts its shard: whoever comes to it refuses it, and nothing counts it.
  assert woken(early)[0] == 0
  with refused("is of another job, which may still run", RunError):
    put(out, OTHER, 1)
  assert INFO_FILE not in storage.sizes(storage.store_at(out))
  empty()
  cache = run_job(out, INFO, "another listing")
  status, err = woken(late)
  assert status == 1
  assert "is of another job" in err
  assert len(err.splitlines()) == 1
  assert check_cache(out) == []
  assert open_cache(out).private_digest == cache.private_digest
  # Its launcher, too, if it wakes: it neither finishes nor changes the other's.
  mine = [dataclasses.replace(s, sha256="0" * 64) for s in cache.info.shards]
  with refused("was taken over by another job", RunError):
    finish(out, JOB, mine)
  assert open_cache(out).private_digest == cache.private_digest


def test_an_orphan_of_another_job_is_never_counted(tmp_path):
  out = tmp_path / "cache"
  check_orphans(str(out), lambda: shutil.rmtree(out))


def test_two_jobs_cannot_both_begin(tmp_path):
  jobs = [dataclasses.replace(JOB, more=str(i)) for i in range(8)]

  def start(job):
    try:
      return begin(str(tmp_path / "cache"), job)
    except ValueError as error:
      return "another job" in str(error)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert all(pool.map(start, jobs))
  there = (tmp_path / "cache" / JOB_FILE).read_bytes()
  assert sum(job.digest.encode() in there for job in jobs) == 1


# Kills a job before or after a step that changes the disk, in a process of its
# own, then runs it again.
_KILLS = """
import itertools, os, signal, sys
from oneshot_dp.extract import files
from tests.extract.cache.caches import *
info = make_info(40)

def run(out, last):
  calls = itertools.count()
  for name in ("link", "fsync", "unlink", "open"):
    def step(*args, call=getattr(os, name), **more):
      at = next(calls)
      if at == last:
        os.kill(os.getpid(), signal.SIGKILL)
      return call(*args, **more)
    setattr(os, name, step)
  run_job(out, info, "listing")
  return next(calls)

run_job(sys.argv[1] + "/warm", info, "listing")
killed = 0
for last in range(0, 10_000, 3):
  out = f"{sys.argv[1]}/{last}"
  pid = os.fork()
  if not pid:
    run(out, last)
    os._exit(0)
  _, status = os.waitpid(pid, 0)
  if not os.WIFSIGNALED(status):
    break
  killed += 1
  run_job(out, info, "listing")
print(killed)
"""


def test_killed_anywhere_and_run_again_gives_the_same_bytes(tmp_path):
  words = [sys.executable, "-c", _KILLS, str(tmp_path)]
  told = subprocess.run(words, capture_output=True, text=True, check=True)
  assert int(told.stdout) > 20
  whole = digest(tmp_path / "warm")
  for out in tmp_path.iterdir():
    assert digest(out) == whole, out.name
