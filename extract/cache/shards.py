"""The shards of a job: made whole, put once, and known by the job's digest."""

import dataclasses
import hashlib
import os
import pathlib
import tempfile

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import files, storage
from oneshot_dp.extract.cache.block import encode_block, stored_norm
from oneshot_dp.extract.cache.format import (
  BLOCK_ROWS,
  DTYPES,
  CacheInfo,
  Rows,
  Shard,
  sha256_of,
)
from oneshot_dp.extract.cache.read import read_shard

_FLOATS = (np.dtype(np.float64), *DTYPES.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheJob:
  """What makes a cache; private, as its digest may be of a listing.

  Attributes:
    info: what the cache will be.
    more: what else makes the job this one; JSON.
  """

  info: CacheInfo
  more: str = ""

  @property
  def digest(self) -> str:
    """SHA-256, in hexadecimal; it is in every record of the job's shards."""
    return sha256_of([self.info.public(), self.more])


def checked(rows: Rows, info: CacheInfo, place: str) -> Rows:
  """All columns of rows, in the dtypes of the cache.

  Raises:
    InputError: columns, shapes or dtypes that the cache does not take; an
      embedding that is not finite in its precision; a label outside [0, K).
      Names the example's id, never its label or embedding.
  """
  embedding, ids = rows["embedding"], rows["example_id"]
  expected = set(info.columns()) - {"embedding_norm"}
  if set(rows) - {"embedding_norm"} != expected:
    raise InputError(
      f"{place}: rows of {', '.join(sorted(rows))}; the cache takes"
      f" {', '.join(sorted(expected))}."
    )
  if embedding.dtype not in _FLOATS:
    raise InputError(
      f"{place}: embedding has dtype {embedding.dtype}; it must be a float."
    )
  for name in sorted(expected):
    dtype, shape = info.columns()[name]
    column = rows[name]
    if column.shape != (len(embedding), *shape):
      raise InputError(
        f"{place}: {name} has shape {column.shape}; the cache takes"
        f" {(len(embedding), *shape)}."
      )
    if name != "embedding" and (
      column.dtype.kind not in "iu"
      or (name != "image_key" and not np.can_cast(column.dtype, np.int64))
    ):
      raise InputError(
        f"{place}: {name} has dtype {column.dtype}; it must be an integer that"
        f" {dtype} holds."
      )
  k, label = info.num_classes, rows["label"]
  with np.errstate(over="ignore", invalid="ignore"):
    stored = embedding.astype(DTYPES[info.embedding_dtype])
    norm = stored_norm(stored)
  scale = (
    "use embedding_dtype float32"
    if info.embedding_dtype == "float16"
    else "scale the features down"
  )
  for good, why in (
    (
      (label >= 0) & (label < k),
      f"has a label outside [0, {k}); mend the labels, or the number of"
      " classes.",
    ),
    (
      np.isfinite(embedding).all(axis=1),
      "has an embedding that is not finite; look at the example, the weights"
      " and the dtype of the products.",
    ),
    (
      np.isfinite(stored).all(axis=1) & np.isfinite(norm),
      f"has an embedding that overflows {info.embedding_dtype}; {scale}.",
    ),
  ):
    if not good.all():
      raise InputError(f"{place}: example_id {ids[~good][0]} {why}")
  complete = rows | {"embedding": stored, "embedding_norm": norm}
  return {
    name: complete[name].astype(dtype, copy=False)
    for name, (dtype, _) in info.columns().items()
  }


def encode_shard(rows: Rows, job: CacheJob, index: int) -> tuple[Shard, bytes]:
  """What a shard of checked rows is, and its bytes.

  One of no rows has a block, too: it says whose the shard is.
  """
  from array_record.python import array_record_module

  starts = range(0, max(1, len(rows["label"])), BLOCK_ROWS)
  with tempfile.TemporaryDirectory() as folder:  # ArrayRecord writes no memory
    path = os.path.join(folder, "shard")
    options = "group_size:1,uncompressed"
    with files.disk_errors(folder):
      writer = array_record_module.ArrayRecordWriter(path, options)
      for start in starts:
        block = {n: a[start : start + BLOCK_ROWS] for n, a in rows.items()}
        writer.write(encode_block(block, job.info, job.digest))
      writer.close()
      data = pathlib.Path(path).read_bytes()
  return Shard(
    file=job.info.shard_name(index),
    rows=len(rows["label"]),
    blocks=len(starts),
    bytes=len(data),
    sha256=hashlib.sha256(data).hexdigest(),
  ), data


def put_shard(
  out: str, job: CacheJob, index: int, shard: Shard, data: bytes
) -> Shard:
  """Puts a shard, unless one is there; says what is there.

  Raises:
    RunError: another job's shard is there, or a damaged one.
  """
  if storage.put_once(storage.store_at(out), shard.file, data) == data:
    return shard
  # Of a worker whose devices round otherwise, say.
  if (kept := kept_shard(out, job, index)) is None:
    raise RunError(f"{out}: {shard.file} was removed meanwhile; run again.")
  return kept


def kept_shard(out: str, job: CacheJob, index: int) -> Shard | None:
  """What is there of a shard, or None; one request.

  Raises:
    RunError: it is another job's, or damaged.
  """
  store, name = storage.store_at(out), job.info.shard_name(index)
  fix = f"remove {store.where()}, or choose another --out"
  try:
    blocks, sha256, size = read_shard(store, name, job.info)
  except FileNotFoundError:
    return None
  except InputError:
    raise
  except ValueError as e:
    raise RunError(f"{store.where(name)} is damaged ({e}); {fix}.") from e
  if {digest for _, digest in blocks} != {job.digest}:
    raise RunError(
      f"{store.where(name)} is of another job, which may still run; {fix}."
    )
  return Shard(
    file=name,
    rows=sum(len(rows["label"]) for rows, _ in blocks),
    blocks=len(blocks),
    bytes=size,
    sha256=sha256,
  )
