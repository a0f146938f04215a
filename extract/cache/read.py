"""Reading a feature cache, or a part of it, and checking all that is in it."""

import dataclasses
import functools
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
)
from oneshot_dp.extract.cache.keys import in_part
from oneshot_dp.extract.cache.shard_file import (
  read_shard,
)
from oneshot_dp.extract.threads import prefetch_map

_SHARDS_AHEAD = 4
"""Shards that are read and hashed before their turn, of 0.8 to 5 MB each."""
ABSENT = "-"
"""The value of what a cache does not have; it has no line in a table."""
_MERGED_ROWS = 2048
_MERGED_VALUES = 1 << 22
"""Rows, and values of embeddings, that are handed over as one block: much of
what follows costs more per block than per row."""
_ALIGNMENT = 64
"""Arrays begin at multiples of so many bytes: JAX on a CPU then uses them as
they are, and copies nothing."""
_SHOWN_CLASSES = 8
_ADVICE = (
  "give a cache, which `oneshot-dp extract` makes of images, and `oneshot-dp"
  " import` of embeddings"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureCache:
  """A finished cache, or a part of it; `open_cache` makes one.

  Attributes:
    path: the directory, on a disk or in an object store.
    info: its metadata.
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
    """Public number of rows: that of the source, or a part's mean share."""
    return self.part.mean_of(self.info.source_num_examples)

  @functools.cached_property
  def num_rows(self) -> int:
    """The true number of rows, private; of a part the rows are counted."""
    if self.part.is_whole:
      return sum(shard.rows for shard in self.info.shards)
    return sum(len(rows["label"]) for rows in self.blocks())

  @functools.cached_property
  def private_digest(self) -> str:
    """SHA-256 that identifies these rows; it is private and never released."""
    shards = [shard.sha256 for shard in self.info.shards]
    return sha256_of([self.info.public(), shards, str(self.part)])

  def blocks(self, shards: Sequence[int] | None = None) -> Iterator[Rows]:
    """Streams rows: each row of the part once, in the order of the shards.

    *Formal guarantees*: rows of a shard come only after its bytes were found to
    have the SHA-256 that the metadata state; they are as many as these state.

    Args:
      shards: numbers of the shards to read; None is all of them.

    Yields:
      Columns of up to 2,048 rows.

    Raises:
      InputError: when its turn comes, a shard is missing, damaged or another's.
    """
    selected = self.info.shards
    if shards is not None:
      selected = tuple(self.info.shards[index] for index in shards)
    # Threads help, as hashing and copying release Python's lock.
    for blocks in prefetch_map(
      self._read_blocks, selected, _SHARDS_AHEAD, _SHARDS_AHEAD
    ):
      for block in blocks:
        rows = self._rows_of_part(block)
        if len(rows["label"]):
          yield rows

  def _rows_of_part(self, rows: Rows) -> Rows:
    if self.part.is_whole:
      return rows
    is_in = in_part(self.part, rows)
    return {name: column[is_in] for name, column in rows.items()}

  def _read_blocks(self, shard: Shard) -> list[Rows]:
    """The rows of a shard, in blocks of `_MERGED_ROWS`."""
    store = storage.store_at(self.path)
    place = store.display_path(shard.file)
    advice = "restore it, or make the cache again"
    try:
      stored = read_shard(store, shard.file, self.info, shard)
    except InputError:
      raise
    except FileNotFoundError as e:
      raise InputError(f"{place} does not exist; {advice}.") from e
    except ValueError as e:
      raise InputError(f"{place} is damaged ({e}); {advice}.") from e
    if stored.shard.rows != shard.rows:
      raise InputError(
        f"{place} holds another number of rows than {INFO_FILE} says; {advice}."
      )
    # Records are small, so that TFDS and Grain read them well; blocks are
    # larger, as what follows wants them.
    num_rows = min(_MERGED_ROWS, _MERGED_VALUES // self.info.feature_dim)
    step = max(1, num_rows // BLOCK_ROWS)
    merged = []
    for start in range(0, len(stored.blocks), step):
      merged.append(_merge(stored.blocks[start : start + step]))
    return merged


def _merge(blocks: Sequence[Rows]) -> Rows:
  """The rows of several blocks in aligned memory (see `_ALIGNMENT`)."""
  merged = {}
  for name in blocks[0]:
    columns = [rows[name] for rows in blocks]
    num_bytes = sum(column.nbytes for column in columns)
    # NumPy aligns to 16 bytes. Where an array begins at a multiple of 64, JAX
    # on a CPU uses it where it is, and copies nothing.
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    aligned = memory[start : start + num_bytes].view(columns[0].dtype)
    shape = (-1, *columns[0].shape[1:])
    merged[name] = np.concatenate(columns, out=aligned.reshape(shape))
  return merged


def open_cache(
  path: str | os.PathLike, rows: Part | str = WHOLE
) -> FeatureCache:
  """Opens a finished cache, or a part of it, without reading its rows.

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
    rows: the part of it to read, such as "[:80%]".

  Returns:
    The cache; its rows are read and checked when they are asked for.

  Raises:
    InputError: there is no finished cache, it has another format version, or
      its metadata were edited; or the text is not a part.
  """
  if isinstance(rows, str):
    rows = Part.parse(rows, "rows")
  if not isinstance(rows, Part):
    raise InputError(f"rows={rows!r} must be a part, such as '[:80%]'.")
  store = storage.store_at(path)
  if not storage.is_url(path) and os.path.isfile(path):
    raise InputError(f"{store.display_path()} is a file: {_ADVICE}.")
  # The metadata alone: they are written last, so a directory that has them is
  # complete, and the SHA-256 of each shard is compared when it is read.
  data = storage.read(store, INFO_FILE)
  if data is None:
    raise _not_a_cache(store)
  info = CacheInfo.from_json(data, store.display_path(INFO_FILE))
  return FeatureCache(path=os.fspath(path), info=info, part=rows)


def _not_a_cache(store: storage.Store) -> InputError:
  """An error that says what is there instead of a finished cache."""
  # Imported here, since training needs no readers of images.
  from oneshot_dp.extract.image_files import IMAGE_SUFFIXES

  place = store.display_path()
  names = storage.list_files(store)
  if not names:
    return InputError(
      f"{place}: no such directory, or it is empty; give a cache."
    )
  # The error says what the folder is, and what to give instead.
  if any(name.startswith("job.") for name in names):
    return InputError(
      f"{place} is not a finished cache (no {INFO_FILE}): run its extraction"
      " again to finish it, or give a cache."
    )
  # Before images, since a run has pictures of its accuracies.
  if "results.json" in names:
    return InputError(f"{place} is a run of heads: give the cache, not a run.")
  if any(name.lower().endswith(IMAGE_SUFFIXES) for name in names):
    return InputError(f"{place} is a folder of images: {_ADVICE}.")
  if "receipt.json" in names:
    return InputError(f"{place} is a head: give the cache, not the head.")
  # A cache is a folder of TFDS, too, so one that lost its metadata looks alike.
  for name in names:
    folder, base = os.path.split(name)
    if base == "features.json":
      prepared = os.path.join(place, folder).rstrip("/")
      return InputError(
        f"{place} is not a finished cache (no {INFO_FILE}): if TFDS made it,"
        f" run `oneshot-dp extract tfds:{prepared}`, and give the cache that"
        " this makes."
      )
  return InputError(
    f"{place} is not a finished cache (no {INFO_FILE}): {_ADVICE}."
  )


def describe(cache: FeatureCache) -> dict[str, str]:
  """Describes a cache to its holder: exact counts, no label statistics.

  Args:
    cache: a cache, or a part of one.

  Returns:
    Values by their captions, in the order to print them in; `ABSENT` for what
    the cache does not have, such as views.
  """
  info = cache.info
  made_by = [info.backbone.get("name"), info.backbone.get("layer")]
  sha256 = info.backbone.get("weights_sha256")
  if sha256:
    made_by.append(f"weights {sha256[:12]}")
  libraries = info.computed_by.get("libraries", {})
  versions = ", ".join(f"{name} {v}" for name, v in libraries.items())
  names = ", ".join(info.class_names[:_SHOWN_CLASSES])
  if info.num_classes > _SHOWN_CLASSES:
    names += ", …"
  lines = {
    "data set": f"{info.dataset}, split {info.split}{cache.part}",
    "examples": f"{cache.num_rows:,} of {info.source_num_examples:,}",
    "features": f"{info.feature_dim} x {info.embedding_dtype}",
    "classes": f"{info.num_classes} (from {info.num_classes_source})",
    "class names": names,
    "backbone": ", ".join(str(part) for part in made_by if part),
    "computed by": versions or ABSENT,
    "views": str((info.views or {}).get("count", ABSENT)),
    "privacy unit": info.unit,
    "size": f"{sum(shard.bytes for shard in info.shards):,} bytes",
    "fingerprint": info.fingerprint,
  }
  # Each value is one line, whoever wrote the cache.
  described = {}
  for caption, value in lines.items():
    described[caption] = escaped(value, but="")
  return described
