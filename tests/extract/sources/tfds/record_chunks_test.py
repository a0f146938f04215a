"""Headers of chunks are found wherever ArrayRecord's writer puts them."""

import numpy as np
import pytest
from array_record.python import array_record_module

from oneshot_dp.extract.sources.tfds.record_chunks import check_chunks
from tests.extract.refusals import refused

BOMB = 1 << 27


def write_records(path, records, options):
  writer = array_record_module.ArrayRecordWriter(str(path), options)
  for record in records:
    writer.write(record)
  writer.close()


@pytest.mark.parametrize(
  "options",
  [
    "group_size:1,zstd",
    "group_size:16,brotli",
    "group_size:1,transpose:true",
    "group_size:1,pad_to_block_boundary:true",
  ],
)
def test_check_chunks_finds_the_last_record_whatever_is_before(
  tmp_path, options
):
  # Random bytes of many lengths: chunks begin and end anywhere in blocks.
  rng = np.random.default_rng(0)
  sizes = rng.integers(0, 3000, 400)
  records = [rng.bytes(size) for size in sizes]
  path = tmp_path / "sound"
  write_records(path, records, options)
  check_chunks(str(path), path.stat().st_size)
  write_records(tmp_path / "bomb", [*records, bytes(BOMB)], options)

  with refused("'.*bomb': a chunk unfolds from"):
    check_chunks(str(tmp_path / "bomb"), (tmp_path / "bomb").stat().st_size)


def test_check_chunks_takes_large_records_that_are_stored_as_such(tmp_path):
  path = tmp_path / "large"
  write_records(path, [bytes(BOMB)], "group_size:1,uncompressed")

  check_chunks(str(path), path.stat().st_size)


@pytest.mark.parametrize("content", [b"", b"\1" * 1000, bytes(1 << 20)])
def test_check_chunks_leaves_damage_to_the_reader(tmp_path, content):
  path = tmp_path / "damaged"
  path.write_bytes(content)

  check_chunks(str(path), len(content))
