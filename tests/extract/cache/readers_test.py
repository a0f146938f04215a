"""Who else reads a cache, and what `verify` finds where hashes were fitted."""

import dataclasses
import hashlib
import tracemalloc

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE
from oneshot_dp.extract.cache import shard_file
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.extract.cache.row_values import stored_norm
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  encode_shard,
)
from tests.extract.cache.caches import columns, import_rows, make_info, run_job

OTHER_SHA256 = "0".zfill(64)


@pytest.fixture(
  params=[("train", EXAMPLE), ("all", "patient"), ("2024", "user")]
)
def cache(request, tmp_path):
  """A cache of two shards, of a split and a unit."""
  split, unit = request.param
  info = make_info(600, 20, split=split, unit=unit, shard_rows=300)
  return run_job(tmp_path, info)


def assert_blocks_are_of(cache, blocks):
  mine = columns(cache)
  assert set(blocks[0]) == set(mine)
  for name, column in mine.items():
    theirs = np.concatenate([block[name] for block in blocks])
    np.testing.assert_array_equal(theirs, column)


def test_cache_is_read_by_tfds_as_its_split_and_as_all(cache):
  import tensorflow_datasets as tfds

  split = cache.info.tfds_names[1]
  builder = tfds.builder_from_directory(cache.path)

  assert list(builder.as_data_source()) == [split]
  assert builder.info.splits[split].num_examples == 4
  for wanted in (split, "all"):
    assert_blocks_are_of(cache, list(builder.as_data_source(split=wanted)))


@pytest.mark.slow
def test_cache_is_read_by_grain_block_by_block(cache):
  import tensorflow_datasets as tfds
  from grain import python as grain

  features = tfds.builder_from_directory(cache.path).info.features
  files = [f"{cache.path}/{shard.file}" for shard in cache.info.shards]

  source = grain.ArrayRecordDataSource(files)

  blocks = [features.deserialize_example_np(source[i]) for i in range(4)]
  assert_blocks_are_of(cache, blocks)


@pytest.fixture
def out(tmp_path):
  return tmp_path / "cache"


@pytest.fixture
def rows(out):
  """Those of a cache of one shard of two blocks."""
  info = make_info(300, 20, shard_rows=300)
  return columns(import_rows(out, info))


def forge(out, rows, extra_identity="import") -> None:
  """Other rows in the first shard, with the hashes that fit them."""
  job = CacheJob(info=open_cache(out).info, extra_identity=extra_identity)
  made, data = encode_shard(rows, job, 0)
  (out / made.file).write_bytes(data)
  state(out, **vars(made))


def state(out, **changes) -> None:
  """Changes what the metadata say of the first shard."""
  info = open_cache(out).info
  first = dataclasses.replace(info.shards[0], **changes)
  info = dataclasses.replace(info, shards=(first, *info.shards[1:]))
  (out / INFO_FILE).write_bytes(info.to_json())


@pytest.mark.parametrize(
  ("name", "value", "said"),
  [
    ("embedding", np.nan, "an embedding that is not finite"),
    ("embedding", 0.5, "an embedding_norm that is not its norm"),
    ("embedding_norm", 0.5, "an embedding_norm that is not its norm"),
    ("label", 4, r"a label outside [0, 4)"),
    ("label", -1, r"a label outside [0, 4)"),
    ("example_id", 8, "1 ids come more than once, the first is example_id 8"),
    ("image_key", 5, "an image_key that is not its key"),
  ],
)
def test_check_cache_finds_a_bad_value_in_any_row(out, rows, name, value, said):
  rows[name][270] = value
  forge(out, rows)

  problems = check_cache(out)

  assert any(said in problem for problem in problems)
  assert all("\n" not in problem for problem in problems)


def fit_metadata(out, **changes) -> None:
  """Gives the metadata the first shard's size and hash, whatever it is."""
  data = (out / open_cache(out).info.shards[0].file).read_bytes()
  sha256 = hashlib.sha256(data).hexdigest()
  state(out, bytes=len(data), sha256=sha256, **changes)


def write_records(out, records, options="group_size:1,uncompressed") -> None:
  """Writes these records as the first shard."""
  from array_record.python import array_record_module

  path = out / open_cache(out).info.shards[0].file
  writer = array_record_module.ArrayRecordWriter(str(path), options)
  for record in records:
    writer.write(record)
  writer.close()


def finds(out, text) -> bool:
  """Whether a problem is found that says this."""
  return any(text in problem for problem in check_cache(out))


def test_rows_of_a_shard_are_read_only_where_they_are_as_many_as_stated(
  out, rows
):
  forge(out, rows)
  state(out, rows=2**70)

  with pytest.raises(InputError, match="another number of rows"):
    next(open_cache(out).blocks())


def test_check_cache_finds_nothing_wrong_with_a_sound_cache(out, rows):
  forge(out, rows)  # with its own rows

  assert check_cache(out) == []


def test_check_cache_finds_keys_of_other_images_in_each_block(out, rows):
  keys = np.random.default_rng(0).integers(0, 2**64, (300, 2), np.uint64)
  forge(out, rows | {"image_key": keys})

  problems = check_cache(out)

  assert len([text for text in problems if "image_key" in text]) == 2


def test_check_cache_finds_blocks_of_another_size(out, rows, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(shard_file, "BLOCK_ROWS", 100)
    forge(out, rows)

    assert finds(out, "rows in 3 blocks")


def test_check_cache_finds_another_number_of_rows(out, rows):
  forge(out, rows)
  state(out, rows=299)

  assert finds(out, "the metadata say 299")


def test_check_cache_finds_a_shard_without_blocks(out, rows):
  write_records(out, [])
  fit_metadata(out)

  assert finds(out, "0 rows in 0 blocks")


def test_check_cache_finds_a_record_that_is_no_block(out, rows):
  write_records(out, [b"\xff no block"])
  fit_metadata(out, blocks=1)

  assert finds(out, "(not a block of rows")


def test_check_cache_unfolds_no_compressed_record(out, rows):
  write_records(out, [bytes(1 << 26)], "group_size:1,zstd")
  fit_metadata(out)

  tracemalloc.start()
  found = finds(out, "(it is not an ArrayRecord file")
  _, most_bytes = tracemalloc.get_traced_memory()
  tracemalloc.stop()

  assert found
  assert most_bytes < 1 << 24


def test_check_cache_finds_another_hash(out, rows):
  state(out, sha256=OTHER_SHA256)

  assert finds(out, "its SHA-256 is another")


def test_check_cache_finds_shards_of_two_jobs(out):
  cache = import_rows(out, make_info(40, 20))

  forge(out, next(cache.blocks([0])), extra_identity="other")

  assert check_cache(out) == [f"{out}: its shards are of 2 jobs"]


def test_check_cache_finds_files_that_are_strange_or_gone(out):
  import_rows(out, make_info(40, 20))
  (out / "pets-train.array_record-00001-of-00002").write_bytes(b"x")
  (out / "features.json").write_text("{}")
  (out / "dataset_info.json").unlink()

  problems = check_cache(out)

  assert len(problems) == 3
  assert "00001-of-00002 is not one of the cache's shards" in problems[0]


def test_stored_norm_has_the_same_bits_in_any_order():
  rng = np.random.default_rng(0)
  x = rng.standard_normal((50, 1000)).astype(np.float32)
  exact = np.sqrt((x.astype(np.longdouble) ** 2).sum(axis=1))

  norm = stored_norm(x)

  np.testing.assert_allclose(norm, exact, rtol=1.2e-7)
  np.testing.assert_array_equal(stored_norm(x[3:9]), norm[3:9])
  np.testing.assert_array_equal(stored_norm(np.asfortranarray(x)), norm)
