"""A shard: blocks of rows in the records of a file that is put once."""

import dataclasses
import functools
import hashlib
import math
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from array_record.python import array_record_module
from jaxtyping import Float, Float32

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import files, storage
from oneshot_dp.extract.cache.format import (
  BLOCK_ROWS,
  DTYPES,
  CacheInfo,
  Rows,
  Shard,
  sha256_of,
)

JOB_COLUMN = "job"
"""In each record, beside the columns: the digest of its job, 32 bytes."""
_FLOATS = (np.dtype(np.float64), *DTYPES.values())
_MOST_BESIDES = 1 << 26
"""Bytes of a shard beside its rows: 128 KiB of a block, at least."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheJob:
  """What makes a cache; private, as its digest may be of a listing.

  `more` is what makes the job this one beside what the cache will be.
  """

  info: CacheInfo
  more: str = ""

  @functools.cached_property
  def digest(self) -> str:
    """SHA-256, in hexadecimal; it is in every record of the job's shards."""
    return sha256_of([self.info.public(), self.more])


@functools.cache
def _example() -> Any:
  """The message `tf.Example`, whose map is written in the order given.

  In a pool of its own: TFDS, which takes long to import, has the same one.
  """
  from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

  file = descriptor_pb2.FileDescriptorProto(name="block", package="p")
  for message, *fields in (
    ("BytesList", ("value", 1, 12, 3, None)),
    ("Feature", ("bytes_list", 1, 11, 1, ".p.BytesList")),
    ("Entry", ("key", 1, 9, 1, None), ("value", 2, 11, 1, ".p.Feature")),
    ("Features", ("feature", 1, 11, 3, ".p.Entry")),
    ("Example", ("features", 1, 11, 1, ".p.Features")),
  ):
    made = file.message_type.add(name=message)
    for name, number, kind, label, of in fields:
      made.field.add(
        name=name, number=number, type=kind, label=label, type_name=of
      )
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  found = pool.FindMessageTypeByName("p.Example")
  return message_factory.GetMessageClass(found)


def encode_shard(rows: Rows, job: CacheJob, index: int) -> tuple[Shard, bytes]:
  """What a shard of these rows is, and its bytes: the same in every process.

  One of no rows has a block, too: it says whose the shard is.
  """
  starts = range(0, max(1, len(rows["label"])), BLOCK_ROWS)
  names, digest = sorted([*job.info.columns(), JOB_COLUMN]), job.digest
  with tempfile.TemporaryDirectory() as folder:  # ArrayRecord writes no memory
    path, options = os.path.join(folder, "shard"), "group_size:1,uncompressed"
    with files.disk_errors(folder):
      writer = array_record_module.ArrayRecordWriter(path, options)
      for at in starts:
        example = _example()()
        for name in names:
          data = bytes.fromhex(digest)
          if name != JOB_COLUMN:
            data = rows[name][at : at + BLOCK_ROWS].tobytes()
          entry = example.features.feature.add(key=name)
          entry.value.bytes_list.value.append(data)
        writer.write(example.SerializeToString())
      writer.close()
      data = pathlib.Path(path).read_bytes()
  shard = Shard(
    file=job.info.shard_name(index),
    rows=len(rows["label"]),
    blocks=len(starts),
    bytes=len(data),
    sha256=hashlib.sha256(data).hexdigest(),
  )
  return shard, data


def _records(path: str, size: int) -> Iterator[bytes]:
  """ValueError: it is no ArrayRecord file, or one whose records are longer."""
  try:
    options = "max_parallelism:0"
    reader = array_record_module.ArrayRecordReader(path, options)
    for _ in range(reader.num_records()):
      record = reader.read()
      size -= len(record)
      if size < 0:
        raise ValueError("it is compressed")
      yield record
    reader.close()
  except (RuntimeError, IndexError, ValueError, OSError) as e:
    raise ValueError("it is no ArrayRecord file") from e


def _decoded(record: bytes, info: CacheInfo) -> tuple[Rows, str]:
  """The columns of a record, and the digest of the job that made it.

  ValueError: it is no block of this cache; the message holds no data.
  """
  try:
    example = _example().FromString(record)
    values: dict[str, bytes] = {
      entry.key: entry.value.bytes_list.value[0]
      for entry in example.features.feature
    }
    rows = {
      name: np.frombuffer(values[name], dtype).reshape(-1, *shape)
      for name, (dtype, shape) in info.columns().items()
    }
    job = values[JOB_COLUMN].hex()
  except Exception as e:
    raise ValueError(f"not a block of rows ({type(e).__name__})") from None
  if len({len(column) for column in rows.values()}) > 1:
    raise ValueError("its columns do not have the same number of rows")
  return rows, job


def read_shard(
  store: storage.Store,
  name: str,
  info: CacheInfo,
  known: Shard | None = None,
) -> tuple[list[Rows], set[str], Shard]:
  """The blocks of a shard, the digests of their jobs, and what it is.

  FileNotFoundError: it is not there. InputError: it may not be read.
  ValueError: its bytes are no shard, or not those that are `known`, which is
  found before more than the bytes is in memory.
  """
  columns = info.columns().values()
  row = sum(dtype.itemsize * math.prod(shape) for dtype, shape in columns)
  with storage.local_copy(store, name) as (path, file):
    most, size = min(info.shard_rows, info.source_num_examples), file.seek(0, 2)
    if size > 2 * row * most + _MOST_BESIDES:
      raise ValueError("it is larger than its rows")
    if known is not None and size != known.bytes:
      raise ValueError("its size is another")
    file.seek(0)
    sha256 = hashlib.sha256(file.read(size)).hexdigest()
    if known is not None and sha256 != known.sha256:
      raise ValueError("its SHA-256 is another")
    decoded = [_decoded(record, info) for record in _records(path, size)]
  blocks, jobs = [rows for rows, _ in decoded], {job for _, job in decoded}
  count = sum(len(rows["label"]) for rows in blocks)
  shard = Shard(
    file=name, rows=count, blocks=len(blocks), bytes=size, sha256=sha256
  )
  return blocks, jobs, shard


def put_shard(out: str, job: CacheJob, shard: Shard, data: bytes) -> Shard:
  """Puts a shard, unless one is there; says what is there.

  RunError: another job's shard is there, or a damaged one.
  """
  if storage.write_if_absent(storage.store_at(out), shard.file, data) == data:
    return shard
  # Of a worker whose devices round otherwise, say.
  return load_existing_shard(out, job, shard.file) or shard


def load_existing_shard(out: str, job: CacheJob, name: str) -> Shard | None:
  """What is there of a shard, or None; one request.

  RunError: it is another job's, or damaged.
  """
  store = storage.store_at(out)
  try:
    _, jobs, shard = read_shard(store, name, job.info)
  except FileNotFoundError:
    return None
  except ValueError as e:
    said = f"damaged ({e})"
  else:
    if jobs == {job.digest}:
      return shard
    said = "of another job, which may still run"
  raise RunError(
    f"{store.display_path(name)} is {said}; remove {store.display_path()},"
    " or choose another"
    " --out."
  )


def checked(rows: Rows, info: CacheInfo, place: str) -> Rows:
  """All columns of rows, in the dtypes of the cache.

  InputError: columns, shapes or dtypes that the cache does not take; an
  embedding that is not finite in its precision; a label outside [0, K). Names
  the example's id, never its label or embedding.
  """
  columns, embedding = info.columns(), rows["embedding"]
  expected = sorted(columns.keys() - {"embedding_norm"})
  if sorted(rows) != expected:
    raise InputError(f"{place}: rows of {sorted(rows)}, not {expected}.")
  for name in expected:
    (dtype, shape), column = columns[name], rows[name]
    fits = column.dtype.kind in "iu" and np.can_cast(column.dtype, np.int64)
    if name == "embedding":
      fits = column.dtype in _FLOATS
    if column.shape != (len(embedding), *shape) or not (
      fits or column.dtype == dtype
    ):
      raise InputError(
        f"{place}: {name} is {column.dtype} {list(column.shape)}; the cache"
        f" takes {dtype} {[len(embedding), *shape]}, or what it holds."
      )
  with np.errstate(over="ignore", invalid="ignore"):
    stored = embedding.astype(columns["embedding"][0])
    norm = stored_norm(stored)
  k, label, dtype = info.num_classes, rows["label"], info.embedding_dtype
  for good, why in (
    ((label >= 0) & (label < k), f"a label outside [0, {k})"),
    (np.isfinite(embedding).all(axis=1), "an embedding that is not finite"),
    (
      np.isfinite(stored).all(axis=1) & np.isfinite(norm),
      f"an embedding that overflows {dtype}: scale it, or store float32",
    ),
  ):
    if not good.all():
      first = rows["example_id"][~good][0]
      raise InputError(f"{place}: example_id {first} has {why}.")
  complete = rows | {"embedding": stored, "embedding_norm": norm}
  return {
    name: complete[name].astype(dtype, copy=False)
    for name, (dtype, _) in columns.items()
  }


def stored_norm(
  embedding: Float[np.ndarray, "rows d"],
) -> Float32[np.ndarray, " rows"]:
  """L2 norm of each row as stored, the same bits on every machine.

  ‖x‖ = float32(√Σ x²), in float64 and rounded once; relative error under 2⁻²³
  (over 2⁻¹²⁶, float32's least normal number). The sum halves the row again and
  again with elementwise additions, because the order in which numpy's own
  reductions add depends on the width of the CPU's vectors.
  """
  total = np.square(embedding, dtype=np.float64)
  while (width := total.shape[1]) > 1:
    half = width // 2
    total[:, :half] += total[:, width - half :]
    total = total[:, : width - half]
  with np.errstate(over="ignore"):
    return np.sqrt(total[:, 0]).astype(np.float32)
