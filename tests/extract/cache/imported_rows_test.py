"""Rows that are imported are stored as they are, or nothing is left behind."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
)
from oneshot_dp.extract.cache.write import (
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
)
from tests.extract.refusals import refused
from tests.faults.harness import files_no_larger_than


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


def test_import_where_the_temporary_folder_is_full_is_one_line(tmp_path):
  info = make_info(50, 9)

  with (
    pytest.raises(RunError, match=r"cannot be written \(.*TMPDIR"),
    files_no_larger_than(1 << 15),  # a shard takes 64 KiB
  ):
    import_rows(tmp_path / "cache", info)

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
