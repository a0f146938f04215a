"""Encodes, writes and reads a shard: a file of blocks of rows, written once.

Rows are encoded in memory (`encode_shard`), and put under their final name
unless that name is taken (`put_shard`). `read_shard` reads one back, no matter
who wrote it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import files, storage
from oneshot_dp.extract.cache.format import (
  BLOCK_ROWS,
  CacheInfo,
  Rows,
  Shard,
  sha256_of,
)
from oneshot_dp.extract.files import TooLargeError

JOB_COLUMN = "job"
"""In each record, beside the columns: the digest of its job, 32 bytes."""
_MAX_OVERHEAD_BYTES = 1 << 26
"""Bytes of a shard beside its rows; a block alone takes up to 128 KiB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheJob:
  """The identity of what makes a cache; private.

  Attributes:
    info: the metadata of the cache to come.
    extra_identity: what else makes this job different from others, such as the
      digest of the listing of its images.
  """

  info: CacheInfo
  extra_identity: str = ""

  @functools.cached_property
  def digest(self) -> str:
    """SHA-256, in hexadecimal; every record of the job's shards holds it."""
    return sha256_of([self.info.public(), self.extra_identity])


class StoredShard(NamedTuple):
  """A shard as it was read.

  Attributes:
    blocks: its rows, one dict of columns per record.
    jobs: digests of the jobs that its records state.
    shard: its size and SHA-256, and how many rows and blocks it has.
  """

  blocks: list[Rows]
  jobs: set[str]
  shard: Shard


@functools.cache
def _example_message() -> Any:
  """The protobuf message `tf.Example`, whose map keeps the order given.

  In the original the features are a map, which every process would write in
  an order of its own; a repeated entry has the same bytes on the wire. The pool
  is this package's own, because TFDS, which takes long to import, registers
  the same message.
  """
  from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

  # The fields and numbers are those of TensorFlow's example.proto.
  field = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(name="block", package="p")

  def add_message(name: str) -> Any:
    return file.message_type.add(name=name)

  def add_bytes(message: Any, name: str, number: int, label: int) -> None:
    message.field.add(
      name=name, number=number, type=field.TYPE_BYTES, label=label
    )

  def add_submessage(
    message: Any, name: str, number: int, label: int, type_name: str
  ) -> None:
    message.field.add(
      name=name,
      number=number,
      type=field.TYPE_MESSAGE,
      label=label,
      type_name=type_name,
    )

  one = field.LABEL_OPTIONAL
  many = field.LABEL_REPEATED
  add_bytes(add_message("BytesList"), "value", 1, many)
  feature = add_message("Feature")
  add_submessage(feature, "bytes_list", 1, one, ".p.BytesList")
  entry = add_message("Entry")
  entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=one)
  add_submessage(entry, "value", 2, one, ".p.Feature")
  features = add_message("Features")
  add_submessage(features, "feature", 1, many, ".p.Entry")
  example = add_message("Example")
  add_submessage(example, "features", 1, one, ".p.Features")

  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  descriptor = pool.FindMessageTypeByName("p.Example")
  return message_factory.GetMessageClass(descriptor)


def encode_shard(rows: Rows, job: CacheJob, index: int) -> tuple[Shard, bytes]:
  """Encodes a shard: the same bytes in every process.

  A shard of no rows has one block, too, which says whose job the shard is.

  Args:
    rows: checked columns of all its rows, at most `CacheInfo.shard_rows`.
    job: the job that makes the shard.
    index: its number.

  Returns:
    Its description and its bytes.

  Raises:
    RunError: the disk of the temporary folder is full or broken.
  """
  num_rows = len(rows["label"])
  starts = range(0, max(1, num_rows), BLOCK_ROWS)
  # ArrayRecord writes files only, not memory.
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "shard")
    with files.disk_errors(folder):
      try:
        # Uncompressed: the same rows are the same bytes whatever the version of
        # a compressor, and a reader never unfolds more than the file has. A
        # record is a group by itself, so that each can be read alone.
        writer = array_record_module.ArrayRecordWriter(
          path, "group_size:1,uncompressed"
        )
        for start in starts:
          writer.write(_encode_block(rows, job, start))
        writer.close()
      except RuntimeError as error:
        # ArrayRecord, which is C++, knows no other error of a full disk.
        raise RunError(
          f"{tempfile.gettempdir()} cannot be written ({error}); make room"
          " there, or set TMPDIR to a folder on another disk."
        ) from error
      data = pathlib.Path(path).read_bytes()
  shard = Shard(
    file=job.info.shard_name(index),
    rows=num_rows,
    blocks=len(starts),
    bytes=len(data),
    sha256=hashlib.sha256(data).hexdigest(),
  )
  return shard, data


def _encode_block(rows: Rows, job: CacheJob, start: int) -> bytes:
  """Encodes a record: the rows from `start` on, and the digest of their job."""
  # The digest is in every record: a shard of another job is recognized by
  # itself, whatever file says what should be there.
  values = {JOB_COLUMN: bytes.fromhex(job.digest)}
  for name in job.info.columns():
    values[name] = rows[name][start : start + BLOCK_ROWS].tobytes()
  example = _example_message()()
  for name in sorted(values):
    entry = example.features.feature.add(key=name)
    entry.value.bytes_list.value.append(values[name])
  return example.SerializeToString()


def _decode_block(record: bytes, info: CacheInfo) -> tuple[Rows, str]:
  """The columns of a record, and the digest of the job that made it.

  ValueError: it is not a block of this cache; the message holds no data.
  """
  try:
    example = _example_message().FromString(record)
    values: dict[str, bytes] = {}
    for entry in example.features.feature:
      values[entry.key] = entry.value.bytes_list.value[0]
    rows = {}
    for name, column in info.columns().items():
      flat = np.frombuffer(values[name], column.dtype)
      rows[name] = flat.reshape(-1, *column.shape)
    job = values[JOB_COLUMN].hex()
  except MemoryError:
    raise  # this machine's trouble: the file may be sound
  except Exception as e:
    raise ValueError(f"not a block of rows ({type(e).__name__})") from None
  lengths = {len(column) for column in rows.values()}
  if len(lengths) > 1:
    raise ValueError("its columns do not have the same number of rows")
  return rows, job


def _read_records(path: str, size: int) -> Iterator[bytes]:
  """The records of a file of `size` bytes.

  ValueError: it is not an ArrayRecord file, or its records are longer than the
  file, as they can be in a compressed one.
  """
  try:
    reader = array_record_module.ArrayRecordReader(path, "max_parallelism:0")
    # Looked at before a record is read: a compressed one of some kilobytes may
    # unfold to gigabytes.
    if "uncompressed" not in reader.writer_options_string().split(","):
      raise ValueError("it is compressed")
    for _ in range(reader.num_records()):
      record = reader.read()
      size -= len(record)
      if size < 0:
        raise ValueError("it is compressed")
      yield record
    reader.close()
  except (RuntimeError, IndexError, ValueError, OSError) as e:
    raise ValueError("it is not an ArrayRecord file") from e


def read_shard(
  store: storage.Store,
  name: str,
  info: CacheInfo,
  expected: Shard | None = None,
) -> StoredShard:
  """Reads a shard, whoever wrote it.

  *Formal guarantee*: no more bytes than the expected file has are ever in
  memory, and another file is refused before it is parsed.

  Args:
    store: the directory of the cache.
    name: the file in it.
    info: the metadata that its columns must fit.
    expected: the size and SHA-256 it must have, if they are known.

  Returns:
    Its blocks, its jobs and its description.

  Raises:
    FileNotFoundError: the file does not exist.
    InputError: it may not be read.
    ValueError: it is not a shard, or not the expected one.
  """
  most_bytes = _max_shard_bytes(info)
  if expected is not None:
    most_bytes = min(most_bytes, expected.bytes)
  with contextlib.ExitStack() as stack:
    try:
      file = stack.enter_context(storage.local_file(store, name, most_bytes))
    except TooLargeError as error:
      raise ValueError("it is larger than its rows, or than stated") from error
    # Size and SHA-256, where they are known, come before the parser:
    # ArrayRecord's C++ sees no other file than the expected one. It is given
    # the open file, as the name may lead to another by now.
    size = os.fstat(file.fileno()).st_size
    sha256 = hashlib.sha256(file.read(size)).hexdigest()
    if expected is not None and size != expected.bytes:
      raise ValueError("its size is another")
    if expected is not None and sha256 != expected.sha256:
      raise ValueError("its SHA-256 is another")
    file.seek(0)
    blocks = []
    jobs = set()
    for record in _read_records(f"/dev/fd/{file.fileno()}", size):
      rows, job = _decode_block(record, info)
      blocks.append(rows)
      jobs.add(job)
  shard = Shard(
    file=name,
    rows=sum(len(rows["label"]) for rows in blocks),
    blocks=len(blocks),
    bytes=size,
    sha256=sha256,
  )
  return StoredShard(blocks, jobs, shard)


def _max_shard_bytes(info: CacheInfo) -> int:
  """Computes an upper bound on the size of a shard in bytes."""
  row_bytes = 0
  for column in info.columns().values():
    row_bytes += column.dtype.itemsize * math.prod(column.shape)
  num_rows = min(info.shard_rows, info.source_num_examples)
  # Generous: it is to refuse what could not be a shard before that is in
  # memory, and not to measure one.
  return 2 * row_bytes * num_rows + _MAX_OVERHEAD_BYTES


def put_shard(out: str, job: CacheJob, shard: Shard, data: bytes) -> Shard:
  """Writes an encoded shard, unless its name is taken.

  Args:
    out: the directory of the cache.
    job: the job that made the shard.
    shard: its description.
    data: its bytes.

  Returns:
    The description of what is there now. It may be the shard of another worker
    of the same job, whose devices round otherwise.

  Raises:
    RunError: a shard of another job is there, or a damaged one.
  """
  stored = storage.write_if_absent(storage.store_at(out), shard.file, data)
  if stored == data:
    return shard
  return load_existing_shard(out, job, shard.file) or shard


def load_existing_shard(out: str, job: CacheJob, name: str) -> Shard | None:
  """Reads a shard of this job that may be there already; one request.

  Args:
    out: the directory of the cache.
    job: the job that the shard must belong to.
    name: the file name of the shard.

  Returns:
    Its description, or None if it does not exist.

  Raises:
    InputError: it may not be read, or is no file.
    RunError: it belongs to another job, or is damaged.
  """
  store = storage.store_at(out)
  try:
    stored = read_shard(store, name, job.info)
  except FileNotFoundError:
    return None
  except InputError:  # a ValueError: the file may not be read
    raise
  except ValueError as e:
    fault = f"is damaged ({e})"
  else:
    if stored.jobs == {job.digest}:
      return stored.shard
    fault = "belongs to another job, which may still run"
  raise RunError(
    f"{store.display_path(name)} {fault}; remove {store.display_path()}, or"
    " choose another --out."
  )
