"""Reading a feature cache, or a part of it, and checking all that is in it."""

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Sequence

import numpy as np

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.parts import WHOLE, Part
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import (
  BLOCK_ROWS,
  INFO_FILE,
  CacheInfo,
  Rows,
  Shard,
  sha256_of,
  tfds_files,
)
from oneshot_dp.extract.cache.keys import embedding_keys, in_part
from oneshot_dp.extract.cache.shard_file import read_shard, stored_norm
from oneshot_dp.extract.threads import prefetch_map

_AHEAD = 4
"""Shards that are read and hashed before their turn, of 0.8 to 5 MB each."""
_JOINED, _JOINED_NUMBERS = 2048, 1 << 22
"""Rows that are read as one, for what costs more per block than per row."""


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
    return storage.store_at(self.path).display_path() + str(self.part)

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

  @functools.cached_property
  def private_digest(self) -> str:
    """SHA-256 of which rows these are; never leaves."""
    shards = [shard.sha256 for shard in self.info.shards]
    return sha256_of([self.info.public(), shards, str(self.part)])

  def blocks(self, shards: Sequence[int] | None = None) -> Iterator[Rows]:
    """Streams the rows of some shards, or of all: every row of the part once.

    Formal guarantees: a shard's rows come only after its bytes had the SHA-256
    of the metadata; the order is that of the shards.

    InputError: when its turn comes, a shard is missing, damaged or another's.
    """
    every = self.info.shards
    asked = every if shards is None else [every[i] for i in shards]
    # Hashing and copying let go of Python's lock.
    for blocks in prefetch_map(self._shard, asked, _AHEAD, _AHEAD):
      for rows in blocks:
        if not self.part.is_whole:
          there = in_part(self.part, rows)
          rows = {name: column[there] for name, column in rows.items()}
        if len(rows["label"]):
          yield rows

  def _shard(self, shard: Shard) -> list[Rows]:
    store = storage.store_at(self.path)
    try:
      blocks, _, _ = read_shard(store, shard.file, self.info, shard)
    except InputError:
      raise
    except (ValueError, FileNotFoundError) as e:
      said = f"damaged ({e})" if isinstance(e, ValueError) else "not there"
      raise InputError(
        f"{store.display_path(shard.file)} is {said}; restore it, or make"
        " the cache"
        " again."
      ) from e
    rows = min(_JOINED, _JOINED_NUMBERS // self.info.feature_dim)
    some = max(1, rows // BLOCK_ROWS)
    every = range(0, len(blocks), some)
    return [_joined(blocks[start : start + some]) for start in every]


def _joined(blocks: Sequence[Rows]) -> Rows:
  """The rows of all, at 64 bytes, where a CPU's device may read them."""
  found = {}
  for name in blocks[0]:
    columns = [rows[name] for rows in blocks]
    memory = np.empty(sum(column.nbytes for column in columns) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    place = memory[start : start + len(memory) - 64].view(columns[0].dtype)
    shape = -1, *columns[0].shape[1:]
    found[name] = np.concatenate(columns, out=place.reshape(shape))
  return found


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

  InputError: no finished cache, another version, or edited metadata.
  """
  store = storage.store_at(path)
  if (data := storage.read(store, INFO_FILE)) is None:
    if not storage.list_files(store):
      said = "no such directory, or empty; name a cache"
      raise InputError(f"{store.display_path()}: {said}.")
    raise InputError(
      f"{store.display_path()} is no finished cache (no {INFO_FILE}): run its"
      " extraction again to finish it, or give a cache."
    )
  info = CacheInfo.from_json(data, store.display_path(INFO_FILE))
  return FeatureCache(path=os.fspath(path), info=info, part=rows)


def check_cache(path: str | os.PathLike) -> list[str]:
  """Checks that a cache is what its metadata says, down to each row.

  *Formal guarantee*: with no problem found every shard has the SHA-256 with
  which it was written, and is of one job; every row is finite, has the norm of
  its stored embedding to the last bit, a label in [0, K), an id that no other
  row has, and, of what was imported, the key of its embedding; and TFDS is told
  the same. (The key of an image cannot be checked without the image: the
  ledger goes by the embedding's direction as well.)

  Returns:
    Every problem found, one line each; they name shards and ids, and no values.

  Raises:
    InputError: there is no cache to check, or its metadata cannot be read.
  """
  info, store = open_cache(path).info, storage.store_at(path)
  names, problems = {shard.file for shard in info.shards}, []
  for name in storage.list_files(store):
    if ".array_record-" in name and name not in names:
      problems.append(
        f"{store.display_path(name)} is not one of the cache's shards"
      )
  for name, text in tfds_files(info).items():
    try:
      same = json.loads(storage.read(store, name) or b"") == json.loads(text)
    except ValueError:  # an InputError, too
      same = False
    if not same:
      said = "missing, or not what TFDS must be told"
      problems.append(f"{store.display_path(name)}: {said}")
  ids, jobs = [np.empty(0, np.int64)], set()
  for shard in info.shards:
    where = store.display_path(shard.file)
    try:
      blocks, of_jobs, found = read_shard(store, shard.file, info, shard)
    except (FileNotFoundError, ValueError) as e:
      problems.append(f"{where} is damaged, or not there ({e})")
      continue
    jobs |= of_jobs
    starts = range(0, max(1, found.rows), BLOCK_ROWS)
    cut = [min(BLOCK_ROWS, found.rows - at) for at in starts]
    whole = [len(rows["label"]) for rows in blocks] == cut
    if found != shard or not whole or found.rows > info.shard_rows:
      problems.append(
        f"{where}: {found.rows} rows in {found.blocks} blocks, and the metadata"
        f" say {shard.rows} in {shard.blocks}, of {BLOCK_ROWS} at most"
      )
    for rows in blocks:
      ids.append(rows["example_id"])
      problems += _row_problems(where, rows, info)
  found, counts = np.unique(np.concatenate(ids), return_counts=True)
  if len(again := found[counts > 1]):
    problems.append(
      f"{store.display_path()}: {len(again)} ids come more than once, the"
      " first is"
      f" example_id {again[0]}"
    )
  if len(jobs) > 1:
    problems.append(
      f"{store.display_path()}: its shards are of {len(jobs)} jobs"
    )
  return problems


def _row_problems(where: str, rows: Rows, info: CacheInfo) -> Iterator[str]:
  embedding, label, key = rows["embedding"], rows["label"], rows["image_key"]
  with np.errstate(invalid="ignore", over="ignore"):
    finite = np.isfinite(embedding).all(axis=1)
    norm = stored_norm(embedding) == rows["embedding_norm"]
    known = key.any(axis=1)
    if info.keys == "embedding":
      known = (embedding_keys(embedding) == key).all(axis=1)
  k = info.num_classes
  for good, what in (
    (finite, "an embedding that is not finite"),
    (norm | ~finite, "an embedding_norm that is not its norm"),
    ((label >= 0) & (label < k), f"a label outside [0, {k})"),
    (known, "an image_key that is not its key"),
  ):
    if not good.all():
      yield f"{where}: example_id {rows['example_id'][~good][0]} has {what}"


def describe(cache: FeatureCache) -> dict[str, str]:
  """What a cache is, for its holder: exact counts, no label statistics."""
  info = cache.info
  made_by = [info.backbone.get(name) for name in ("name", "layer")]
  if sha256 := info.backbone.get("weights_sha256"):
    made_by.append(f"weights {sha256[:12]}")
  libraries = info.computed_by.get("libraries", {})
  versions = ", ".join(f"{name} {v}" for name, v in libraries.items())
  names = ", ".join(info.class_names[:8]) + ", …" * (info.num_classes > 8)
  return {
    "data set": f"{info.dataset}, split {info.split}{cache.part}",
    "examples": f"{cache.num_rows:,} of {info.source_num_examples:,}",
    "features": f"{info.feature_dim} x {info.embedding_dtype}",
    "classes": f"{info.num_classes} (from {info.num_classes_source})",
    "class names": escaped(names),
    "backbone": escaped(", ".join(map(str, filter(None, made_by)))),
    "computed by": escaped(versions or "-"),
    "views": str((info.views or {}).get("count", "-")),
    "privacy unit": info.unit,
    "size": f"{sum(s.bytes for s in info.shards):,} bytes",
    "fingerprint": info.fingerprint,
  }
