"""Whole extractions, here and on Beam's runners on this machine."""

import contextlib
import dataclasses
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import BrokenImageError, InputError, RunError
from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.keys import image_key
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.extract.job import embed, on_beam, progress, shard
from oneshot_dp.extract.job.job import run_extraction
from tests.extract.cache.caches import columns, digest, refused
from tests.extract.job.jobs import BACKBONE, CLASSES, job_of, write_folder

N = 70  # three shards of 32, 32 and 6; no multiple of a batch
THREADS = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
# As a cluster would: a job server, and workers that it asks for.
PORTABLE = [
  *("--runner=PortableRunner", "--job_endpoint=embed"),
  "--environment_type=LOOPBACK",
]
PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
ON_EACH_RUNNER = pytest.mark.parametrize(
  "flags",
  [
    pytest.param([], id="loop"),
    pytest.param(["--runner=DirectRunner"], id="beam"),
    pytest.param(THREADS, id="threads"),
    pytest.param(PORTABLE, id="portable", marks=pytest.mark.slow),
    pytest.param(PROCESSES, id="processes", marks=pytest.mark.slow),
  ],
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("images") / "photos"
  write_folder(folder, N)
  return folder


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory) -> pathlib.Path:
  out = tmp_path_factory.mktemp("caches") / "whole"
  run_extraction(job_of(photos), str(out))
  return out


def test_every_example_once_with_its_label_and_key_in_order(photos, whole):
  cache = open_cache(whole)
  found = columns(cache)
  files = sorted(photos.rglob("*.png"))
  np.testing.assert_array_equal(found["example_id"], np.arange(N))
  assert [CLASSES[i] for i in found["label"]] == [f.parent.name for f in files]
  keys = [image_key(file.read_bytes()) for file in files]
  np.testing.assert_array_equal(found["image_key"], keys)
  info = cache.info
  assert (info.dataset, info.class_names) == ("photos", CLASSES)
  assert info.backbone["name"] == "backbone.py:embed"
  assert info.backbone["preprocess"]["image_size"] == 8
  assert {"jax", "flax", "pillow"} <= info.computed_by["libraries"].keys()
  assert (cache.n, info.keys) == (N, "image")
  assert check_cache(whole) == []
  assert {p.name.partition("-")[0] for p in whole.iterdir()} == {
    *("cache_info.json", "dataset_info.json", "features.json", "photos"),
  }


@ON_EACH_RUNNER
def test_made_on_any_runner_it_is_the_same_bytes(
  photos, whole, tmp_path, flags
):
  run_extraction(job_of(photos), str(tmp_path / "cache"), flags)
  assert digest(tmp_path / "cache") == digest(whole)


def test_a_resumed_job_keeps_what_is_there(
  photos, whole, tmp_path, monkeypatch
):
  out, done = tmp_path / "cache", []
  make = shard.put_shard

  def once(*of):
    if done:
      raise RunError("killed")
    done.append(of[2])
    return make(*of)

  with monkeypatch.context() as patch:
    patch.setattr(shard, "put_shard", once)
    with pytest.raises(RunError):
      run_extraction(job_of(photos), str(out))
  kept = next(out.glob("*array_record-00000*"))
  before = kept.stat().st_mtime_ns
  run_extraction(job_of(photos), str(out), THREADS)
  assert kept.stat().st_mtime_ns == before
  assert digest(out) == digest(whole)
  run_extraction(job_of(photos), str(out))  # finished: left alone
  assert digest(out) == digest(whole)


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    (
      {"preprocess": PreprocessConfig(image_size=9)},
      "backbone.preprocess.image_size is 8 there and 9 now",
    ),
    ({"views": 2}, "views is null there"),
    ({"shard_rows": 16}, "shard_rows is 32 there and 16 now"),
    ({"embedding_dtype": "float32"}, "embedding_dtype"),
    ({"settings": {"name": "other"}}, "dataset is"),
  ],
)
def test_another_job_is_refused(photos, whole, changes, said):
  before = digest(whole)
  with refused("belongs to another job") as caught:
    run_extraction(job_of(photos, **changes), str(whole))
  assert said in str(caught.value)
  assert digest(whole) == before


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("change", ["came", "went", "renamed"])
def test_a_photograph_that_came_or_went_is_another_job(
  tmp_path, finished, change, monkeypatch
):
  files = write_folder(tmp_path / "photos", 40)
  out = str(tmp_path / "cache")

  def killed(*of):
    raise KeyError

  with monkeypatch.context() as patch, contextlib.suppress(KeyError):
    if not finished:
      patch.setattr("oneshot_dp.extract.job.job.finish", killed)
    run_extraction(job_of(tmp_path / "photos"), out)
  match change:
    case "came":
      (files[3].parent / "new.png").write_bytes(files[3].read_bytes())
      files[4].unlink()  # n is the same
    case "went":
      files[3].unlink()
    case "renamed":
      files[3].rename(files[3].with_name("zz.png"))
  with refused("belongs to another job"):
    run_extraction(job_of(tmp_path / "photos"), out)


@ON_EACH_RUNNER
def test_all_broken_images_are_named_at_once(tmp_path, capfd, flags):
  files = write_folder(tmp_path / "photos", N, bad=[3, 13, N - 1])
  with refused("3 of 70 images cannot be decoded", BrokenImageError) as caught:
    run_extraction(job_of(tmp_path / "photos"), str(tmp_path / "cache"), flags)
  for i in (3, 13, N - 1):
    assert files[i].name in str(caught.value)
  assert "--on-decode-error skip" in str(caught.value)
  if flags != PROCESSES:
    assert "Traceback" not in capfd.readouterr().err
  assert not (tmp_path / "cache" / INFO_FILE).exists()


@ON_EACH_RUNNER
def test_skipped_images_count_as_nothing_and_move_no_other(tmp_path, flags):
  """One in the middle of a batch is broken: no other row changes a bit."""
  files = write_folder(tmp_path / "photos", 50)
  job = job_of(tmp_path / "photos", on_decode_error="skip")
  sound = columns(run_extraction(job, str(tmp_path / "sound"), flags))
  bad = [3, 31, 32, 49]
  for i in bad:
    files[i].write_bytes(files[i].read_bytes()[:40])
  cache = run_extraction(job, str(tmp_path / "cache"), flags)
  found = columns(cache)
  assert found["example_id"].tolist() == [i for i in range(50) if i not in bad]
  for name, column in found.items():
    np.testing.assert_array_equal(column, np.delete(sound[name], bad, axis=0))
  assert (cache.n, cache.num_rows) == (50, 46)
  assert check_cache(tmp_path / "cache") == []


def test_a_vision_transformer_s_rows_do_not_move_either(tmp_path):
  files = write_folder(tmp_path / "photos", 40, side=32)
  job = job_of(
    tmp_path / "photos",
    backbone="glyph_vit",
    preprocess=PreprocessConfig(),
    on_decode_error="skip",
  )
  sound = columns(run_extraction(job, str(tmp_path / "sound")))
  files[17].write_bytes(b"no image")
  found = columns(run_extraction(job, str(tmp_path / "cache")))
  for name, column in found.items():
    np.testing.assert_array_equal(column, np.delete(sound[name], 17, axis=0))


def test_one_broken_image_and_all(tmp_path):
  write_folder(tmp_path / "one", 5, bad=[2])
  with refused("0002.png cannot be decoded", BrokenImageError):
    run_extraction(job_of(tmp_path / "one"), str(tmp_path / "cache"))
  write_folder(tmp_path / "all", 5, bad=range(5))
  job = job_of(tmp_path / "all", on_decode_error="skip")
  with refused("every example was skipped"):
    run_extraction(job, str(tmp_path / "none"))


def test_views_are_a_mean_of_their_own(photos, tmp_path):
  """Two shards, three views in batches of 16: nothing of it shows."""
  job = job_of(photos, views=3)
  one = columns(run_extraction(job, str(tmp_path / "one")))
  two = columns(
    run_extraction(
      dataclasses.replace(job, batch_size=2), str(tmp_path / "two")
    )
  )
  assert one["embedding"].shape == (N, 192)
  np.testing.assert_allclose(one["embedding"], two["embedding"], atol=1e-3)
  info = open_cache(tmp_path / "one").info
  kind = "inception crop and flip"
  assert info.views == {"count": 3, "kind": kind, "min_area": 0.08}


def test_what_moves_no_bit_is_no_other_job(photos, whole):
  job = job_of(photos, stall_seconds=7)
  before = digest(whole)
  run_extraction(dataclasses.replace(job, on_decode_error="skip"), str(whole))
  assert digest(whole) == before


def test_units_go_with_their_images(tmp_path):
  write_folder(tmp_path / "photos", 40)
  units = r"(?P<patient>\d{3})\d\.png"
  job = job_of(tmp_path / "photos", settings={"units": units})
  cache = run_extraction(job, str(tmp_path / "cache"))
  found = columns(cache)
  assert cache.info.unit == "patient"
  assert len(np.unique(found["unit_id"])) == 4
  assert check_cache(tmp_path / "cache") == []


def test_a_worker_with_other_weights_is_refused(photos, tmp_path, monkeypatch):
  real = shard.computed_by
  calls = iter(range(100))

  def other(*of):
    found = real(*of)
    if next(calls):
      found["libraries"] |= {"jax": "0.0.1"}
    return found

  monkeypatch.setattr(shard, "computed_by", other)
  monkeypatch.setattr("oneshot_dp.extract.job.job.computed_by", other)
  with refused("libraries of the backbone is", RunError):
    run_extraction(job_of(photos), str(tmp_path / "cache"))


@pytest.mark.parametrize(
  ("flags", "said"),
  [
    (["--nope=3"], "--nope is neither a flag of this command nor"),
    (["--direct_num_workers=many"], "invalid int value: 'many'"),
    (["--direct_running_mode=quick"], "invalid choice: 'quick'"),
    (["--runner=NoSuchRunner"], "Unexpected pipeline runner: NoSuchRunner"),
  ],
)
def test_flags_that_make_no_sense(photos, tmp_path, flags, said):
  with refused(said):
    run_extraction(job_of(photos), str(tmp_path / "cache"), flags)


def test_workers_are_asked_for_numbers_alone(photos, tmp_path, monkeypatch):
  """What an engine shows of a job tells nothing of the listing."""
  seen = []

  class Seen(on_beam._Running):
    def __init__(self, job, options):
      super().__init__(job, options)
      seen.append((job, str(self._pipeline.to_runner_api())))

  monkeypatch.setattr(on_beam, "_Running", Seen)
  run_extraction(job_of(photos), str(tmp_path / "cache"), THREADS)
  ((job, graph),) = seen
  assert job.cache.digest not in graph
  assert "0013.png" not in graph
  assert len(graph) < 60_000


class TestStopped:
  def test_workers_stop_when_they_are_told(self, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_LOOK_SECONDS", 0)
    store = storage.store_at(tmp_path)
    progress.check_stopped(str(tmp_path), "run")
    storage.put_once(store, progress.stop_file("run"), b"stop")
    with pytest.raises(progress.Stopped):
      progress.check_stopped(str(tmp_path), "run")
    progress.check_stopped(str(tmp_path), "other")

  def test_a_stall_stops_the_job_and_says_so(
    self, photos, whole, tmp_path, monkeypatch
  ):
    out = tmp_path / "cache"
    apply = embed.Embedder.__call__

    def hung(self, images):
      time.sleep(1.5)
      return apply(self, images)

    monkeypatch.setattr(progress, "_LOOK_SECONDS", 0.1)
    with monkeypatch.context() as patch:
      patch.setattr(embed.Embedder, "__call__", hung)
      job = job_of(photos, stall_seconds=1)
      with refused("has finished nothing for 1 s", RunError):
        run_extraction(job, str(out), ["--runner=DirectRunner"])
    assert not (out / INFO_FILE).exists()
    assert [p for p in out.iterdir() if p.name.startswith("stop.")]
    run_extraction(job_of(photos), str(out))
    assert digest(out) == digest(whole)

  def test_what_cannot_be_stopped_is_said(self, photos, tmp_path, monkeypatch):
    """A runner whose job goes on, whatever it is told."""
    monkeypatch.setattr(on_beam, "DRAIN_SECONDS", 0.1)
    monkeypatch.setattr(on_beam, "CANCEL_SECONDS", 0.1)
    hung = time.sleep

    class Deaf:
      state = "RUNNING"

      def cancel(self):
        hung(2)

      def wait_until_finish(self):
        hung(2)

    class Graph:
      def run(self):
        return Deaf()

    class Running(on_beam._Running):
      def __init__(self, job, options):
        super().__init__(job, options)
        vars(self)["_pipeline"] = Graph()

    monkeypatch.setattr(on_beam, "_Running", Running)
    job = job_of(photos, stall_seconds=1)
    with refused(
      "may still run as .* on the engine behind", RunError
    ) as caught:
      run_extraction(job, str(tmp_path / "cache"), ["--runner=DirectRunner"])
    assert "cancel it there" in str(caught.value)


def command(*words, cwd) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, "-m", "oneshot_dp", "extract", *words],
    cwd=cwd,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def wait_for_shards(process, out, least) -> None:
  while process.poll() is None and len(list(out.glob("*record-*"))) < least:
    time.sleep(0.01)


SLOWLY = ["--backbone", BACKBONE, "--image-size", "96"]
SLOWLY += ["--batch-size", "16", "--shard-rows", "30", "--out", "cache"]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
  """Images that take a while, their job, and what it makes of them."""
  folder = tmp_path_factory.mktemp("many")
  write_folder(folder / "photos", 600, side=24)
  job = job_of(
    folder / "photos",
    preprocess=PreprocessConfig(image_size=96),
    shard_rows=30,
  )
  run_extraction(job, str(folder / "whole"))
  return folder / "photos", job, digest(folder / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], THREADS, PROCESSES], ids=str)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_a_stopped_command_goes_on(many, tmp_path, flags, how):
  photos, job, whole = many
  out = tmp_path / "cache"
  with command(str(photos), *SLOWLY, *flags, cwd=tmp_path) as process:
    wait_for_shards(process, out, 3)
    process.send_signal(how)
    _, err = process.communicate(timeout=100)
  assert process.returncode == (130 if how == signal.SIGINT else -how)
  assert not (out / INFO_FILE).exists()
  if how == signal.SIGINT:
    assert "the same command goes on" in err
    assert "may still run" not in err
  run_extraction(job, str(out))  # workers may have outlived their launcher
  assert digest(out) == whole


@pytest.mark.slow
def test_a_worker_process_that_dies_is_noticed(many, tmp_path):
  photos, *_ = many
  with command(str(photos), *SLOWLY, *PROCESSES, cwd=tmp_path) as process:
    wait_for_shards(process, tmp_path / "cache", 2)
    tasks = pathlib.Path(f"/proc/{process.pid}/task").glob("*/children")
    child = " ".join(task.read_text() for task in tasks).split()[0]
    subprocess.run(["kill", "-9", child], check=True)
    _, err = process.communicate(timeout=100)
  assert process.returncode == 1
  assert "a worker process ended with status -9" in err


def test_the_command_takes_an_experiment_and_flags():
  from oneshot_dp.pipeline.commands.extract import Flags, job_of

  flags = Flags(source=("cifar10_vit_b16",), out="c", split="test", resize="9")
  job = job_of(flags)
  assert job.source.location == ("tfds:cifar10",)
  assert (job.source.split, job.backbone, job.preprocess.resize) == (
    *("test", "vit_b16", 9),
  )
  flags = Flags(source=("a.tar", "b.tar"), out="c", views=3)
  assert job_of(flags).source.location == ("a.tar", "b.tar")
  wrong: list[tuple[dict[str, Any], str]] = [
    ({"source": ("nothing",)}, "is no file, folder or URL"),
    ({"source": ()}, "give a SOURCE"),
    ({"source": ("a:b",), "resize": "big"}, "--resize 'big'"),
    ({"source": ("a:b",), "views": 0}, "--views=0"),
  ]
  for changes, said in wrong:
    with refused(said, InputError):
      job_of(dataclasses.replace(flags, **changes))
