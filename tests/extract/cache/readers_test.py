"""Other libraries read a cache with no code of ours."""

import numpy as np
import pytest

from oneshot_dp.configs.extract_config import EXAMPLE
from oneshot_dp.extract.cache.shard_file import CacheJob
from tests.extract.cache.caches import columns, make_info, run_job


@pytest.fixture(
  params=[("train", EXAMPLE), ("all", "patient"), ("2024", "user")]
)
def cache(request, tmp_path):
  split, unit = request.param
  info = make_info(600, 20, split=split, unit=unit, shard_rows=300)
  return run_job(tmp_path / "cache", info)


def same(found, cache):
  mine = columns(cache)
  assert set(found[0]) == set(mine)
  for name, column in mine.items():
    np.testing.assert_array_equal(
      np.concatenate([block[name] for block in found]), column
    )


def test_what_other_libraries_read(cache):
  import tensorflow_datasets as tfds
  from array_record.python.array_record_data_source import ArrayRecordDataSource
  from grain import python as grain
  from tensorflow_datasets.proto import tf_example_pb2

  builder = tfds.builder_from_directory(cache.path)
  split = cache.info.tfds_names[1]
  assert list(builder.as_data_source()) == [split]
  for wanted in (split, "all"):
    same(list(builder.as_data_source(split=wanted)), cache)
  same(list(builder.as_data_source()[split]), cache)
  assert builder.info.splits[split].num_examples == 4

  files = [f"{cache.path}/{shard.file}" for shard in cache.info.shards]
  source, features = grain.ArrayRecordDataSource(files), builder.info.features
  same([features.deserialize_example_np(source[i]) for i in range(4)], cache)

  with ArrayRecordDataSource(files) as source:
    of = [tf_example_pb2.Example.FromString(source[i]) for i in range(4)]
  found = {
    name: [each.features.feature[name].bytes_list.value[0] for each in of]
    for name in of[0].features.feature
  }
  # TFDS passes over the digest of the job.
  assert {job.hex() for job in found.pop("job")} == {
    CacheJob(info=cache.info).digest
  }
  mine = {name: each.tobytes() for name, each in columns(cache).items()}
  assert {name: b"".join(parts) for name, parts in found.items()} == mine
