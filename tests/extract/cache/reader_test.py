import hashlib
import json
import re
import shutil
import threading
import time

import hypothesis
import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import strategies as st

from oneshot_dp.extract.cache.block import EMBEDDING_DTYPES, stored_norm
from oneshot_dp.extract.cache.content_keys import row_keys
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.summary import describe, public_metadata
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.extract.cache.writer import begin
from tests.extract.caches import (
  digest,
  make_identity,
  make_rows,
  write_cache,
  write_rows,
)
from tests.extract.image_jobs import columns
from tests.extract.refusals import refused


def _readers():
  return [t for t in threading.enumerate() if t.name == "feature-cache-reader"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  # 5 shards of 3 blocks: more than any prefetch of these tests.
  out = tmp_path_factory.mktemp("written") / "c"
  write_cache(out, make_identity(n=3000, shard_rows=600), batch_size=600)
  return out


@pytest.fixture
def cache(written, tmp_path):
  """A copy of it, which a test may damage."""
  return open_cache(shutil.copytree(written, tmp_path / "c"))


@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(
  dtype=st.sampled_from(sorted(EMBEDDING_DTYPES)),
  n=st.integers(1, 900),
  d=st.integers(1, 9),
  shard_rows=st.sampled_from([7, 256, 300, 512, 2048]),
  size=st.integers(1, 400),
  unit=st.sampled_from(["example", "user"]),
)
def test_round_trip(tmp_path_factory, dtype, n, d, shard_rows, size, unit):
  hypothesis.assume(n / shard_rows < 20)
  fields = {"embedding_dtype": dtype, "privacy_unit": unit}
  identity = make_identity(n, d, shard_rows=shard_rows, **fields)
  out = tmp_path_factory.mktemp("cache") / "c"
  write_cache(out, identity, size)
  rows = make_rows(identity)
  cache = open_cache(out)
  blocks = list(cache.blocks(prefetch=2))
  assert len(cache) == n
  assert all(len(b) <= 256 for b in blocks)
  stored = rows.embedding.astype(EMBEDDING_DTYPES[dtype])
  units = {} if unit == "example" else {"unit_id": rows.unit_id}
  expected = {
    "embedding": stored,
    "embedding_norm": stored_norm(stored),
    "label": rows.label.astype(np.int32),
    "example_id": rows.example_id,
  } | units
  read = columns(cache)
  assert read.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(read[name], array, strict=True)


@pytest.mark.parametrize("dtype", sorted(EMBEDDING_DTYPES))
def test_tfds_reads_it_with_no_code_of_ours(tmp_path, dtype):
  identity = make_identity(
    n=600,
    shard_rows=300,
    embedding_dtype=dtype,
    split="train[:50%]",
    privacy_unit="user",
  )
  write_cache(tmp_path, identity)
  builder = tfds.builder_from_directory(tmp_path)
  assert builder.info.full_name == "pets/3.2.0"
  source = builder.as_data_source("train_50")
  rows = make_rows(identity)
  for name in ("embedding", "label", "example_id", "unit_id"):
    read = np.concatenate([source[i][name] for i in range(len(source))])
    expected = getattr(rows, name).astype(read.dtype)
    np.testing.assert_array_equal(read, expected)
    if name == "embedding":
      assert read.dtype == EMBEDDING_DTYPES[dtype]


def test_shards_in_any_order_each_once(cache):
  order = [3, 0, 4]
  first = [int(b.example_id[0]) for b in cache.blocks(order)]
  assert first == [s * 600 + b for s in order for b in (0, 256, 512)]
  with pytest.raises(ValueError, match="twice"):
    cache.blocks([0, 1, 0])
  with pytest.raises(ValueError, match="not within 0 … 4"):
    cache.blocks([5])
  with pytest.raises(ValueError, match="prefetch=0"):
    cache.blocks(prefetch=0)


@pytest.mark.parametrize("prefetch", [1, 2, 4, 100])
def test_every_row_once_whatever_the_prefetch(cache, prefetch):
  ids = [i for b in cache.blocks(prefetch=prefetch) for i in b.example_id]
  assert ids == list(range(3000))
  assert not _readers()


@pytest.mark.parametrize("prefetch", [1, 4])
def test_reads_ahead_no_further_than_prefetch(cache, prefetch, monkeypatch):
  read = []
  whole = type(cache).read

  def counting(self, order):
    for block in whole(self, order):
      read.append(block.example_id[0])
      yield block

  monkeypatch.setattr(type(cache), "read", counting)
  blocks = cache.blocks(prefetch=prefetch)
  for taken in range(1, 4):
    next(blocks)
    deadline = time.monotonic() + 60
    while len(read) < taken + prefetch and time.monotonic() < deadline:
      time.sleep(0.001)
    time.sleep(0.05)
    assert len(read) == taken + prefetch
  blocks.close()


@pytest.mark.parametrize(
  ("end", "taken"),
  [("closed", 0), ("closed", 5), ("abandoned", 1), ("thrown into", 5)],
)
def test_the_thread_ends_with_the_iterator(cache, end, taken):
  blocks = cache.blocks(prefetch=2)
  for _ in range(taken):
    next(blocks)
  assert len(_readers()) == (taken > 0)
  if end == "closed":
    blocks.close()
  elif end == "abandoned":
    del blocks
  else:
    with pytest.raises(KeyboardInterrupt):
      blocks.throw(KeyboardInterrupt())
  assert not _readers()


def _flip(path, position=None):
  data = bytearray(path.read_bytes())
  data[len(data) // 4 if position is None else position] ^= 1
  path.write_bytes(data)


def test_a_flipped_byte_surfaces_in_the_consumer(tmp_path):
  write_cache(tmp_path / "c", make_identity(n=3000, d=64, shard_rows=600))
  cache = open_cache(tmp_path / "c")
  file = cache.path / cache.shards[2].file
  _flip(file)
  blocks = cache.blocks()
  for _ in range(6):  # the two shards before it are whole
    next(blocks)
  with refused(re.escape(f"{file}: damaged (")) as e:
    list(blocks)
  assert "extract it again" in str(e.value)
  assert "0x" not in str(e.value)  # a hash of private bytes
  assert not _readers()


def test_a_shard_with_other_rows_is_damaged(tmp_path):
  for name, n in (("a", 3000), ("b", 2999)):
    write_cache(tmp_path / name, make_identity(n=n, d=64, shard_rows=600))
  a, b = open_cache(tmp_path / "a"), open_cache(tmp_path / "b")
  (a.path / a.shards[4].file).write_bytes(
    (b.path / b.shards[4].file).read_bytes()
  )
  with refused("599 rows, not 600"):
    list(a.blocks())


def test_a_shard_of_another_cache_of_the_same_size_is_found(tmp_path):
  identity = make_identity(n=3000, d=64, shard_rows=600)
  for name in ("a", "b"):
    rows = make_rows(identity)
    rows.embedding[2999] += name == "b"
    write_rows(tmp_path / name, identity, rows)
  a, b = open_cache(tmp_path / "a"), open_cache(tmp_path / "b")
  list(a.blocks())
  shutil.copy2(b.path / b.shards[4].file, a.path / a.shards[4].file)
  blocks = a.blocks()
  with refused(r"00004-of-00005: its SHA-256 is anot"):
    list(blocks)
  with refused(r"00004-of-00005: its SHA-256 is anot"):
    list(open_cache(a.path).blocks([4, 1]))


def test_what_was_hashed_is_hashed_again_once_it_is_touched(cache, monkeypatch):
  hashed = []
  digest_of = hashlib.file_digest
  monkeypatch.setattr(
    hashlib, "file_digest", lambda f, n: hashed.append(n) or digest_of(f, n)
  )
  for touched in (5, 1, 1):
    list(cache.blocks())
    assert len(hashed) == touched
    hashed.clear()
    (cache.path / cache.shards[2].file).touch()


def test_a_truncated_shard_is_damaged_if_it_shrinks_while_open(cache):
  file = cache.path / cache.shards[0].file
  file.write_bytes(file.read_bytes()[:1000])
  with refused("damaged"):
    next(cache.blocks())
  with refused(r"1000 bytes, not \d+; restore"):
    open_cache(cache.path)


def test_what_is_not_a_cache_is_said_to_be(tmp_path):
  with refused("no such directory"):
    open_cache(tmp_path / "none")
  (tmp_path / "notes.txt").write_text("")
  with refused("not a feature cache"):
    open_cache(tmp_path)
  begin(tmp_path / "c", make_identity())
  with refused("not a finished cache; re-run the extr"):
    open_cache(tmp_path / "c")


@pytest.mark.parametrize(
  ("file", "content", "message"),
  [
    ("pets-train.array_record-00001-of-00005", None, "missing; restore"),
    ("pets-train.content_keys-00001-of-00005", None, "missing; restore"),
    ("cache_info.json", {"format_version": 1}, "with 3000 rows, format 1; res"),
    ("cache_info.json", {"format_version": 3}, "format_version=3 is not supp"),
    ("cache_info.json", {"num_examples": 2999}, "fingerprints do not fit"),
    ("shards.json", None, "shards.json: missing"),
    ("shards.json", "{", "shards.json is damaged (Expecting"),
    ("shards.json", "[]", "shards.json is damaged (Expected `object`"),
    ("shards.json", {"shards": [{}]}, "`file` - at `$.shards[0]`"),
    ("shards.json", {"shards": []}, "0 shards with 0 rows"),
  ],
)
def test_damage_is_named_on_opening(cache, file, content, message):
  path = cache.path / file
  if content is None:
    path.unlink()
  elif isinstance(content, str):
    path.write_text(content)
  else:
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
  with refused(re.escape(message)) as caught:
    open_cache(cache.path)
  assert str(cache.path) in str(caught.value)


def test_keys_are_those_of_the_rows_and_damage_to_them_is_found(cache):
  keys = np.concatenate(list(cache.key_blocks()))
  stored = np.concatenate([b.embedding for b in cache.blocks()])
  assert keys.shape == (len(cache), 1, 2)
  np.testing.assert_array_equal(keys, row_keys(stored, None))
  file = cache.path / cache.shards[3].keys_file
  _flip(file, 5)
  with refused("keys-00003-of-00005: damaged"):
    list(open_cache(cache.path).key_blocks())
  (problem,) = verify_cache(cache.path).problems
  assert "keys-00003-of-00005: damaged (its SHA-256 is another)" in problem


def test_reading_changes_nothing(cache):
  before = digest(cache.path)
  list(cache.blocks())
  assert digest(cache.path) == before


def test_summary_is_public(cache):
  data = json.loads(json.dumps(public_metadata(cache)))
  assert data["num_examples"] == 3000
  assert data["fingerprint"] == cache.fingerprint
  assert "sha256" not in data
  assert "skipped_example_ids" not in data
  text = describe(cache)
  assert "3,000 of 3,000 (0 skipped)" in text
  assert cache.fingerprint in text
  for shard in cache.shards:
    assert shard.sha256 not in text + json.dumps(data)
