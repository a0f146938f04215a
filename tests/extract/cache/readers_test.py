"""Who else reads a cache, and what `verify` finds where hashes were fitted."""

import dataclasses
import hashlib

import numpy as np
import pytest

from oneshot_dp.configs.extract_config import EXAMPLE
from oneshot_dp.extract.cache import shard_file
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import check_cache, open_cache
from oneshot_dp.extract.cache.row_values import stored_norm
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  encode_shard,
)
from tests.extract.cache.caches import columns, import_rows, make_info, run_job


@pytest.mark.parametrize(
  ("split", "unit"), [("train", EXAMPLE), ("all", "patient"), ("2024", "user")]
)
def test_what_other_libraries_read(tmp_path, split, unit):
  import tensorflow_datasets as tfds
  from grain import python as grain

  info = make_info(600, 20, split=split, unit=unit, shard_rows=300)
  cache = run_job(tmp_path, info)
  mine = columns(cache)

  def same(found):
    assert set(found[0]) == set(mine)
    for name, column in mine.items():
      theirs = np.concatenate([block[name] for block in found])
      np.testing.assert_array_equal(theirs, column)

  builder = tfds.builder_from_directory(tmp_path)
  split = info.tfds_names[1]
  assert list(builder.as_data_source()) == [split]
  for wanted in (split, "all"):
    same(list(builder.as_data_source(split=wanted)))
  assert builder.info.splits[split].num_examples == 4
  files = [f"{tmp_path}/{shard.file}" for shard in cache.info.shards]
  source = grain.ArrayRecordDataSource(files)
  features = builder.info.features
  same([features.deserialize_example_np(source[i]) for i in range(4)])


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
def test_every_row_is_looked_at(out, rows, name, value, said):
  rows[name][270] = value
  forge(out, rows)
  problems = check_cache(out)
  assert any(said in problem for problem in problems)
  assert all("\n" not in problem for problem in problems)


def as_stated(out, **changes) -> None:
  """The first shard has the hash of the metadata, whatever it is."""
  data = (out / open_cache(out).info.shards[0].file).read_bytes()
  sha256 = hashlib.sha256(data).hexdigest()
  state(out, bytes=len(data), sha256=sha256, **changes)


def test_keys_blocks_counts_and_records(out, rows, monkeypatch):
  assert check_cache(out) == []
  keys = np.random.default_rng(0).integers(0, 2**64, (300, 2), np.uint64)
  forge(out, rows | {"image_key": keys})
  assert sum("image_key" in p for p in check_cache(out)) == 2  # blocks
  with monkeypatch.context() as patch:
    patch.setattr(shard_file, "BLOCK_ROWS", 100)
    forge(out, rows)
    assert any("rows in 3 blocks" in p for p in check_cache(out))
  forge(out, rows)
  assert check_cache(out) == []
  state(out, rows=299)
  assert any("the metadata say 299" in p for p in check_cache(out))

  from array_record.python import array_record_module

  path = out / open_cache(out).info.shards[0].file
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  writer.close()
  as_stated(out)
  assert any("0 rows in 0 blocks" in p for p in check_cache(out))
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  writer.write(b"\xff no block")
  writer.close()
  as_stated(out, blocks=1)
  assert any("(not a block of rows" in p for p in check_cache(out))
  options = "group_size:1,zstd"
  writer = array_record_module.ArrayRecordWriter(str(path), options)
  writer.write(bytes(1 << 26))
  writer.close()
  as_stated(out)
  assert any("(it is no ArrayRecord file" in p for p in check_cache(out))
  state(out, sha256="0" * 64)
  assert any("its SHA-256 is another" in p for p in check_cache(out))


def test_files_beside_it_and_shards_of_two_jobs(out):
  cache = import_rows(out, make_info(40, 20))
  forge(out, next(cache.blocks([0])), extra_identity="other")
  assert check_cache(out) == [f"{out}: its shards are of 2 jobs"]
  (out / "pets-train.array_record-00001-of-00002").write_bytes(b"x")
  (out / "features.json").write_text("{}")
  (out / "dataset_info.json").unlink()
  problems = check_cache(out)
  assert len(problems) == 4
  assert "00001-of-00002 is not one of the cache's shards" in problems[0]


def test_norms_have_the_same_bits_in_any_order():
  rng = np.random.default_rng(0)
  x = rng.standard_normal((50, 1000)).astype(np.float32)
  norm = stored_norm(x)
  exact = np.sqrt((x.astype(np.longdouble) ** 2).sum(axis=1))
  np.testing.assert_allclose(norm, exact, rtol=1.2e-7)
  np.testing.assert_array_equal(stored_norm(x[3:9]), norm[3:9])
  np.testing.assert_array_equal(stored_norm(np.asfortranarray(x)), norm)
