"""What `verify` finds in a cache whose hashes were made to fit."""

import dataclasses
import hashlib
import pathlib

import numpy as np
import pytest

from oneshot_dp.extract.cache import shard_file
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.keys import embedding_keys
from oneshot_dp.extract.cache.read import check_cache, open_cache
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  encode_shard,
  kept_shard,
  stored_norm,
)
from oneshot_dp.extract.cache.write import write_cache
from tests.extract.cache.caches import (
  columns,
  imported,
  make_info,
  make_rows,
)

N = 300


@pytest.fixture
def out(tmp_path) -> pathlib.Path:
  info = make_info(N, 20, shard_rows=300)
  write_cache(tmp_path / "cache", info, [imported(make_rows(info))])
  return tmp_path / "cache"


def forge(out, changes) -> None:
  """The same cache of other rows, with the hashes that fit them."""
  cache = open_cache(out)
  job = CacheJob(info=cache.info, more="import")
  put_forged(out, job, columns(cache) | changes, 0)


def put_forged(out, job, rows, index) -> None:
  made, data = encode_shard(rows, job, index)
  (out / made.file).write_bytes(data)
  shards = list(job.info.shards)
  shards[index] = kept_shard(str(out), job, job.info.shard_name(index))
  write_info(out, dataclasses.replace(job.info, shards=tuple(shards)))


def write_info(out, info) -> None:
  (out / INFO_FILE).write_bytes(info.to_json())


def values(out, name):
  return columns(open_cache(out))[name].copy()


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
def test_every_row_is_looked_at(out, name, value, said):
  column = values(out, name)
  column[270] = value
  forge(out, {name: column})
  problems = check_cache(out)
  assert any(said in problem for problem in problems)
  assert all("\n" not in problem for problem in problems)


def test_keys_blocks_and_counts(out, monkeypatch):
  assert check_cache(out) == []
  keys = np.random.default_rng(0).integers(0, 2**64, (N, 2), np.uint64)
  forge(out, {"image_key": keys})
  assert sum("image_key" in p for p in check_cache(out)) == 2  # blocks
  with monkeypatch.context() as patch:
    patch.setattr(shard_file, "BLOCK_ROWS", 100)
    forge(out, {})
    assert any("rows in 3 blocks" in p for p in check_cache(out))
  forge(out, {"image_key": embedding_keys(values(out, "embedding"))})
  assert check_cache(out) == []
  info = open_cache(out).info
  wrong = dataclasses.replace(info.shards[0], rows=299)
  write_info(out, dataclasses.replace(info, shards=(wrong,)))
  assert any("the metadata say 299" in p for p in check_cache(out))


def test_files_beside_it(out):
  (out / "pets-train.array_record-00001-of-00002").write_bytes(b"x")
  (out / "features.json").write_text("{}")
  (out / "dataset_info.json").unlink()
  problems = check_cache(out)
  assert len(problems) == 3
  assert "00001-of-00002 is not one of the cache's shards" in problems[0]


def test_shards_of_two_jobs(tmp_path):
  info = make_info(40, 20)
  out = tmp_path / "cache"
  write_cache(out, info, [imported(make_rows(info))])
  found = open_cache(out)
  block = next(found.blocks([3]))
  put_forged(out, CacheJob(info=found.info, more="other"), block, 3)
  assert check_cache(out) == [f"{out}: its shards are of 2 jobs"]


def test_a_record_that_is_no_block(out):
  """Another file of records, with the hash that fits."""
  from array_record.python import array_record_module

  shard = open_cache(out).info.shards[0]
  path = out / shard.file
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  writer.write(b"\xff no block")
  writer.close()
  data = path.read_bytes()
  sha256 = hashlib.sha256(data).hexdigest()
  made = dataclasses.replace(shard, blocks=1, bytes=len(data), sha256=sha256)
  write_info(out, dataclasses.replace(open_cache(out).info, shards=(made,)))
  assert any("(not a block of rows" in p for p in check_cache(out))


def test_norms_have_the_same_bits_in_any_order():
  rng = np.random.default_rng(0)
  x = rng.standard_normal((50, 1000)).astype(np.float32)
  norm = stored_norm(x)
  exact = np.sqrt((x.astype(np.longdouble) ** 2).sum(axis=1))
  np.testing.assert_allclose(norm, exact, rtol=1.2e-7)
  np.testing.assert_array_equal(stored_norm(x[3:9]), norm[3:9])
  np.testing.assert_array_equal(stored_norm(np.asfortranarray(x)), norm)
