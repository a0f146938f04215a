"""Who owns a directory: jobs that resume, meet, or are killed."""

import concurrent.futures
import dataclasses
import multiprocessing
import os
import signal

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.shard_file import CacheJob
from oneshot_dp.extract.cache.write import (
  JOB_FILE,
  finalize,
  start_or_resume,
  write_cache,
)
from tests.extract.cache.caches import (
  columns,
  digest,
  imported,
  make_info,
  make_rows,
  part,
  put,
  run_job,
  run_until,
)
from tests.extract.refusals import refused

INFO = make_info(40)
JOB = CacheJob(info=INFO, extra_identity="listing")


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
  ("changes", "listing", "said"),
  [
    ({}, "one image more", "images of the source came, went or changed"),
    ({"split": "test"}, "listing", 'split is "train" there and "test" now'),
    ({"views": {"count": 2}}, "listing", "views is null there"),
    ({"backbone": {"name": "vit_ti16"}}, "listing", 'backbone.layer is "cls"'),
    (
      {"num_classes_source": "labels (treated as public)"},
      "listing",
      'where the number of classes is known from is "class_names" there',
    ),
  ],
)
def test_another_job_is_refused(tmp_path, finished, changes, listing, said):
  out = tmp_path / "cache"
  start_or_resume(str(out), JOB)
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


def test_other_files_and_missing_shards_are_noticed(tmp_path):
  out = str(tmp_path)
  photo = tmp_path / "photo.png"
  photo.write_text("mine")
  with refused(r"holds other files, such as .*photo\.png"):
    start_or_resume(out, JOB)
  job = photo.rename(tmp_path / JOB_FILE)
  with refused("is damaged"):
    start_or_resume(out, JOB)
  job.unlink()
  start_or_resume(out, JOB)
  shards = [put(out, JOB, i) for i in range(5)]
  path = tmp_path / shards[3].file
  for spoil in (path.unlink, lambda: path.write_bytes(b"short")):
    spoil()
    with refused("1 of 5 shards do not exist", RunError):
      finalize(out, JOB, shards)
    assert INFO_FILE not in digest(out)


def test_a_pipe_in_the_place_of_a_shard_is_the_fault_of_the_request(tmp_path):
  start_or_resume(str(tmp_path), JOB)
  os.mkfifo(tmp_path / INFO.shard_name(0))

  with refused("cannot be read: it is not a regular file"):
    put(str(tmp_path), JOB, 0)


def test_two_jobs_at_once_share_the_work(tmp_path):
  out = str(tmp_path / "cache")
  assert start_or_resume(out, JOB)
  assert start_or_resume(out, JOB)

  def work(_):
    return finalize(out, JOB, [put(out, JOB, i) for i in range(5)])

  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    caches = list(pool.map(work, range(4)))
  assert len({cache.private_digest for cache in caches}) == 1
  run_job(tmp_path / "whole", INFO, "listing")
  assert digest(out) == digest(tmp_path / "whole")


def test_a_file_that_goes_while_it_is_listed(tmp_path, monkeypatch):
  """As `job.json` does, when the other of two jobs has finished."""
  for name in ("a", "b"):
    (tmp_path / name).touch()
  entries = list(os.scandir(tmp_path))
  monkeypatch.setattr(os, "scandir", lambda _: entries)
  (tmp_path / "a").unlink()
  assert storage.list_files(storage.store_at(tmp_path)).keys() == {"b"}


def test_two_jobs_cannot_both_begin(tmp_path):
  jobs = [dataclasses.replace(JOB, extra_identity=str(i)) for i in range(8)]

  def start(job):
    try:
      return start_or_resume(str(tmp_path), job)
    except InputError as error:
      return "another job" not in str(error)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    begun = list(pool.map(start, jobs))
  assert sorted(begun) == [False] * 7 + [True]
  assert jobs[begun.index(True)].digest in (tmp_path / JOB_FILE).read_text()


@pytest.mark.long
def test_killed_anywhere_and_run_again_gives_the_same_bytes(tmp_path):
  forks = multiprocessing.get_context("forkserver")
  forks.set_forkserver_preload(
    [run_until.__module__, "tensorflow_datasets.core.dataset_info"]
  )
  for last in range(0, 10_000, 2):
    out = str(tmp_path / str(last))
    process = forks.Process(target=run_until, args=(out, last))
    process.start()
    process.join()
    if process.exitcode == 0:
      break
    assert process.exitcode == -signal.SIGKILL
    run_job(out, make_info(), "listing")
  assert last > 40
  assert len({str(digest(out)) for out in tmp_path.iterdir()}) == 1


def test_an_import_that_is_refused_leaves_what_is_anothers(tmp_path):
  info = make_info(50, 9)
  own, other = (imported(make_rows(info, seed)) for seed in (0, 1))

  def slow():
    """The other has begun when this one's rows come."""
    yield part(own, range(20))
    with refused("holds other rows than these"):
      write_cache(tmp_path / "cache", info, [other])
    yield part(own, range(20, 50))

  cache = write_cache(tmp_path / "cache", info, slow())
  np.testing.assert_array_equal(columns(cache)["label"], own["label"])
  assert check_cache(tmp_path / "cache") == []
