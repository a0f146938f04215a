"""Damaged, edited and missing files of a cache are refused and named."""

import os
import pathlib
import shutil

import numpy as np
import pytest

from oneshot_dp.extract.cache import shard_file
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.extract.cache.shard_file import CacheJob
from oneshot_dp.extract.cache.write import start_or_resume
from tests.extract.cache.caches import make_info, run_job
from tests.extract.refusals import refused

# Deeper than any parser follows.
NESTED_LISTS = "[".ljust(10**6, "[")


@pytest.mark.parametrize(
  ("old", "new", "said"),
  [
    ('"split": "train"', '"split": "test"', "do not fit"),
    ('"shard_rows": 8', '"shard_rows": 4', "do not fit"),
    ('"format_version": 3', '"format_version": 2', "format 2, not 3"),
    ('"dataset": "pets"', '"dataset": 7', "is damaged"),
    ("{", NESTED_LISTS, "is damaged"),
    ("pets-train.array_record-00001", "../../x", "do not fit"),
  ],
)
def test_cache_with_edited_metadata_is_refused(tmp_path, old, new, said):
  run_job(tmp_path, make_info())
  text = (tmp_path / INFO_FILE).read_text()
  (tmp_path / INFO_FILE).write_text(text.replace(old, new, 1))

  with refused(f"{INFO_FILE}.*{said}"):
    open_cache(tmp_path)


@pytest.fixture
def cache(tmp_path):
  return run_job(tmp_path / "cache", make_info(40))


@pytest.fixture
def third_shard(cache):
  return sorted(pathlib.Path(cache.path).glob("*record-*"))[2]


def flip_a_bit(data, _):
  middle = len(data) // 2
  return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
  "damage",
  [
    pytest.param(flip_a_bit, id="flipped"),
    pytest.param(lambda data, _: data[: len(data) // 2], id="cut"),
    pytest.param(lambda data, _: data + b"x", id="longer"),
    pytest.param(lambda data, _: b"", id="empty"),
    pytest.param(lambda _, other: other, id="another shard"),
  ],
)
def test_cache_names_a_damaged_shard_before_its_rows_come(
  cache, third_shard, damage
):
  other = sorted(pathlib.Path(cache.path).glob("*record-*"))[1]
  third_shard.write_bytes(damage(third_shard.read_bytes(), other.read_bytes()))
  seen = []

  with refused(f"{third_shard.name} is damaged"):
    for block in cache.blocks():
      seen.append(len(block["label"]))

  assert sum(seen) == 16  # those of the two shards before
  (fault,) = check_cache(cache.path)
  assert f"{third_shard.name} is damaged (" in fault


def test_check_of_a_cache_without_one_of_its_shards_says_that_it_is_missing(
  cache, third_shard
):
  third_shard.unlink()

  (fault,) = check_cache(cache.path)

  assert fault.endswith(f"{third_shard.name} does not exist")


def test_cache_shard_with_any_bit_flipped_is_refused(cache, third_shard):
  data = third_shard.read_bytes()
  rng = np.random.default_rng(0)
  for place in rng.integers(0, len(data), 40):
    flipped = bytearray(data)
    flipped[place] ^= 1 << rng.integers(8)
    third_shard.write_bytes(flipped)

    with refused("is damaged"):
      list(cache.blocks([2]))


def test_cache_reads_of_a_shard_what_was_hashed(
  cache, third_shard, monkeypatch
):
  other = sorted(pathlib.Path(cache.path).glob("*record-*"))[1]
  (expected,) = cache.blocks([2])
  read_records = shard_file._read_records

  def exchange_and_read(path, size):
    shutil.copy(other, third_shard.with_name("other"))
    third_shard.with_name("other").replace(third_shard)
    return read_records(path, size)

  monkeypatch.setattr(shard_file, "_read_records", exchange_and_read)
  (block,) = cache.blocks([2])

  assert third_shard.read_bytes() == other.read_bytes()
  assert block["example_id"].tolist() == expected["example_id"].tolist()


def make_sparse(path):
  path.touch()
  os.truncate(path, 1 << 42)


NO_FILES = [
  pytest.param(lambda path: None, id="nothing"),
  pytest.param(os.mkfifo, id="fifo"),
  pytest.param(make_sparse, id="sparse"),
  pytest.param(lambda path: path.symlink_to("/dev/zero"), id="device"),
]


@pytest.mark.parametrize("make_other", NO_FILES)
def test_cache_whose_metadata_is_no_file_is_refused_at_once(cache, make_other):
  path = pathlib.Path(cache.path, INFO_FILE)
  path.unlink()
  make_other(path)

  with refused(path.name):
    open_cache(cache.path)


@pytest.mark.parametrize("make_other", NO_FILES)
def test_cache_whose_shard_is_no_file_is_refused_at_once(
  cache, third_shard, make_other
):
  third_shard.unlink()
  make_other(third_shard)

  with refused(third_shard.name):
    list(open_cache(cache.path).blocks())
  assert any(third_shard.name in fault for fault in check_cache(cache.path))


def test_open_cache_of_no_directory_says_so_and_makes_none(tmp_path):
  with refused("no such directory, or it is empty"):
    open_cache(tmp_path / "none")

  assert not (tmp_path / "none").exists()


def test_open_cache_of_an_unfinished_job_says_so(tmp_path):
  start_or_resume(str(tmp_path / "begun"), CacheJob(info=make_info()))

  with refused("is not a finished cache"):
    open_cache(tmp_path / "begun")


def test_open_cache_of_a_folder_of_tfds_says_how_to_extract_it(tmp_path):
  folder = tmp_path / "pets" / "1.0.0"
  folder.mkdir(parents=True)
  (folder / "features.json").write_text("{}")

  with refused(f"run `oneshot-dp extract tfds:{folder}`"):
    open_cache(tmp_path / "pets")


def test_open_cache_of_a_run_says_so_although_it_has_pictures(tmp_path):
  (tmp_path / "results.json").write_text("{}")
  (tmp_path / "accuracy.png").write_bytes(b"")

  with refused("is a run of heads"):
    open_cache(tmp_path)


def test_open_cache_of_no_path_says_so():
  with refused("is not a valid path"):
    open_cache("a\0b")
