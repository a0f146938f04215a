import contextlib
import json
import shutil

import numpy as np
import pytest
from array_record.python import array_record_module

from oneshot_dp.extract.cache.block import Block, columns, stored_norm
from oneshot_dp.extract.cache.checked_rows import Skipped
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.shard_writer import write_shard
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.extract.cache.writer import begin, finish
from oneshot_dp.extract.storage.durable_files import file_sha256
from tests.extract.caches import make_identity, make_rows, part, write_cache
from tests.extract.refusals import refused


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  out = tmp_path_factory.mktemp("whole") / "c"
  write_cache(out, make_identity(n=1000, d=64, shard_rows=300))
  return out


@pytest.fixture
def cache(whole, tmp_path):
  shutil.copytree(whole, tmp_path / "c")
  return open_cache(tmp_path / "c")


def test_a_whole_cache_is_ok(whole):
  done = []
  report = verify_cache(whole, lambda *step: done.append(step))
  assert report.ok
  assert str(report) == "ok: 4 shards, 1,000 rows"
  assert done == [(i, 4) for i in range(1, 5)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_a_cache_with_skipped_examples_is_ok(tmp_path, dtype):
  identity = make_identity(embedding_dtype=dtype)
  begin(tmp_path, identity)
  rows = make_rows(identity)
  write_shard(tmp_path, identity, 0, [Skipped(i) for i in range(8)])
  for i in (1, 2):
    indices = identity.shard_range(i)
    write_shard(tmp_path, identity, i, [part(rows, indices)])
  finish(tmp_path, identity)
  assert str(verify_cache(tmp_path)) == "ok: 3 shards, 12 rows"


def _flip(path, position):
  data = bytearray(path.read_bytes())
  data[position] ^= 1
  path.write_bytes(data)


@pytest.mark.parametrize("position", [0, 30, 70, 5_000, 20_000, -1])
def test_any_flipped_byte_is_found(cache, position):
  file = cache.path / cache.shards[1].file
  _flip(file, position)
  (first, *_) = verify_cache(cache.path).problems
  assert first.startswith((f"{file}: its SHA-256 is", f"{file}: damaged ("))


def test_every_problem_is_found(cache):
  files = [cache.path / shard.file for shard in cache.shards]
  _flip(files[0], 5000)
  files[1].write_bytes(files[1].read_bytes()[:-1])
  files[2].unlink()
  (cache.path / "features.json").unlink()
  text = str(verify_cache(cache.path))
  for problem in (
    f"{files[0]}: damaged (",
    f"{files[1]}: {cache.shards[1].bytes - 1} bytes, not",
    f"{files[2]}: missing",
    f"{cache.path / 'features.json'}: missing or not what TFDS must be told",
  ):
    assert problem in text


def test_swapped_shards_are_found(cache):
  one, other = (cache.path / shard.file for shard in cache.shards[:2])
  one.rename(cache.path / "x")
  other.rename(one)
  (cache.path / "x").rename(other)
  problems = verify_cache(cache.path).problems
  for file, problem in zip((one, other), problems, strict=True):
    assert problem.startswith(f"{file}: its SHA-256 is another")


def test_a_shard_of_another_cache_is_found(cache):
  (cache.path / "pets-test.array_record-00000-of-00001").write_text("")
  (problem,) = verify_cache(cache.path).problems
  assert problem.endswith("00001: not one of the cache's shards")


@contextlib.contextmanager
def _edited(path):
  data = json.loads(path.read_text())
  yield data
  path.write_text(json.dumps(data))


def test_edited_tfds_metadata_is_found(cache):
  with _edited(cache.path / "dataset_info.json") as data:
    data["splits"][0]["shardLengths"][0] = "1"
  (problem,) = verify_cache(cache.path).problems
  assert "dataset_info.json: missing or not what TFDS" in problem


def test_edited_skipped_ids_are_found(cache):
  with _edited(cache.path / "cache_info.json") as data:
    data["skipped_example_ids"] = [3]
  text = str(verify_cache(cache.path))
  assert "its skipped ids are not the shards'" in text
  assert "example_id 3" in text


@pytest.mark.parametrize("field", ["rows", "first_index", "file"])
def test_edited_shards_json_is_refused(cache, field):
  with _edited(cache.path / "shards.json") as data:
    data["shards"][0][field] = data["shards"][3][field]
  with refused(r"shards\.json"):
    verify_cache(cache.path)


def _forge(cache, **arrays):
  """Rewrites shard 1 as a careful forger does: the checksum fits."""
  (old, *rest) = cache.shard_blocks(1)
  fields = {name: np.array(value) for name, value in columns(old).items()}
  for name, (index, value) in arrays.items():
    fields[name][index] = value
  if "embedding" in arrays and "embedding_norm" not in arrays:
    fields["embedding_norm"] = stored_norm(fields["embedding"])
  file = cache.path / cache.shards[1].file
  codec = cache.info.codec()
  writer = array_record_module.ArrayRecordWriter(
    str(file), "group_size:1,uncompressed"
  )
  for block in (Block(**fields), *rest):
    writer.write(codec.encode(block))
  writer.close()
  with _edited(cache.path / "shards.json") as data:
    data["shards"][1]["sha256"] = file_sha256(file)
  return file


@pytest.mark.parametrize(
  ("arrays", "problem"),
  [
    ({"embedding": ((7, 1), np.nan)}, "307 has an embedding that is not fini"),
    ({"embedding": ((7, 1), np.inf)}, "307 has an embedding that is not fini"),
    ({"label": (7, 4)}, "307 has a label outside [0, 4)"),
    ({"label": (7, -1)}, "307 has a label outside [0, 4)"),
    ({"embedding_norm": (7, 1.0)}, "307 has an embedding_norm that is not its"),
    ({"embedding_norm": (7, np.nan)}, "307 has an embedding_norm that is not"),
  ],
)
def test_bad_rows_are_found_behind_a_good_checksum(cache, arrays, problem):
  file = _forge(cache, **arrays)
  (found,) = verify_cache(cache.path).problems
  assert found.startswith(f"{file}: example_id {problem}")


def test_a_norm_that_is_off_by_one_bit_is_found(cache):
  norm = next(cache.shard_blocks(1)).embedding_norm[7]
  _forge(cache, embedding_norm=(7, np.nextafter(norm, np.float32(0))))
  (found,) = verify_cache(cache.path).problems
  assert "307 has an embedding_norm" in found


def test_a_row_counted_twice_across_shards_is_found(cache):
  _forge(cache, example_id=(7, 2))
  (found,) = verify_cache(cache.path).problems
  assert found.endswith("1 ids come more than once, the first is example_id 2")


def test_problems_quote_no_label_and_no_embedding(cache):
  _forge(cache, label=(7, 31337), embedding=((8, 1), 4242.0))
  # Whose folder may have any number.
  text = str(verify_cache(cache.path)).replace(str(cache.path), "")
  assert "31337" not in text
  assert "4242" not in text
