"""Reads a feature cache: a stream of blocks, in bounded memory."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import re
from collections.abc import Generator, Iterator, Sequence
from typing import TypedDict

import numpy as np
from array_record.python import array_record_module
from jaxtyping import UInt64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.block import Block
from oneshot_dp.extract.cache.content_keys import row_keys
from oneshot_dp.extract.cache.identity import sha256_of
from oneshot_dp.extract.cache.info import (
  INCOMPLETE_DIR,
  INFO_FILE,
  SHARDS_FILE,
  CacheInfo,
  ShardRecord,
)
from oneshot_dp.extract.storage.checked_files import Listed, checked_files
from oneshot_dp.extract.storage.fetch_ahead import read_ahead
from oneshot_dp.extract.storage.store import Store, store_at
from oneshot_dp.extract.storage.typed_json import stored_json

# Records are read one after another, and the disk's own read-ahead serves
# that: ArrayRecord's threads cost more than they bring (2.4 against 3.7 GB/s).
_READER_OPTIONS = "max_parallelism:0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureCache:
  """A finished cache; `open_cache` makes one.

  >>> import tempfile
  >>> import numpy as np
  >>> import oneshot_dp
  >>> arrays = np.eye(4, dtype=np.float16), np.array([0, 1, 1, 0])
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   cache = oneshot_dp.write_cache(
  ...     f"{folder}/pets", *arrays, dataset="pets", num_classes=2
  ...   )
  ...   shapes = [block.embedding.shape for block in cache.blocks()]
  >>> len(cache), shapes
  (4, [(4, 4)])

  Attributes:
    path: the directory, on a disk or in an object store.
    info: what is in it; public, except for `skipped_example_ids`.
    shards: what its shards are; stays with the private data.
  """

  path: pathlib.Path
  info: CacheInfo
  shards: tuple[ShardRecord, ...]

  @functools.cached_property
  def store(self) -> Store:
    return store_at(self.path)

  @functools.cached_property
  def _hashed(self) -> set[tuple]:
    return set()

  def __len__(self) -> int:
    return self.info.num_examples

  @property
  def fingerprint(self) -> str:
    return self.info.fingerprint

  @property
  def private_digest(self) -> str:
    """SHA-256 over the shards: equal for the same rows in the same form."""
    return sha256_of([shard.sha256 for shard in self.shards])

  @property
  def keys_digest(self) -> str:
    """SHA-256 over the files of keys, which `private_digest` is not about."""
    return sha256_of([shard.keys_sha256 for shard in self.shards])

  def blocks(
    self, shard_order: Sequence[int] | None = None, prefetch: int = 16
  ) -> Iterator[Block]:
    """Streams the rows, every one once.

    One background thread reads and parses up to `prefetch` blocks ahead. It
    ends with the iterator, however that ends.

    Args:
      shard_order: shards to read, in this order; None is all of them. A part
        of them is fine (one host of several), the same one twice is not.
      prefetch: blocks in memory besides the one in use.

    Raises:
      InputError: later, where a shard is damaged or another's: its SHA-256 is
        taken while it is read, and compared before the iteration ends.
    """
    order = range(len(self.shards)) if shard_order is None else shard_order
    if len(set(order)) != len(order):
      raise ValueError("shard_order names a shard twice: rows count only once.")
    if not set(order) <= set(range(len(self.shards))):
      raise ValueError(f"shard_order is not within 0 … {len(self.shards) - 1}.")
    if prefetch < 1:
      raise ValueError(f"prefetch={prefetch} must be at least 1.")
    return read_ahead(self.read(order), prefetch)

  def shard_blocks(self, shard_index: int) -> Iterator[Block]:
    """Streams one shard in the calling thread; see `blocks`."""
    return self.read([shard_index])

  def read(self, order: Sequence[int]) -> Generator[Block, None, None]:
    """Streams shards in the calling thread; see `blocks`."""
    shards = [self.shards[i] for i in order]
    codec = self.info.codec()
    paths = checked_files(
      self.store,
      [Listed(shard.file, shard.bytes, shard.sha256) for shard in shards],
      self._hashed,
    )
    with contextlib.closing(paths):
      for shard, path in zip(shards, paths, strict=True):
        reader = array_record_module.ArrayRecordReader(
          os.fspath(path), _READER_OPTIONS
        )
        rows = 0
        try:
          if reader.num_records() != shard.blocks:
            raise ValueError(
              f"{reader.num_records()} blocks, not {shard.blocks}"
            )
          for _ in range(shard.blocks):
            block = codec.decode(reader.read())
            rows += len(block)
            yield block
          if rows != shard.rows:
            raise ValueError(f"{rows} rows, not {shard.rows}")
        # ArrayRecord reports damage (each chunk has a checksum) as RuntimeError
        # or IndexError. What the consumer does with a block is not seen here.
        except (RuntimeError, IndexError, ValueError) as e:
          # Some say, in brackets, hashes of what they read: it is private.
          raise self._damaged(shard.file, re.split("; | \\(", str(e))[0]) from e
        finally:
          with contextlib.suppress(RuntimeError):  # says the same damage again
            reader.close()

  def _damaged(self, name: str, what: str) -> InputError:
    return InputError(
      f"{self.path / name}: damaged ({what}); delete the cache and extract it"
      " again, or restore this file."
    )

  def key_blocks(self) -> Iterator[UInt64[np.ndarray, "rows kinds 2"]]:
    """Streams the rows' `content_keys`, in the order of `blocks`; private.

    In a cache of format 1, which has none, they are made of its embeddings: all
    of it is read. InputError: later, where a file is damaged.
    """
    for i in range(len(self.shards)):
      yield from self.shard_keys(i)

  def shard_keys(
    self, shard_index: int
  ) -> Iterator[UInt64[np.ndarray, "rows kinds 2"]]:
    """Streams one shard's keys; see `key_blocks`."""
    shard = self.shards[shard_index]
    if shard.keys_sha256 is None:
      for block in self.shard_blocks(shard_index):
        yield row_keys(block.embedding, None)
      return
    content = self.store.read(shard.keys_file)
    if hashlib.sha256(content).hexdigest() != shard.keys_sha256:
      raise self._damaged(shard.keys_file, "its SHA-256 is another")
    if shard.rows:
      yield np.frombuffer(content, "<u8").reshape(shard.rows, -1, 2)


def open_cache(path: str | os.PathLike) -> FeatureCache:
  """Opens a finished cache; looks at names and sizes, not at the rows.

  >>> import tempfile
  >>> import numpy as np
  >>> import oneshot_dp
  >>> arrays = np.eye(4, dtype=np.float16), np.array([0, 1, 1, 0])
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   _ = oneshot_dp.write_cache(
  ...     f"{folder}/pets", *arrays, dataset="pets", num_classes=2
  ...   )
  ...   cache = open_cache(f"{folder}/pets")
  >>> cache.info.dataset, cache.info.split, cache.info.class_names
  ('pets', 'train', ('0', '1'))

  Args:
    path: the directory.

  Returns:
    The cache.

  Raises:
    InputError: no such directory, not a finished cache, another format
      version, edited metadata, a shard missing or of the wrong size.
  """
  cache = read_metadata(path)
  for problem in size_problems(cache).values():
    raise InputError(f"{problem}; restore it or extract the cache again.")
  return cache


class _Listed(TypedDict):
  """What readers need of `shards.json`."""

  shards: tuple[ShardRecord, ...]


def read_metadata(path: str | os.PathLike) -> FeatureCache:
  """`open_cache` without a look at the shards."""
  store = store_at(path)
  directory = store.path
  try:
    data = stored_json(store, INFO_FILE)
    shards = stored_json(store, SHARDS_FILE, _Listed)["shards"]
  except FileNotFoundError as e:
    there = store.sizes()
    if not there:
      raise InputError(f"{directory}: no such directory, or empty.") from e
    if INFO_FILE in there:
      raise InputError(
        f"{directory / SHARDS_FILE}: missing; restore it."
      ) from e
    raise InputError(
      f"{directory}: not a finished cache; re-run the extraction to resume."
      if f"{INCOMPLETE_DIR}/" in there
      else f"{directory}: not a feature cache (no {INFO_FILE}); make one with "
      "`oneshot-dp extract` or `oneshot-dp import`."
    ) from e
  try:
    info = CacheInfo.from_json(data)
  except InputError as e:
    raise InputError(f"{directory / INFO_FILE}: {e}") from e
  expected = [
    (info.shard_name(i), info.shard_range(i).start)
    for i in range(info.num_shards)
  ]
  rows = sum(shard.rows for shard in shards)
  has_keys = {shard.keys_sha256 is not None for shard in shards}
  if (
    [(shard.file, shard.first_index) for shard in shards] != expected
    or rows != info.num_examples
    or has_keys != {info.format_version > 1}
  ):
    raise InputError(
      f"{directory / SHARDS_FILE}: {len(shards)} shards with {rows} rows do "
      f"not fit {INFO_FILE}: {info.num_shards} shards with {info.num_examples} "
      f"rows, format {info.format_version}; restore it or extract the cache"
      " again."
    )
  return FeatureCache(path=directory, info=info, shards=shards)


def size_problems(cache: FeatureCache) -> dict[int, str]:
  """What is wrong with each shard's files from the outside, if anything."""
  sizes, problems = cache.store.sizes(), {}
  for i, shard in enumerate(cache.shards):
    size = sizes.get(shard.file)
    if shard.keys_sha256 is not None and shard.keys_file not in sizes:
      problems[i] = f"{cache.path / shard.keys_file}: missing"
    elif size is None:
      problems[i] = f"{cache.path / shard.file}: missing"
    elif size != shard.bytes:
      problems[i] = (
        f"{cache.path / shard.file}: {size} bytes, not {shard.bytes}"
      )
  return problems
