import dataclasses
import json
import pathlib
import threading

import numpy as np
import pytest

from oneshot_dp.configs.errors import BrokenImageError, InputError, RunError
from oneshot_dp.configs.extract_config import (
  BackboneConfig,
  ExtractConfig,
  PreprocessConfig,
)
from oneshot_dp.extract.cache.info import INFO_FILE
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.extract.job import embedder, listing, shard
from oneshot_dp.extract.job import job as job_module
from oneshot_dp.extract.job.job import run_extraction
from tests.extract.caches import digest, make_identity
from tests.extract.image_jobs import (
  CLASSES,
  array_job,
  columns,
  damage,
  example_ids,
  folder_job,
  labels,
  write_folder,
  write_npz,
)
from tests.extract.recording_runner import RecordingRunner
from tests.extract.refusals import refused

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 70  # three shards of 32, 32 and 6; no multiple of a batch
THREADS = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
# As a cluster would: a job server, and workers that it asks for.
PORTABLE = [
  *("--runner=PortableRunner", "--job_endpoint=embed"),
  "--environment_type=LOOPBACK",
]
ON_EACH_RUNNER = pytest.mark.parametrize(
  "options",
  [
    pytest.param([], id="plain"),
    pytest.param(THREADS, id="threads"),
    pytest.param(PORTABLE, id="portable", marks=pytest.mark.slow),
  ],
)
RUNNERS = "tests.extract.recording_runner"


@pytest.fixture(scope="module")
def npz(tmp_path_factory) -> pathlib.Path:
  return write_npz(tmp_path_factory.mktemp("images") / "pets.npz", N)


@pytest.fixture(scope="module")
def undisturbed(npz, tmp_path_factory) -> pathlib.Path:
  out = tmp_path_factory.mktemp("caches") / "undisturbed"
  run_extraction(array_job(npz), out)
  return out


@pytest.fixture
def job(npz) -> ExtractConfig:
  return array_job(npz)


def test_every_example_once_with_its_label_in_order(undisturbed):
  cache = open_cache(undisturbed)
  found = columns(cache)
  np.testing.assert_array_equal(found["example_id"], example_ids(N))
  np.testing.assert_array_equal(found["label"], labels(N))
  assert found["embedding"].shape == (N, 256)
  assert cache.info.class_names == CLASSES
  assert cache.info.source_num_examples == cache.info.num_examples == N
  assert verify_cache(undisturbed).ok
  info = cache.info
  assert (info.dataset, info.split, info.decoder) == ("pets", "train", "pillow")
  assert info.backbone.name == "random_patches"
  assert info.backbone.weights_sha256
  assert info.preprocess["image_size"] == 8
  assert {"jax", "flax", "pillow"} <= info.libraries.keys()


@ON_EACH_RUNNER
def test_made_again_it_is_the_same_bytes(job, undisturbed, tmp_path, options):
  run_extraction(job, tmp_path / "cache", options)
  assert digest(tmp_path / "cache") == digest(undisturbed)


def test_workers_share_backbone_and_source(job, tmp_path, monkeypatch):
  loads, sources, workers = [], [], []
  load, pool = shard.load_embedder, shard.decode_pool
  monkeypatch.setattr(shard, "_EMBEDDERS", type(shard._EMBEDDERS)())
  monkeypatch.setattr(
    shard, "load_embedder", lambda c: loads.append(c) or load(c)
  )
  open_ = listing.open_source
  monkeypatch.setattr(
    listing, "open_source", lambda *a: sources.append(a) or open_(*a)
  )
  monkeypatch.setattr(
    shard, "decode_pool", lambda c: workers.append(c) or pool(c)
  )
  small = dataclasses.replace(job, shard_rows=8)
  run_extraction(small, tmp_path / "cache", THREADS)
  assert len(workers) >= 2
  assert len(loads) == len(sources) == 1


def test_a_finished_cache_is_left_alone(job, undisturbed):
  before = {p: p.stat().st_mtime_ns for p in undisturbed.iterdir()}
  report = run_extraction(job, undisturbed)
  assert report.counters == {}
  assert report.kept_shards == 3
  assert {p: p.stat().st_mtime_ns for p in undisturbed.iterdir()} == before


@ON_EACH_RUNNER
def test_an_undecodable_image_is_named_in_one_line(tmp_path, capfd, options):
  files = write_folder(tmp_path / "photos", 20, bad=[13])
  job = folder_job(tmp_path / "photos")
  with pytest.raises(BrokenImageError) as error:
    run_extraction(job, tmp_path / "cache", options)
  message = str(error.value)
  assert message.startswith(f"{files[13]} (example_id=13) cannot be decoded: ")
  assert message.endswith("pass --on-decode-error skip.")
  assert "\n" not in message
  assert "Traceback" not in capfd.readouterr().err
  assert not (tmp_path / "cache" / INFO_FILE).exists()


def test_all_undecodable_images_are_named_at_once(tmp_path):
  """Those of other shards, and of the other part of the split, too."""
  files = write_folder(tmp_path / "photos", N, bad=[3, 13, N - 1])
  job = folder_job(tmp_path / "photos", split="all[:50%]")
  with pytest.raises(InputError) as error:
    run_extraction(job, tmp_path / "cache")
  assert str(error.value).startswith(
    f"3 of {N} images cannot be decoded: {str(files[3])!r}, {str(files[13])!r},"
    f" {str(files[-1])!r}. Mend "
  )


@ON_EACH_RUNNER
def test_skipped_images_are_listed_and_the_rest_is_there(tmp_path, options):
  files = write_folder(tmp_path / "photos", 50, bad=[3, 31, 32, 49])
  skip = folder_job(tmp_path / "photos", on_decode_error="skip")
  report = run_extraction(skip, tmp_path / "cache", options)
  info = json.loads((tmp_path / "cache" / INFO_FILE).read_text())
  assert info["skipped_example_ids"] == [3, 31, 32, 49]
  assert (info["num_examples"], info["source_num_examples"]) == (46, 50)
  assert report.counters == {
    "examples": 46,
    "decode_errors": 4,
    "image_bytes": sum(file.stat().st_size for file in files),
  }
  assert report.kept_shards == 0
  assert report.seconds > 0
  assert columns(report.cache)["example_id"].tolist() == [
    i for i in range(50) if i not in (3, 31, 32, 49)
  ]
  assert verify_cache(tmp_path / "cache").ok


def test_resuming_keeps_what_holds_and_redoes_what_is_damaged(tmp_path):
  photos, out = tmp_path / "photos", tmp_path / "cache"
  files = write_folder(photos, N)
  run_extraction(folder_job(photos), tmp_path / "undisturbed")

  whole = damage(files[-1])  # the last shard fails
  with pytest.raises(InputError):
    run_extraction(folder_job(photos), out)
  kept, spoilt = sorted(out.glob("*.array_record-*"))
  spoilt.write_bytes(spoilt.read_bytes()[:-1] + b"?")
  before = kept.stat()

  files[-1].write_bytes(whole)  # of another size than when it was listed
  report = run_extraction(folder_job(photos), out)
  assert report.kept_shards == 1
  assert report.counters["examples"] == N - 32
  assert kept.stat().st_ino == before.st_ino
  assert kept.stat().st_mtime_ns == before.st_mtime_ns
  assert digest(out) == digest(tmp_path / "undisturbed")


@pytest.mark.parametrize(
  ("changes", "named"),
  [
    (
      {"preprocess": PreprocessConfig(image_size=8, resample="bilinear")},
      'preprocess.resample is "bicubic" there and "bilinear" now',
    ),
    ({"embedding_dtype": "float16"}, "embedding_dtype"),
    ({"views": 2}, "views is null there"),
    ({"shard_rows": 16}, "shard_rows"),
    ({"split": "test"}, 'split is "train" there and "test" now'),
  ],
  ids=["preprocess", "dtype", "views", "shards", "split"],
)
def test_another_job_is_refused(npz, undisturbed, changes, named):
  before = digest(undisturbed)
  with refused("belongs to another job") as error:
    run_extraction(array_job(npz, **changes), undisturbed)
  assert named in str(error.value)
  assert digest(undisturbed) == before


def test_views_are_part_of_the_job(npz, tmp_path):
  job = array_job(npz, views=2)
  cache = run_extraction(job, tmp_path / "cache").cache
  assert cache.info.views == {
    "count": 2,
    "kind": "inception crop and flip",
    "min_area": 0.08,
  }
  plain = run_extraction(array_job(npz), tmp_path / "plain").cache
  assert not np.array_equal(
    columns(cache)["embedding"], columns(plain)["embedding"]
  )
  # Heads trained on views are for plain test images, of another cache.
  assert cache.info.backbone_fingerprint == plain.info.backbone_fingerprint
  assert cache.info.fingerprint != plain.info.fingerprint
  other = dataclasses.replace(job, view_min_area=0.5)
  with refused(r"views\.min_area is 0\.08 there"):
    run_extraction(other, tmp_path / "cache")


def test_the_compute_dtype_is_the_launcher_s(npz, tmp_path, monkeypatch):
  """Workers with other devices must not choose another one."""
  seen = []
  load = embedder.load_backbone

  def small(config, preprocess):
    seen.append(config.compute_dtype)
    return load(BackboneConfig(name="random_patches"), preprocess)

  monkeypatch.setattr(embedder, "load_backbone", small)
  monkeypatch.setattr(shard, "_EMBEDDERS", type(shard._EMBEDDERS)())
  job = array_job(npz, backbone=BackboneConfig(name="vit_ti8", weights="w"))
  cache = run_extraction(job, tmp_path / "cache").cache
  assert seen == ["float32"]
  assert cache.info.backbone.compute_dtype == "float32"


@pytest.mark.parametrize(
  ("options", "said"),
  [
    (["--nope=3"], "--nope is neither a flag of this command nor"),
    (["--runner=DirectRunner", "--nope"], "--nope is neither"),
    (["--direct_num_workers=many"], "invalid int value: 'many'"),
    (["--direct_running_mode=quick"], "invalid choice: 'quick'"),
    (["--runner=NoSuchRunner"], "Unexpected pipeline runner: NoSuchRunner"),
    (["--runner=no.such.Runner"], "no"),
  ],
)
def test_options_that_make_no_sense(job, tmp_path, options, said):
  with pytest.raises(InputError) as error:
    run_extraction(job, tmp_path / "cache", options)
  assert said in str(error.value)


def test_any_option_reaches_the_runner(job, tmp_path):
  RecordingRunner.options_seen.clear()
  flags = [
    f"--runner={RUNNERS}.RecordingRunner",
    "--direct_num_workers=3",
    "--job_name=embed-pets",
    "--only_this_runner_knows=5",
  ]
  run_extraction(job, tmp_path / "cache", flags)
  (seen,) = RecordingRunner.options_seen
  assert seen["direct_num_workers"] == 3
  assert seen["job_name"] == "embed-pets"
  assert seen["only_this_runner_knows"] in (5, "5")


def test_a_job_that_failed_out_of_sight_is_not_finished(job, tmp_path):
  begun(job, tmp_path / "cache")
  assert not (tmp_path / "cache" / INFO_FILE).exists()


def begun(job: ExtractConfig, out: pathlib.Path) -> None:
  with refused(r"ended as FAILED; .*run the same com", RunError):
    run_extraction(job, out, [f"--runner={RUNNERS}.FailingRunner"])


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_a_changed_source_is_another_job(tmp_path, kind, finished):
  """As many images as before, but others: 63 of them would be in 64 rows."""
  files = write_folder(tmp_path / "photos", 40)
  npz = write_npz(tmp_path / "pets.npz", 40)
  job = folder_job(files[0].parents[1]) if kind == "folder" else array_job(npz)
  out = tmp_path / "cache"
  run_extraction(job, out) if finished else begun(job, out)
  files[0].rename(files[0].with_name("zz.png"))
  arrays = dict(np.load(npz))
  arrays["label"] = (arrays["label"] + 1) % len(CLASSES)
  np.savez(npz, **arrays)
  with refused(r"another job: files of p.*s came"):
    run_extraction(job, out)


def test_a_shard_whose_file_was_mended_is_done_again(tmp_path):
  """It was decoded before, too: as another image."""
  photos, out = tmp_path / "photos", tmp_path / "cache"
  files = write_folder(photos, N)
  whole = damage(files[-1])  # the last shard fails
  with refused("cannot be decoded"):
    run_extraction(folder_job(photos), out)
  files[-1].write_bytes(whole)
  files[0].write_bytes(files[1].read_bytes() + b"\0")  # and the first is other
  report = run_extraction(folder_job(photos), out)
  assert report.kept_shards == 1
  embedding = columns(report.cache)["embedding"]
  # (Rows of a batch may be rounded otherwise: by a CPU's vectors, at the edge.)
  np.testing.assert_allclose(embedding[0], embedding[1], atol=1e-5)
  assert abs(embedding[0] - embedding[2]).max() > 1e-2


@pytest.mark.parametrize("change", ["size", "gone", "new"])
def test_workers_read_what_was_listed(tmp_path, monkeypatch, change):
  """A worker lists nothing itself, and checks the size of each file."""
  files = write_folder(tmp_path / "photos", 40)
  pin = job_module.keep_listing

  def pinned_then_changed(*pinned):
    sha256 = pin(*pinned)
    listing._OPENED.clear()  # as in another process
    if change == "size":
      files[7].write_bytes(files[8].read_bytes() + b"?")
    elif change == "gone":
      files[7].unlink()
    else:
      files[0].with_name("0.png").write_bytes(files[8].read_bytes())
    return sha256

  monkeypatch.setattr(job_module, "keep_listing", pinned_then_changed)
  job, out = folder_job(tmp_path / "photos"), tmp_path / "cache"
  if change == "new":
    assert columns(run_extraction(job, out).cache)["label"][7] == 0
    return
  with refused(rf"{files[7].name}' was there when.*listed", RunError):
    run_extraction(job, out)


def test_the_listing_stays_with_the_private_data(job, tmp_path):
  """Its hash would tell whoever guesses the data set that it is the one."""
  out = tmp_path / "cache"
  run_extraction(job, out)
  sha256 = listing.listing_sha256(listing.open_split(job))
  found = {
    file.name for file in out.iterdir() if sha256 in file.read_text("latin1")
  }
  assert found == {"shards.json"}


@pytest.mark.slow
def test_a_job_without_progress_is_given_up(job, tmp_path, monkeypatch):
  """Its worker hangs; the same command ends well once it does not."""
  whole = shard.shard_writer.write_shard

  def hangs_at_two(out, identity, index, rows):
    if index == 2:
      threading.Event().wait(60)
    return whole(out, identity, index, rows)

  monkeypatch.setattr(shard.shard_writer, "write_shard", hangs_at_two)
  hurried = dataclasses.replace(job, stall_seconds=1)
  with refused(r"1 of 3 shards \(2\).*--stall-seconds", RunError):
    run_extraction(hurried, tmp_path / "cache")
  monkeypatch.undo()
  assert run_extraction(hurried, tmp_path / "cache").kept_shards == 2


@pytest.mark.parametrize("shards", [7, 100_001])
def test_shards_are_seen_whatever_their_number(tmp_path, shards):
  identity = make_identity(n=shards, shard_rows=1)
  for i in (0, 5, shards - 1):
    (tmp_path / identity.shard_name(i)).touch()
  (tmp_path / "shards.json").touch()
  assert job_module._there(tmp_path, identity) == {0, 5, shards - 1}


def test_a_bug_keeps_its_traceback(job, tmp_path, monkeypatch):
  def broken(*args):
    raise ZeroDivisionError("a bug of ours")

  monkeypatch.setattr(shard, "embed_range", broken)
  with pytest.raises(ZeroDivisionError, match="a bug of ours"):
    run_extraction(job, tmp_path / "cache")


def test_ctrl_c_in_a_worker_is_ctrl_c(job, tmp_path, monkeypatch):
  def interrupted(*args):
    raise KeyboardInterrupt

  monkeypatch.setattr(shard, "embed_range", interrupted)
  with pytest.raises(KeyboardInterrupt):
    run_extraction(job, tmp_path / "cache")
