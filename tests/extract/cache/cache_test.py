"""The feature cache: what is written is read, and its metadata are public."""

import dataclasses
import json

import numpy as np
import pytest

from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import FeatureCache, describe, open_cache
from oneshot_dp.extract.cache.row_values import (
  stored_norm,
  validate_and_cast_rows,
)
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  encode_shard,
  put_shard,
)
from oneshot_dp.extract.cache.write import (
  finalize,
  start_or_resume,
)
from tests.extract.cache.caches import (
  columns,
  make_info,
  make_rows,
  part,
  run_job,
)
from tests.extract.refusals import refused


def two_shards(dtype="float16", unit="example"):
  """A cache of 600 rows in two shards of 300."""
  backbone = {"name": "x", "preprocess": {"mean": (0.5, 0.5, 0.5)}}
  return make_info(
    600,
    20,
    embedding_dtype=dtype,
    unit=unit,
    backbone=backbone,
    views={"count": 2},
    shard_rows=300,
  )


@pytest.mark.parametrize(
  ("dtype", "unit"),
  [("float16", "example"), ("float32", "patient"), ("bfloat16", "patient")],
)
def test_cache_that_is_written_is_read_bit_by_bit(tmp_path, dtype, unit):
  info = two_shards(dtype, unit)
  expected = make_rows(info)
  stored = expected["embedding"].astype(info.columns()["embedding"][0])
  expected["embedding"] = stored
  expected["embedding_norm"] = stored_norm(stored)

  cache = run_job(tmp_path / "cache", info)

  found = columns(cache)
  assert set(found) == set(info.columns())
  for name, column in expected.items():
    np.testing.assert_array_equal(found[name], column)
  assert check_cache(tmp_path / "cache") == []


def test_cache_that_is_opened_again_is_equal(tmp_path):
  info = two_shards()

  cache = run_job(tmp_path / "cache", info)

  assert open_cache(tmp_path / "cache") == cache
  assert dataclasses.replace(cache.info, shards=()) == info
  assert (cache.n, cache.num_rows, cache.info.num_shards) == (600, 600, 2)


def test_cache_block_is_a_shard_of_aligned_columns(tmp_path):
  cache = run_job(tmp_path / "cache", two_shards())

  (block,) = cache.blocks([1])

  for column in block.values():
    assert len(column) == 300
    assert column.ctypes.data % 64 == 0


def test_cache_metadata_says_what_is_public_and_the_shards(tmp_path):
  info = two_shards()

  cache = run_job(tmp_path / "cache", info)

  data = json.loads((tmp_path / "cache" / INFO_FILE).read_text())
  assert data.keys() - {"shards", "fingerprint"} == info.public().keys()
  described = describe(cache)
  assert described["examples"] == "600 of 600"
  assert described["data set"] == "pets, split train"


def test_cache_whose_metadata_forge_lines_is_described_in_lines_of_ours():
  forged = "1\nok: every byte\x1b[31m"
  info = dataclasses.replace(
    two_shards(),
    computed_by={"libraries": {"numpy": forged}},
    views={"count": forged},
  )

  described = describe(FeatureCache(path="nowhere", info=info))

  assert described["computed by"] == r"numpy 1\nok: every byte\x1b[31m"
  assert not any("\n" in value for value in described.values())


def test_cache_is_readable_by_its_owner_alone(tmp_path):
  run_job(tmp_path / "cache", two_shards())

  assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
  for path in (tmp_path / "cache").iterdir():
    assert path.stat().st_mode & 0o777 == 0o600


def put_shards(out, job, shards):
  """A finished job whose shards have these rows."""
  start_or_resume(out, job)
  made = []
  for index, rows in enumerate(shards):
    data = encode_shard(rows, job, index)
    made.append(put_shard(out, job, *data))
  return finalize(out, job, made)


@pytest.fixture
def skipping_job():
  """A job of 16 images in two shards; 3 of them can be read, or none."""
  info = make_info(16)
  three = part(make_rows(info), range(3))
  rows = validate_and_cast_rows(three, info, "rows")
  return CacheJob(info=info), rows, part(rows, range(0))


def test_cache_with_a_shard_of_no_rows_is_read(tmp_path, skipping_job):
  job, rows, no_rows = skipping_job
  out = str(tmp_path / "cache")

  cache = put_shards(out, job, [no_rows, rows])

  assert cache.num_rows == 3
  assert cache.n == 16  # public: images that are skipped count
  assert [len(block["label"]) for block in cache.blocks()] == [3]
  assert check_cache(out) == []


def test_cache_of_skipped_images_alone_is_refused(tmp_path, skipping_job):
  job, _, no_rows = skipping_job

  with refused("every example was skipped"):
    put_shards(str(tmp_path / "cache"), job, [no_rows, no_rows])


def test_cache_facts_that_are_published_depend_on_no_row(tmp_path):
  info = make_info()

  one = run_job(tmp_path / "one", info, seed=0)
  other = run_job(tmp_path / "other", info, seed=1)

  assert one.info.shards != other.info.shards
  assert one.private_digest != other.private_digest
  assert one.info.public() == other.info.public() == info.public()
  assert one.info.fingerprint == other.info.fingerprint == info.fingerprint


@pytest.mark.parametrize(
  "changes",
  [
    {"dataset": "user"},
    {"split": "user"},
    {"unit": "user"},
    {"class_names": ("a", "b", "c", "d")},
  ],
  ids=str,
)
def test_cache_fingerprint_changes_with_all_that_is_public(changes):
  assert make_info(**changes).fingerprint != make_info().fingerprint


@pytest.mark.parametrize(
  ("changes", "fits"),
  [
    ({"views": {"count": 2}, "embedding_dtype": "float32"}, True),
    ({"d": 4}, False),
    ({"backbone": {"name": "vit_s16"}}, False),
  ],
)
def test_backbone_fingerprint_changes_with_what_a_head_must_fit(changes, fits):
  known = make_info().backbone_fingerprint

  found = make_info(**changes).backbone_fingerprint

  assert (found == known) == fits
