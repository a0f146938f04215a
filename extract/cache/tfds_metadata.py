"""What TensorFlow Datasets is told about a feature cache."""

import pathlib
import tempfile
from collections.abc import Sequence

import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_info

from oneshot_dp.extract.cache.identity import CacheIdentity
from oneshot_dp.extract.cache.info import ShardRecord

_FILES = ("dataset_info.json", "features.json")


def tfds_metadata(
  identity: CacheIdentity, shards: Sequence[ShardRecord]
) -> dict[str, str]:
  """The text of each metadata file of TFDS.

  To TFDS a cache is a data set of one split, and an example of it is a block.
  """
  info = tfds.core.DatasetInfo(
    builder=dataset_info.DatasetIdentity(
      name=identity.tfds_name,
      version=tfds.core.Version(identity.tfds_version),
      data_dir="",
      module_name="",
    ),
    features=identity.codec().features,
  )
  info.set_file_format("array_record")
  info.set_splits(
    tfds.core.SplitDict(
      [
        tfds.core.SplitInfo(
          name=identity.tfds_split,
          shard_lengths=[shard.blocks for shard in shards],
          num_bytes=sum(shard.bytes for shard in shards),
          filename_template=identity.file_template(),
        )
      ]
    )
  )
  # TFDS writes to directories only; nothing private is in these files.
  with tempfile.TemporaryDirectory() as scratch:
    info.write_to_directory(scratch)
    return {name: pathlib.Path(scratch, name).read_text() for name in _FILES}
