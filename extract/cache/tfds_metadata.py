"""Makes the metadata files by which TFDS reads a cache as a data set."""

import pathlib
import tempfile

from oneshot_dp.extract.cache.format import CacheInfo


def tfds_files(info: CacheInfo) -> dict[str, bytes]:
  """TFDS's own metadata files, in which one block is one example.

  Args:
    info: the metadata of a cache whose shards are known.

  Returns:
    The content of each file, by its name.
  """
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import dataset_info

  # To TFDS a record is one example, whose features are columns of bytes.
  features = {}
  for name, column in info.columns().items():
    features[name] = tfds.features.Tensor(
      shape=(None, *column.shape), dtype=column.dtype.type, encoding="bytes"
    )
  name, split = info.tfds_names
  identity = dataset_info.DatasetIdentity(
    name=name, version=tfds.core.Version("1.0.0"), data_dir="", module_name=""
  )
  metadata = tfds.core.DatasetInfo(
    builder=identity, features=tfds.features.FeaturesDict(features)
  )
  metadata.set_file_format("array_record")
  file_names = tfds.core.ShardedFileTemplate(
    data_dir="",
    dataset_name=name,
    split=split,
    filetype_suffix="array_record",
  )
  split_info = tfds.core.SplitInfo(
    name=split,
    shard_lengths=[shard.blocks for shard in info.shards],
    num_bytes=sum(shard.bytes for shard in info.shards),
    filename_template=file_names,
  )
  metadata.set_splits(tfds.core.SplitDict([split_info]))
  # TFDS writes to folders only; this one has mode 0700, since bytes and blocks
  # are private.
  with tempfile.TemporaryDirectory() as folder:
    metadata.write_to_directory(folder)
    return {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}
