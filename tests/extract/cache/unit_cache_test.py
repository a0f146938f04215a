"""Caches whose privacy unit is coarser than an example."""

import dataclasses

import numpy as np
import pytest
from array_record.python import array_record_module
from tensorflow_datasets.proto import tf_example_pb2

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.block import BlockCodec
from oneshot_dp.extract.cache.checked_rows import BlockBuilder, Skipped
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.summary import describe
from oneshot_dp.extract.cache.verify import verify_cache
from tests.extract.caches import (
  make_identity,
  make_rows,
  part,
  write_cache,
  write_rows,
)
from tests.extract.refusals import refused

USERS = make_identity(20, privacy_unit="user")


def test_nothing_but_the_blocks_depends_on_the_units(tmp_path):
  """Not how many rows a unit has, nor how many units there are."""
  rows = make_rows(USERS)
  said = []
  for name, units in (("a", np.zeros(20, int)), ("b", np.arange(20))):
    out = tmp_path / name
    write_rows(out, USERS, dataclasses.replace(rows, unit_id=units))
    assert verify_cache(out).ok
    files = {
      file.name: file.read_text()
      for file in out.glob("*.json")
      if file.name != "shards.json"  # their SHA-256; stays with the blocks
    }
    said.append((files, describe(open_cache(out)), str(verify_cache(out))))
  assert said[0] == said[1]
  assert "privacy unit          user" in said[0][1]


@pytest.mark.parametrize("dtype", [None, np.int32, np.int16])
def test_verify_finds_units_that_are_missing_or_other(tmp_path, dtype):
  out = tmp_path / "c"
  write_cache(out, USERS)
  cache = open_cache(out)
  codec = BlockCodec(USERS.feature_dim, "float16", has_units=True)
  (block,) = cache.shard_blocks(1)
  assert block.unit_id is not None
  example = tf_example_pb2.Example.FromString(codec.encode(block))
  units = example.features.feature.pop("unit_id")
  if dtype is not None:
    units.bytes_list.value[0] = block.unit_id.astype(dtype).tobytes()
    example.features.feature["unit_id"].CopyFrom(units)
  writer = array_record_module.ArrayRecordWriter(
    str(out / cache.shards[1].file), "group_size:1,uncompressed"
  )
  writer.write(example.SerializeToString())
  writer.close()
  problems = verify_cache(out).problems
  assert any("not a block of rows" in p or "same number" in p for p in problems)
  with refused("damaged"):
    list(cache.shard_blocks(1))


@pytest.mark.parametrize(
  ("identity", "units", "message"),
  [
    (USERS, None, "rows without unit_id.*'user'"),
    (make_identity(20), np.arange(20), "rows with unit_id.*'example'"),
    (USERS, np.arange(20, dtype=np.uint64), "unit_id has dtype uint64"),
  ],
)
def test_rows_that_do_not_fit_are_refused(identity, units, message):
  rows = dataclasses.replace(make_rows(USERS), unit_id=units)
  with refused(message):
    list(BlockBuilder(identity, "shard").blocks([rows]))


def test_skipped_examples_need_no_unit():
  rows = make_rows(USERS)
  builder = BlockBuilder(USERS, "shard")
  stream = [part(rows, slice(0, 4)), Skipped(4), part(rows, slice(5, 20))]
  (block,) = builder.blocks(stream)
  assert block.unit_id is not None
  assert rows.unit_id is not None
  expected = np.delete(rows.unit_id, 4)
  np.testing.assert_array_equal(block.unit_id, expected)


@pytest.mark.parametrize("name", ["", "user\n", "<user>", "a|b", "u" * 41])
def test_a_unit_has_a_short_name(name):
  with pytest.raises(InputError, match="must be a short public one"):
    make_identity(20, privacy_unit=name)
