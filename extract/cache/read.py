"""Reading a feature cache: shards as they were written, rows of a part."""

import collections
import concurrent.futures
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import WHOLE, Part
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import (
  INFO_FILE,
  CacheInfo,
  Rows,
  Shard,
  sha256_of,
)
from oneshot_dp.extract.cache.keys import in_part
from oneshot_dp.extract.cache.shard_file import read_shard

_AHEAD = 4
"""Shards that are read and hashed before their turn, of 0.8 to 5 MB each."""


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
    return storage.store_at(self.path).where() + str(self.part)

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
    waiting = iter(every if shards is None else [every[i] for i in shards])
    ready: collections.deque[concurrent.futures.Future[list[Rows]]]
    ready = collections.deque()
    # Hashing and copying let go of Python's lock.
    pool = concurrent.futures.ThreadPoolExecutor(_AHEAD, "feature-cache")
    try:
      while True:
        while len(ready) < _AHEAD and (shard := next(waiting, None)):
          ready.append(pool.submit(self._shard, shard))
        if not ready:
          return
        for rows in ready.popleft().result():
          if not self.part.is_whole:
            there = in_part(self.part, rows)
            rows = {name: column[there] for name, column in rows.items()}
          if len(rows["label"]):
            yield rows
    finally:
      pool.shutdown(cancel_futures=True)

  def _shard(self, shard: Shard) -> list[Rows]:
    store = storage.store_at(self.path)
    try:
      blocks, _, found = read_shard(store, shard.file, self.info)
      if found.sha256 != shard.sha256:
        raise ValueError("its SHA-256 is another")
    except InputError:
      raise
    except (ValueError, FileNotFoundError) as e:
      said = f"damaged ({e})" if isinstance(e, ValueError) else "not there"
      raise InputError(
        f"{store.where(shard.file)} is {said}; restore it, or make the cache"
        " again."
      ) from e
    return blocks


def open_cache(path: str | os.PathLike, rows: Part = WHOLE) -> FeatureCache:
  """Opens a finished cache, or a part of it; does not look at its rows.

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

  Raises:
    InputError: no finished cache, another version, or edited metadata.
  """
  store = storage.store_at(path)
  if (data := storage.read(store, INFO_FILE)) is None:
    if not storage.sizes(store):
      said = "no such directory, or empty; name a cache"
      raise InputError(f"{store.where()}: {said}.")
    raise InputError(
      f"{store.where()} is no finished cache (no {INFO_FILE}): run its"
      " extraction again to finish it, or give a cache."
    )
  info = CacheInfo.from_json(data, store.where(INFO_FILE))
  return FeatureCache(path=os.fspath(path), info=info, part=rows)
