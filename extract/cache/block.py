"""Records of a shard, blocks of rows, and what TFDS is told of them."""

import functools
import pathlib
import tempfile
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Float32

from oneshot_dp.extract.cache.format import CacheInfo, Rows

_TFDS_FILES = ("dataset_info.json", "features.json")
JOB_COLUMN = "job"
"""In each record, beside the columns: the digest of its job, 32 bytes."""


@functools.cache
def _example() -> Any:
  """The message `tf.Example`, whose map is written in the order given.

  In a pool of its own: TFDS, which takes long to import, has the same one.
  """
  from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

  file = descriptor_pb2.FileDescriptorProto(name="block", package="oneshot_dp")
  field = descriptor_pb2.FieldDescriptorProto
  for message, name, kind, many in (
    ("BytesList", "value", "", True),
    ("Feature", "bytes_list", "BytesList", False),
    ("Entry", "value", "Feature", False),
    ("Features", "feature", "Entry", True),
    ("Example", "features", "Features", False),
  ):
    made = file.message_type.add(name=message)
    if message == "Entry":
      made.field.add(name="key", number=1, type=field.TYPE_STRING, label=1)
    made.field.add(
      name=name,
      number=2 if message == "Entry" else 1,
      label=field.LABEL_REPEATED if many else field.LABEL_OPTIONAL,
      type=field.TYPE_MESSAGE if kind else field.TYPE_BYTES,
      type_name=f".oneshot_dp.{kind}" if kind else None,
    )
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(
    pool.FindMessageTypeByName("oneshot_dp.Example")
  )


def encode_block(rows: Rows, info: CacheInfo, job: str) -> bytes:
  """The record of a block; the same bytes in every process."""
  example = _example()()
  columns = {
    name: rows[name].astype(dtype, copy=False).tobytes()
    for name, (dtype, _) in info.columns().items()
  } | {JOB_COLUMN: bytes.fromhex(job)}
  for name, data in sorted(columns.items()):
    entry = example.features.feature.add(key=name)
    entry.value.bytes_list.value.append(data)
  return example.SerializeToString()


def decode_block(record: bytes, info: CacheInfo) -> tuple[Rows, str]:
  """The columns of a record, and the digest of the job that made it.

  Raises:
    ValueError: it is no block of this cache; the message holds no data.
  """
  try:
    example = _example().FromString(record)
    values = {
      entry.key: entry.value.bytes_list.value[0]
      for entry in example.features.feature
    }
    rows = {
      name: np.frombuffer(values[name], dtype).reshape(-1, *shape)
      for name, (dtype, shape) in info.columns().items()
    }
    job = cast(bytes, values[JOB_COLUMN]).hex()
  except Exception as e:
    raise ValueError(f"not a block of rows ({type(e).__name__})") from None
  if len({len(column) for column in rows.values()}) > 1:
    raise ValueError("its columns do not have the same number of rows")
  return rows, job


def stored_norm(
  embedding: Float[np.ndarray, "rows d"],
) -> Float32[np.ndarray, " rows"]:
  """L2 norm of each row as stored, the same bits on every machine.

  ‖x‖ = float32(√Σ x²), in float64 and rounded once; relative error under 2⁻²³
  (over 2⁻¹²⁶, float32's least normal number). The sum halves the row again and
  again with elementwise additions, because the order in which numpy's own
  reductions add depends on the width of the CPU's vectors.
  """
  total = embedding.astype(np.float64)
  np.multiply(total, total, out=total)
  width = total.shape[1]
  while width > 1:
    half = width // 2
    total[:, :half] += total[:, width - half : width]
    width -= half
  with np.errstate(over="ignore"):
    return np.sqrt(total[:, 0]).astype(np.float32)


def tfds_files(info: CacheInfo) -> dict[str, bytes]:
  """The metadata files of TFDS, to which a block is an example."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import dataset_info

  described = tfds.core.DatasetInfo(
    builder=dataset_info.DatasetIdentity(
      name=info.tfds_name,
      version=tfds.core.Version("1.0.0"),
      data_dir="",
      module_name="",
    ),
    features=tfds.features.FeaturesDict(
      {
        name: tfds.features.Tensor(
          shape=(None, *shape), dtype=dtype.type, encoding="bytes"
        )
        for name, (dtype, shape) in info.columns().items()
      }
    ),
  )
  described.set_file_format("array_record")
  template = tfds.core.ShardedFileTemplate(
    data_dir="",
    dataset_name=info.tfds_name,
    split=info.tfds_split,
    filetype_suffix="array_record",
  )
  split = tfds.core.SplitInfo(
    name=info.tfds_split,
    shard_lengths=[shard.blocks for shard in info.shards],
    num_bytes=sum(shard.bytes for shard in info.shards),
    filename_template=template,
  )
  described.set_splits(tfds.core.SplitDict([split]))
  # It writes to folders only; of mode 0700, as bytes and blocks are private.
  with tempfile.TemporaryDirectory() as folder:
    described.write_to_directory(folder)
    return {
      name: pathlib.Path(folder, name).read_bytes() for name in _TFDS_FILES
    }
