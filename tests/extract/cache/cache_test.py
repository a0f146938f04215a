"""The feature cache: what is written is read, or refused."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import check_cache, describe, open_cache
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
  write_cache,
)
from tests.extract.cache.caches import (
  columns,
  digest,
  import_rows,
  imported,
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


def test_cache_is_readable_by_its_owner_alone(tmp_path):
  run_job(tmp_path / "cache", two_shards())

  assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
  for path in (tmp_path / "cache").iterdir():
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("n", "d"), [(50, 9), (1, 1), (3, 16_384)])
def test_import_writes_the_same_bytes_from_blocks_of_any_size(tmp_path, n, d):
  info = make_info(n, d)
  rows = imported(make_rows(info))

  whole = import_rows(tmp_path / "whole", info)
  blocks = [part(rows, range(i, i + 7)) for i in range(0, n, 7)]
  write_cache(tmp_path / "blocks", info, blocks)

  assert digest(tmp_path / "whole") == digest(tmp_path / "blocks")
  assert whole.info.keys == "embedding"
  stored = rows["embedding"].astype(np.float16)
  np.testing.assert_array_equal(columns(whole)["embedding"], stored)
  assert check_cache(tmp_path / "whole") == []


def test_import_again_is_the_same_cache(tmp_path):
  info = make_info(50, 9)
  first = import_rows(tmp_path / "cache", info)
  before = digest(tmp_path / "cache")

  again = import_rows(tmp_path / "cache", info)

  assert again == first
  assert digest(tmp_path / "cache") == before


def test_import_of_other_rows_into_a_cache_is_refused(tmp_path):
  info = make_info(50, 9)
  import_rows(tmp_path / "cache", info)
  before = digest(tmp_path / "cache")
  labels = make_rows(info)["label"]

  with refused("holds other rows than these"):
    import_rows(tmp_path / "cache", info, label=(labels + 1) % 4)

  assert digest(tmp_path / "cache") == before


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"label": np.full(50, 4)}, r"example_id 0 has a label outside \[0, 4\)"),
    ({"label": np.full(50, -1)}, "has a label outside"),
    ({"label": np.zeros(50, "M8[s]")}, "label is datetime64"),
    ({"label": np.zeros(49, int)}, r"label is int64 \[49\]"),
    ({"embedding": np.full((50, 9), 1e6)}, "overflows float16"),
    ({"embedding": np.full((50, 9), -np.inf)}, "is not finite"),
    ({"embedding": np.full((50, 9), 1e-9)}, "id 0 .* underflows float16"),
    ({"embedding": np.full((50, 9), 1e-7)}, "underflows float16"),
    ({"embedding": np.full((50, 9), 1e-300)}, "underflows float16"),
    ({"example_id": np.arange(50) % 49}, "example_id 0 comes more than once"),
    ({"embedding": np.zeros((50, 8))}, r"embedding is float64 \[50, 8\]"),
    ({"embedding": np.zeros((50, 9), int)}, "embedding is int64"),
    ({"unit_id": np.zeros(50, int)}, "got columns .*unit_id"),
    ({"example_id": np.zeros(50, np.uint64)}, "example_id is uint64"),
    ({"image_key": np.zeros((50, 2), np.uint64)}, "image_key is made of"),
  ],
)
def test_import_of_bad_rows_leaves_nothing_behind(tmp_path, changes, said):
  with refused(said) as caught:
    import_rows(tmp_path / "cache", make_info(50, 9), **changes)

  assert not (tmp_path / "cache").exists()
  assert "1000000" not in str(caught.value)  # no value of a row


@pytest.mark.parametrize(
  ("dtype", "bits"),
  [
    (np.dtype("float16"), np.uint16(0x7C01)),
    (np.dtype(ml_dtypes.bfloat16), np.uint16(0x7F81)),
    (np.dtype("float32"), np.uint32(0x7F800001)),
    (np.dtype("float64"), np.uint64(0x7FF0000000000001)),
  ],
  ids=str,
)
def test_import_of_a_signaling_nan_is_refused_without_a_warning(
  tmp_path, dtype, bits
):
  info = make_info(50, 9, embedding_dtype="float32")
  embedding = np.ones((50, 9), dtype)
  embedding.view(bits.dtype)[3, 4] = bits

  with refused("is not finite"):
    import_rows(tmp_path / "cache", info, embedding=embedding)


@pytest.mark.parametrize(
  ("dtype", "scale"),
  [("float16", 1e-4), ("float32", 1e-30), ("bfloat16", 1e-30)],
)
def test_import_stores_small_values_that_keep_their_precision(
  tmp_path, dtype, scale
):
  """Among values of usual size, any number of tiny ones is no underflow."""
  info = make_info(50, 9, embedding_dtype=dtype)
  embedding = scale * np.random.default_rng(0).standard_normal((50, 9))
  embedding[:, 0] = scale * 3
  embedding[7] = 0  # and zeros stay zeros
  embedding[8, 1:] = scale * 1e-9

  import_rows(tmp_path / "cache", info, embedding=embedding)
  assert check_cache(tmp_path / "cache") == []


@pytest.mark.parametrize("shard_rows", [8, 50])
def test_import_of_an_id_twice_is_refused_whatever_the_shards(
  tmp_path, shard_rows
):
  info = make_info(50, 9, shard_rows=shard_rows)
  ids = np.arange(50)
  ids[41] = 3

  with refused("example_id 3 comes more than once"):
    import_rows(tmp_path / "cache", info, example_id=ids)

  assert not (tmp_path / "cache").exists()


@pytest.fixture
def too_few_rows():
  """The first 20 of 50 rows."""
  return part(imported(make_rows(make_info(50, 9))), range(20))


def test_import_whose_iterator_fails_leaves_nothing_behind(
  tmp_path, too_few_rows
):
  def failing():
    yield too_few_rows
    raise KeyError("empty")

  with pytest.raises(KeyError, match="empty"):
    write_cache(tmp_path / "cache", make_info(50, 9), failing())

  assert not (tmp_path / "cache").exists()


def test_import_of_too_few_rows_leaves_nothing_behind(tmp_path, too_few_rows):
  message = "20 rows came, and source_num_examples is 50"

  with refused(message):
    write_cache(tmp_path / "cache", make_info(50, 9), [too_few_rows])

  assert not (tmp_path / "cache").exists()


def test_import_that_fails_keeps_an_empty_folder_that_was_there(
  tmp_path, too_few_rows
):
  (tmp_path / "cache").mkdir()

  with refused("20 rows came"):
    write_cache(tmp_path / "cache", make_info(50, 9), [too_few_rows])

  assert list((tmp_path / "cache").iterdir()) == []


def test_import_that_fails_keeps_what_a_killed_one_began(
  tmp_path, too_few_rows
):
  info = make_info(50, 9)
  job = CacheJob(
    info=dataclasses.replace(info, keys="embedding"), extra_identity="import"
  )
  start_or_resume(str(tmp_path / "cache"), job)
  before = digest(tmp_path / "cache")

  with refused("20 rows came"):
    write_cache(tmp_path / "cache", info, [too_few_rows])

  assert digest(tmp_path / "cache") == before


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


def in_fifths(path):
  """The five parts of a cache, each a fifth of it."""
  return [open_cache(path, Part(a, a + 20)) for a in range(0, 100, 20)]


@pytest.mark.parametrize("unit", ["example", "patient"])
def test_cache_parts_have_each_row_once(tmp_path, unit):
  info = make_info(500, unit=unit, shard_rows=64)
  whole = columns(run_job(tmp_path, info))

  parts = in_fifths(tmp_path)

  rows = [columns(cache) for cache in parts]
  ids = np.concatenate([found["example_id"] for found in rows])
  assert sorted(ids) == sorted(whole["example_id"])
  for cache, found in zip(parts, rows, strict=True):
    assert cache.num_rows == len(found["label"])


def test_cache_parts_hold_units_whole(tmp_path):
  run_job(tmp_path, make_info(500, unit="patient", shard_rows=64))

  seen = set()
  for cache in in_fifths(tmp_path):
    units = set(columns(cache)["unit_id"].tolist())
    assert not units & seen
    seen |= units


def test_cache_part_says_a_public_number_of_rows(tmp_path):
  """How many rows a part has depends on rows; its share of all does not."""
  run_job(tmp_path, make_info(500, shard_rows=64))

  parts = in_fifths(tmp_path)

  assert [cache.n for cache in parts] == [100] * 5
  assert len({cache.private_digest for cache in parts}) == 5
  assert parts[0].name == f"{tmp_path}[:20%]"


def test_cache_part_of_a_row_depends_on_its_image_alone(tmp_path):
  """One image more or less moves no other; a copy goes where it is."""
  run_job(tmp_path / "all", make_info(300))
  run_job(tmp_path / "fewer", make_info(280, shard_rows=64))
  known = make_rows(make_info(300))["image_key"][:280].tolist()
  half = Part(0, 50)

  of_all = columns(open_cache(tmp_path / "all", half))["image_key"].tolist()
  of_fewer = columns(open_cache(tmp_path / "fewer", half))["image_key"].tolist()

  assert [key for key in of_all if key in known] == of_fewer
