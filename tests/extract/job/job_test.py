"""Whole extractions in a loop."""

import dataclasses
import pathlib
import random

import numpy as np
import pytest

from oneshot_dp.configs.errors import BrokenImageError, RunError
from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.extract.images import image_key
from oneshot_dp.extract.job import shard
from oneshot_dp.extract.job.job import run_extraction
from tests.extract.cache.caches import columns, digest
from tests.extract.job.jobs import CLASSES, N, job_of, write_folder
from tests.extract.refusals import refused


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
  files = {p.name.partition("-")[0] for p in whole.iterdir()}
  json = {f"{of}.json" for of in ("cache_info", "dataset_info", "features")}
  assert files == json | {"photos"}


@pytest.mark.slow
@pytest.mark.parametrize("error", [RunError("killed"), KeyboardInterrupt()])
def test_a_resumed_job_keeps_what_is_there(
  photos, whole, tmp_path, monkeypatch, error
):
  out = tmp_path / "cache"
  done = []
  make = shard.put_shard

  def once(*of):
    if done:
      raise error
    done.append(of)
    return make(*of)

  with monkeypatch.context() as patch:
    patch.setattr(shard, "put_shard", once)
    with pytest.raises(type(error), match=r"killed|the same command resumes"):
      run_extraction(job_of(photos), str(out))
  (kept,) = out.glob("*array_record-*")
  before = kept.stat().st_mtime_ns
  run_extraction(job_of(photos), str(out))
  assert kept.stat().st_mtime_ns == before
  assert digest(out) == digest(whole)
  # Finished: left alone; and what moves no bit makes no other job.
  again = job_of(photos, stall_seconds=7, on_decode_error="skip")
  run_extraction(again, str(out))
  assert digest(out) == digest(whole)


@pytest.fixture
def begun_by_skipping(tmp_path, monkeypatch):
  """A job that was killed after a shard in which it skipped an image."""
  folder = tmp_path / "photos"
  write_folder(folder, N, bad=[40])
  done = []
  make = shard.put_shard

  def twice(*of):
    if len(done) == 2:
      raise RunError("killed")
    done.append(of)
    return make(*of)

  with monkeypatch.context() as patch:
    # In their order, so that the skipped image is in one of the first two.
    patch.setattr(random.SystemRandom, "shuffle", lambda self, order: None)
    patch.setattr(shard, "put_shard", twice)
    with pytest.raises(RunError, match="killed"):
      run_extraction(
        job_of(folder, on_decode_error="skip"), str(tmp_path / "out")
      )
  return folder, tmp_path / "out"


def test_a_job_that_skipped_does_not_go_on_as_one_that_would_fail(
  begun_by_skipping,
):
  """Its cache would lack an image without a word."""
  folder, out = begun_by_skipping

  with refused("lacks images that were skipped when it was begun"):
    run_extraction(job_of(folder), str(out))
  skipping = job_of(folder, on_decode_error="skip")
  assert run_extraction(skipping, str(out)).num_rows == N - 1
  with refused("lacks images that were skipped when it was begun"):
    run_extraction(job_of(folder), str(out))


def test_a_job_that_skipped_does_not_go_on_with_another_pixel_limit(
  begun_by_skipping,
):
  folder, out = begun_by_skipping
  other = job_of(folder, on_decode_error="skip", max_pixels=60)
  with refused("--max-pixels is another"):
    run_extraction(other, str(out))


def test_a_job_that_read_large_images_does_not_go_on_by_skipping_them(
  photos, tmp_path
):
  """Those of the shards that are there would stay, and others be left out."""
  out = str(tmp_path / "out")
  reading = job_of(photos, max_pixels=1 << 30)
  run_extraction(reading, out)

  with refused("--max-pixels is another"):
    run_extraction(job_of(photos, on_decode_error="skip"), out)
  assert run_extraction(reading, out).num_rows == N


def test_a_job_goes_on_with_another_bit_depth_as_another_job(photos, whole):
  deep = PreprocessConfig(image_size=8, bit_depth=12)
  with refused("belongs to another job: .*bit_depth"):
    run_extraction(job_of(photos, preprocess=deep), str(whole))


@pytest.mark.slow
def test_skipped_images_count_as_nothing_and_move_no_other(tmp_path):
  """Some in the middle of a batch are broken: no other row changes a bit."""
  files = write_folder(tmp_path / "photos", 50, side=32)
  job = job_of(
    tmp_path / "photos",
    backbone="glyph_vit",
    preprocess=PreprocessConfig(),
    on_decode_error="skip",
  )
  sound = columns(run_extraction(job, str(tmp_path / "sound")))
  bad = [3, 31, 32, 49]
  for i in bad:
    files[i].write_bytes(files[i].read_bytes()[:40])
  cache = run_extraction(job, str(tmp_path / "cache"))
  found = columns(cache)
  assert found["example_id"].tolist() == [i for i in range(50) if i not in bad]
  for name, column in found.items():
    np.testing.assert_array_equal(column, np.delete(sound[name], bad, axis=0))
  assert (cache.n, cache.num_rows) == (50, 46)
  assert check_cache(tmp_path / "cache") == []


@pytest.mark.slow
def test_views_are_a_mean_of_their_own(photos, tmp_path):
  """Two shards, three views in batches of 16: nothing of it shows."""
  job = job_of(photos, views=3)
  cache = run_extraction(job, str(tmp_path / "one"))
  other = dataclasses.replace(job, batch_size=2)
  two = columns(run_extraction(other, str(tmp_path / "two")))
  one = columns(cache)
  assert one["embedding"].shape == (N, 192)
  np.testing.assert_allclose(one["embedding"], two["embedding"], atol=1e-3)
  kind = "inception crop and flip"
  assert cache.info.views == {"count": 3, "kind": kind, "min_area": 0.08}


def test_units_go_with_their_images_which_are_those_of_the_job(tmp_path):
  files = write_folder(tmp_path / "photos", 40)
  units = r"(?P<patient>\d{3})\dz?\.png"
  job = job_of(tmp_path / "photos", settings={"units": units})
  cache = run_extraction(job, str(tmp_path / "cache"))
  assert cache.info.unit == "patient"
  assert len(np.unique(columns(cache)["unit_id"])) == 4
  assert check_cache(tmp_path / "cache") == []
  files[3].rename(files[3].with_name("0003z.png"))
  with refused("belongs to another job: images of the source came, went or"):
    run_extraction(job, str(tmp_path / "cache"))
  files[5].write_bytes(b"cut")
  with refused("0005.png cannot be decoded", BrokenImageError):
    run_extraction(job, str(tmp_path / "other"))


def test_broken_images_of_one_reason_are_told_it_once(tmp_path):
  files = write_folder(tmp_path / "photos", 6)
  for file in files[1:4]:
    file.write_bytes(b"cut")
  with refused("3 of 6 images cannot be decoded", BrokenImageError) as caught:
    run_extraction(job_of(tmp_path / "photos"), str(tmp_path / "cache"))
  assert str(caught.value).count("3 bytes that are not a readable") == 1


def test_the_command_takes_an_experiment_and_flags():
  from oneshot_dp.pipeline.commands.extract import Flags, job_of

  flags = Flags(source=("cifar10_vit_b16",), out="c", split="test", resize="9")
  job = job_of(flags)
  assert job.source.location == ("tfds:cifar10",)
  found = job.source.split, job.backbone, job.preprocess.resize
  assert found == ("test", "vit_b16", 9)
  several = dataclasses.replace(flags, source=("a.tar", "b.tar"))
  assert job_of(several).source.location == ("a.tar", "b.tar")
  with refused("give a SOURCE"):
    job_of(dataclasses.replace(flags, source=()))
  with refused("--resize 'big'"):
    job_of(dataclasses.replace(flags, resize="big"))
