import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator

import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract.cache import shard_writer
from oneshot_dp.extract.cache import writer as cache_writer
from oneshot_dp.extract.cache.identity import CacheIdentity
from oneshot_dp.extract.cache.info import INCOMPLETE_DIR
from oneshot_dp.extract.job import job as job_module
from oneshot_dp.extract.job import listing, shard
from oneshot_dp.extract.job.job import make_identity
from oneshot_dp.extract.job.listing import (
  _FILE,
  keep_listing,
  listing_sha256,
  open_split,
)
from oneshot_dp.extract.job.shard import ExtractShard, shared_embedder
from oneshot_dp.extract.storage.local import LocalStore
from tests.extract.image_jobs import (
  array_job,
  folder_job,
  write_folder,
  write_npz,
)
from tests.extract.refusals import refused


@pytest.fixture
def job(tmp_path) -> ExtractConfig:
  return array_job(write_npz(tmp_path / "pets.npz", 70))


@pytest.fixture
def identity(job) -> CacheIdentity:
  return make_identity(job, open_split(job))


@pytest.fixture
def loads(monkeypatch) -> list[ExtractConfig]:
  """Every load of a backbone in this process."""
  seen = []
  load = shard.load_embedder

  def counting(config: ExtractConfig):
    seen.append(config)
    return load(config)

  monkeypatch.setattr(shard, "load_embedder", counting)
  monkeypatch.setattr(shard, "_EMBEDDERS", type(shard._EMBEDDERS)())
  return seen


def of_job(
  job: ExtractConfig, identity: CacheIdentity, out: pathlib.Path
) -> ExtractShard:
  source = open_split(job)
  return ExtractShard(job, identity, str(out), keep_listing(out, job, source))


@pytest.fixture
def worker(job, identity, tmp_path) -> Iterator[ExtractShard]:
  assert cache_writer.begin(tmp_path / "cache", identity)
  do_fn = of_job(job, identity, tmp_path / "cache")
  do_fn.setup()
  yield do_fn
  do_fn.teardown()


def test_a_runner_learns_nothing_of_the_listing(job, identity, tmp_path):
  """Graphs are shown; who guesses all names and sizes could try their hash."""
  of_jobs = [
    vars(of_job(job, identity, tmp_path / name)) for name in ("a", "a", "b")
  ]
  sha256 = listing_sha256(open_split(job))
  first, again, other = (found["_listing_sha256"] for found in of_jobs)
  assert first == again != other
  assert sha256 not in repr(of_jobs)
  content = (tmp_path / "a" / _FILE).read_bytes()
  assert hashlib.sha256(content).hexdigest() == first


def in_another_process(job: ExtractConfig, out: pathlib.Path, sha256: str):
  listing._OPENED.clear()
  return listing.shared_source(job, out, sha256)


def test_a_long_listing_is_kept_in_parts(tmp_path, monkeypatch):
  """And one that an earlier version kept whole is read, too."""
  files = write_folder(tmp_path / "photos", 40)
  job, out = folder_job(tmp_path / "photos"), tmp_path / "cache"
  opened = open_split(job)
  first = keep_listing(out, job, opened)
  assert len(opened.listing) > 4 * 100
  for size in (100, len(opened.listing) // 4, len(opened.listing)):
    monkeypatch.setattr(listing, "_PART_BYTES", size)
    assert keep_listing(out, job, opened) == first  # the whole one
    found = in_another_process(job, out, first)
    assert found.listing == opened.listing
    new = tmp_path / f"parts-{size}"
    sha256 = keep_listing(new, job, opened)
    parts = list((new / INCOMPLETE_DIR).glob("listing-*"))
    assert len(parts) == -(-len(opened.listing) // size) - 1
    assert in_another_process(job, new, sha256).listing == opened.listing
    assert keep_listing(new, job, opened) == sha256

    # A file that was mended: the parts of before are read no more.
    whole = files[-1].read_bytes()
    files[-1].write_bytes(whole + b"?")
    mended = open_split(job)
    again = keep_listing(new, job, mended)
    assert again != sha256
    assert in_another_process(job, new, again).listing == mended.listing
    with refused("the listing of the source was changed", RunError):
      in_another_process(job, new, sha256)
    files[-1].write_bytes(whole)

    if parts:
      for part in (new / INCOMPLETE_DIR).glob("listing-*-00001"):
        part.unlink()
      with refused("belongs to another job"):
        keep_listing(new, job, opened)


@pytest.mark.parametrize("last", range(4))
def test_a_listing_that_was_cut_is_written_again(tmp_path, monkeypatch, last):
  write_folder(tmp_path / "photos", 10)
  job, out = folder_job(tmp_path / "photos"), tmp_path / "cache"
  source = open_split(job)
  monkeypatch.setattr(listing, "_PART_BYTES", len(source.listing) // 3)
  puts, put = iter(range(100)), LocalStore.put

  def mortal(self, name, data, **how):
    if next(puts) == last:
      raise KeyboardInterrupt
    return put(self, name, data, **how)

  monkeypatch.setattr(LocalStore, "put", mortal)
  with pytest.raises(KeyboardInterrupt):
    keep_listing(out, job, source)
  sha256 = keep_listing(out, job, source)
  assert in_another_process(job, out, sha256).listing == source.listing


def test_splits_share_a_backbone_and_batch_sizes_do_not(job, loads):
  first = shared_embedder(job)
  other = dataclasses.replace(job, split="test", on_decode_error="skip")
  assert shared_embedder(other) is first
  assert len(loads) == 1
  assert first.batch_size == 16
  other = dataclasses.replace(job, batch_size=24)
  assert shared_embedder(other).batch_size == 24
  assert len(loads) == 2


def test_what_is_written_is_read_again(worker, identity, tmp_path, monkeypatch):
  """Nobody else does before the cache is used: a disk may have spoilt it."""
  whole = shard_writer.write_shard

  def spoils(out, *job):
    record = whole(out, *job)
    file = tmp_path / "cache" / record.file
    file.write_bytes(file.read_bytes()[:-1] + b"?")

  monkeypatch.setattr(shard_writer, "write_shard", spoils)
  with refused("shard 1 is not read as it was written", RunError):
    list(worker.process(1))


def test_the_launcher_reads_no_shard(job, tmp_path, monkeypatch):
  """Shards are compared in the graph, by workers, kept and new ones alike."""
  by_workers = []
  in_graph = False
  holds, run = shard_writer._holds, job_module.run_graph

  def noted(*args):
    by_workers.append(in_graph)
    return holds(*args)

  def running(pipeline):
    nonlocal in_graph
    in_graph = True
    try:
      return run(pipeline)
    finally:
      in_graph = False

  monkeypatch.setattr(shard_writer, "_holds", noted)
  monkeypatch.setattr(job_module, "run_graph", running)
  out = tmp_path / "cache"
  with monkeypatch.context() as killed:
    killed.setattr(cache_writer, "finish", lambda *_, **__: None)
    with refused("not a finished cache"):
      job_module.run_extraction(job, out)
  assert job_module.run_extraction(job, out).kept_shards == 3
  assert by_workers == [True] * 6


@pytest.mark.parametrize(
  ("field", "said"),
  [
    ("weights_sha256", r"another file on this worker.*abab"),
    ("code_sha256", r"random_patches is another.*abab"),
  ],
)
def test_a_worker_with_other_weights(job, identity, tmp_path, field, said):
  """They would be the cache's in name only."""
  backbone = dataclasses.replace(identity.backbone, **{field: "ab" * 32})
  of_another = dataclasses.replace(identity, backbone=backbone)
  assert cache_writer.begin(tmp_path / "cache", of_another)
  do_fn = of_job(job, of_another, tmp_path / "cache")
  do_fn.setup()
  with refused(said, RunError):
    list(do_fn.process(0))
  do_fn.teardown()


def test_a_worker_with_another_batch_size(worker, job, identity, tmp_path):
  """Its rows would differ by rounding, and two tries of a shard with them."""
  list(worker.process(1))
  other = dataclasses.replace(job, batch_size=24)
  do_fn = of_job(other, identity, tmp_path / "cache")
  do_fn.setup()
  with refused("batch_size is 16 there and 24 now"):
    list(do_fn.process(0))
  assert list(do_fn.process(1)) == [1]  # nothing of it is computed
  do_fn.teardown()
