"""Checks every byte and every row of a feature cache."""

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.block import Block, stored_norm
from oneshot_dp.extract.cache.info import INFO_FILE, CacheInfo, tfds_metadata
from oneshot_dp.extract.cache.reader import (
  FeatureCache,
  read_metadata,
  size_problems,
)
from oneshot_dp.extract.progress import counted
from oneshot_dp.extract.storage.scratch import Repeated
from oneshot_dp.extract.storage.typed_json import stored_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyReport:
  """What `verify_cache` found; problems name shards and ids, and no values."""

  num_shards: int
  num_rows: int
  problems: tuple[str, ...]

  @property
  def ok(self) -> bool:
    return not self.problems

  def __str__(self) -> str:
    if self.ok:
      shards = counted(self.num_shards, "shard")
      return f"ok: {shards}, {counted(self.num_rows, 'row')}"
    return "\n".join(self.problems)


def verify_cache(
  path: str | os.PathLike, progress: Callable[[int, int], None] | None = None
) -> VerifyReport:
  """Checks that a cache is what its metadata says, down to each row.

  *Formal guarantee*: with no problem found, every shard, and the file of its
  rows' keys, has the SHA-256 with which it was written; every row is finite,
  has the norm of its stored embedding to the last bit, a label in [0, K), an id
  that no other row and no skipped example has, and an int64 `unit_id` where the
  privacy unit is coarser than an example; rows + skipped examples (+ those
  outside the part of the split) = examples of the source; and TFDS is told the
  same.

  >>> import tempfile
  >>> import numpy as np
  >>> import oneshot_dp
  >>> arrays = np.eye(4, dtype=np.float16), np.array([0, 1, 1, 0])
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   _ = oneshot_dp.write_cache(
  ...     f"{folder}/pets", *arrays, dataset="pets", num_classes=2
  ...   )
  ...   print(verify_cache(f"{folder}/pets"))
  ok: 1 shard, 4 rows

  Args:
    path: the cache.
    progress: called with (shards done, shards) after each shard.

  Returns:
    Every problem found.

  Raises:
    InputError: there is no cache to check, or its `cache_info.json` and
      `shards.json` cannot be read or contradict each other.
  """
  cache = read_metadata(path)
  info = cache.info
  problems = [*_metadata_problems(cache)]
  from_outside = size_problems(cache)
  with Repeated(info.source_num_examples) as ids:
    ids.add(np.array(info.skipped_example_ids, np.int64))
    for i, shard in enumerate(cache.shards):
      if i in from_outside:
        problems.append(from_outside[i])
      else:
        try:
          if shard.keys_sha256 is not None:
            collections.deque(cache.shard_keys(i), maxlen=0)
        except InputError as e:
          problems.append(str(e))
        try:
          for block in cache.shard_blocks(i):
            ids.add(block.example_id)
            problems += _row_problems(cache.path / shard.file, block, info)
        except InputError as e:
          problems.append(str(e))
      if progress is not None:
        progress(i + 1, len(cache.shards))
    repeated = ids.found()
  if len(repeated):
    problems.append(
      f"{cache.path}: {len(repeated)} ids come more than once, the first is "
      f"example_id {repeated[0]}"
    )
  return VerifyReport(
    num_shards=len(cache.shards),
    num_rows=info.num_examples,
    problems=tuple(problems),
  )


def _row_problems(
  place: pathlib.Path, block: Block, info: CacheInfo
) -> Iterator[str]:
  finite = np.isfinite(block.embedding).all(axis=1)
  with np.errstate(invalid="ignore"):
    norm_holds = stored_norm(block.embedding) == block.embedding_norm
  in_range = (block.label >= 0) & (block.label < info.num_classes)
  for good, what in (
    (finite, "an embedding that is not finite"),
    (norm_holds | ~finite, "an embedding_norm that is not its norm"),
    (in_range, f"a label outside [0, {info.num_classes})"),
  ):
    if not good.all():
      first = block.example_id[~good][0]
      yield f"{place}: example_id {first} has {what}"


def _metadata_problems(cache: FeatureCache) -> Iterator[str]:
  info = cache.info
  in_shards = sorted(i for s in cache.shards for i in s.skipped_example_ids)
  if in_shards != list(info.skipped_example_ids):
    yield f"{cache.path / INFO_FILE}: its skipped ids are not the shards'"
  outside = sum(shard.outside for shard in cache.shards)
  counted = info.num_examples + len(in_shards) + outside
  if counted != info.source_num_examples:
    yield (
      f"{cache.path / INFO_FILE}: {info.num_examples} rows, {len(in_shards)} "
      f"skipped examples and {outside} outside the part are not the "
      f"{info.source_num_examples} examples of the split"
    )
  expected = tfds_metadata(info, cache.shards)
  for name, text in expected.items():
    try:
      same = stored_json(cache.store, name) == json.loads(text)
    except (FileNotFoundError, InputError):
      same = False
    if not same:
      yield f"{cache.path / name}: missing or not what TFDS must be told"
  listed = {shard.file for shard in cache.shards}
  for name in sorted(cache.store.sizes()):
    if ".array_record-" in name and name not in listed:
      yield f"{cache.path / name}: not one of the cache's shards"
