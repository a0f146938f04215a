"""Reading a feature cache: shards as they were written, rows of a part."""

import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import WHOLE, Part
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.block import decode_block
from oneshot_dp.extract.cache.format import (
  INFO_FILE,
  CacheInfo,
  Rows,
  Shard,
  sha256_of,
)
from oneshot_dp.extract.cache.keys import in_part

_AHEAD = 4
"""Shards that are read and hashed before their turn, of 0.8 to 5 MB each."""
_INFO_BYTES = 1 << 28
_FIX = "restore it, or make the cache again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureCache:
  """A finished cache, or a part of it; `open_cache` makes one.

  Attributes:
    path: the directory, on a disk or in an object store.
    info: what is in it.
    part: which of its rows are read.
  """

  path: str
  info: CacheInfo = dataclasses.field(repr=False)
  part: Part = WHOLE

  @property
  def name(self) -> str:
    """For messages: the path, and the part if it is one."""
    return storage.store_at(self.path).where("") + str(self.part)

  @property
  def n(self) -> int:
    """Public number of rows: of a part it is the mean."""
    return self.part.mean_of(self.info.source_num_examples)

  @functools.cached_property
  def num_rows(self) -> int:
    """Rows that are there; private. Those of a part are counted."""
    if self.part.is_whole:
      return sum(shard.rows for shard in self.info.shards)
    return sum(len(rows["label"]) for rows in self.blocks())

  @property
  def num_shards(self) -> int:
    return len(self.info.shards)

  @functools.cached_property
  def private_digest(self) -> str:
    """SHA-256 of which rows these are; never leaves."""
    shards = [shard.sha256 for shard in self.info.shards]
    return sha256_of([self.info.public(), shards, str(self.part)])

  def blocks(self, shards: Sequence[int] | None = None) -> Iterator[Rows]:
    """Streams the rows of some shards, or of all: every row of the part once.

    Formal guarantees: a shard's rows come only after its bytes had the SHA-256
    of the metadata; the order is that of the shards.

    Raises:
      InputError: when its turn comes, a shard is missing, damaged or another's.
    """
    every = self.info.shards
    chosen = every if shards is None else [every[i] for i in shards]
    store, waiting = storage.store_at(self.path), iter(chosen)
    # Hashing and copying let go of Python's lock.
    pool = concurrent.futures.ThreadPoolExecutor(_AHEAD, "feature-cache")
    ready: collections.deque[concurrent.futures.Future[list[Rows]]]
    ready = collections.deque()

    def submit() -> None:
      for shard in waiting:
        ready.append(pool.submit(_shard_rows, store, shard, self.info))
        return

    try:
      for _ in range(_AHEAD):
        submit()
      while ready:
        blocks = ready.popleft().result()
        submit()
        for rows in blocks:
          if not self.part.is_whole:
            there = in_part(self.part, rows)
            rows = {name: column[there] for name, column in rows.items()}
          if len(rows["label"]):
            yield rows
    finally:
      pool.shutdown(cancel_futures=True)


def _shard_rows(
  store: storage.Store, shard: Shard, info: CacheInfo
) -> list[Rows]:
  where = store.where(shard.file)
  try:
    blocks, sha256, _ = read_shard(store, shard.file, info)
  except FileNotFoundError as e:
    raise InputError(f"{where} is not there; {_FIX}.") from e
  except InputError:
    raise
  except ValueError as e:
    raise InputError(f"{where} is damaged ({e}); {_FIX}.") from e
  if sha256 != shard.sha256:
    raise InputError(f"{where} is damaged: its SHA-256 is another; {_FIX}.")
  return [rows for rows, _ in blocks]


def read_shard(
  store: storage.Store, name: str, info: CacheInfo
) -> tuple[list[tuple[Rows, str]], str, int]:
  """The blocks of a shard with the digests of their jobs, its SHA-256, bytes.

  Raises:
    FileNotFoundError: it is not there.
    InputError: it may not be read.
    ValueError: its bytes are no shard.
  """
  with storage.local_copy(store, name) as (path, file):
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = file.tell()
    try:
      records = array_records(path)
    except (RuntimeError, IndexError, ValueError, OSError) as e:
      raise ValueError("it is no ArrayRecord file") from e
  return [decode_block(record, info) for record in records], sha256, size


def array_records(path: str) -> list[bytes]:
  """All records of a file on this disk."""
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(path, "max_parallelism:0")
  try:
    return [reader.read() for _ in range(reader.num_records())]
  finally:
    reader.close()


def open_cache(path: str | os.PathLike, rows: Part = WHOLE) -> FeatureCache:
  """Opens a finished cache; does not look at its rows.

  >>> import tempfile
  >>> import numpy as np
  >>> from oneshot_dp.extract.cache.write import write_cache
  >>> info = CacheInfo(
  ...   dataset="pets",
  ...   split="train",
  ...   source_num_examples=4,
  ...   feature_dim=4,
  ...   class_names=("cat", "dog"),
  ...   backbone={"name": "none"},
  ... )
  >>> block = {"embedding": np.eye(4), "label": np.array([0, 1, 1, 0])}
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   _ = write_cache(f"{folder}/pets", info, [block])
  ...   cache = open_cache(f"{folder}/pets")
  ...   rows = next(cache.blocks())
  >>> cache.n, cache.info.class_names, rows["label"].tolist()
  (4, ('cat', 'dog'), [0, 1, 1, 0])

  Args:
    path: the directory, or its gs:// or s3:// URL.
    rows: the part that is read.

  Returns:
    The cache.

  Raises:
    InputError: no finished cache, another version, or edited metadata.
  """
  store = storage.store_at(path)
  data = storage.read(store, INFO_FILE, _INFO_BYTES)
  if data is None:
    there = storage.sizes(store)
    if not there:
      raise InputError(f"{store.where()}: no such directory, or empty.")
    raise InputError(
      f"{store.where()} is no finished cache (no {INFO_FILE}): run its"
      " extraction again to finish it, or give a cache."
    )
  info = CacheInfo.from_json(data, store.where(INFO_FILE))
  return FeatureCache(path=os.fspath(path), info=info, part=rows)
