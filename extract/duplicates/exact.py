"""Rows of a cache, or of two caches, that are one image twice.

A guarantee is per row: an image that is in the private data twice moves the sum
by twice the clip norm. And one that is in the public data as well (those the
backbone was trained on) has no privacy to protect, and makes private accuracy
look better than it is; the paper removes such near duplicates.

Pixels are not in a cache, so embeddings are compared. The same pixels have the
same embedding up to rounding (2e-6, not equal bits): look for a cosine of
0.99999 and more to find copies, and for about 0.98 to find crops and
re-encodings. With --views the crops are drawn from the bytes of the file, so
the same picture in another file has others. What is found has the same
embedding, which need not be the same image, and is as private as its rows.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.block import EMBEDDING_DTYPES, Block
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.duplicates.near import CosineIndex

_QUERY_BLOCKS = 128
"""How many blocks of the other cache are in memory; the more, the narrower
the windows of each."""

Progress = Callable[[str, int, int], object]
"""Called with what is being done, how much of it is done, and of how much."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DuplicatePair:
  """Two rows that are, or may be, one image; `cosine` is 1 for equal bits."""

  example_id: int
  other_id: int
  cosine: float
  equal_bits: bool


def find_duplicates(
  cache: FeatureCache,
  *,
  against: FeatureCache | None = None,
  min_cosine: float | None = None,
  progress: Progress = lambda what, done, total: None,
) -> Iterator[DuplicatePair]:
  """Streams the duplicates within a cache, or between it and another one.

  Formal guarantees: a row whose stored embedding has the bytes of an earlier
  one's is paired with the first such row (of `cache`, where there are two
  caches), and once. (Bytes are compared by BLAKE2b, 128 bits.) Of the different
  embeddings, all pairs with a cosine of at least `min_cosine` are found and no
  others (`near.CosineIndex`), each once, for the first row that has
  the embedding. So the connected components of all pairs are the duplicates,
  and a thousand copies of one image are 999 pairs.

  Memory: about 200 bytes for each row of `cache`; with `min_cosine`, its rows
  too and 8·66 bytes more each (4 GB for 1,281,167 × 1280 float16). The other
  cache is streamed.

  `against` are rows of the same backbone; without a `min_cosine`, in (0, 1],
  bits are compared only. InputError: the caches cannot be compared or
  `min_cosine` makes no sense; later, a row is damaged.
  """
  if min_cosine is not None and not 0 < min_cosine <= 1:
    raise InputError(f"min_cosine={min_cosine} must be in (0, 1].")
  if against is not None:
    check_comparable(cache, against)
  return _find(cache, against, min_cosine, progress)


def check_comparable(cache: FeatureCache, other: FeatureCache) -> None:
  """Refuses caches in which an image has two embeddings, or the same cache."""
  if cache.path.resolve() == other.path.resolve():
    raise InputError(
      f"{other.path} is the cache itself: leave the other one out to look for"
      " duplicates within it."
    )
  a, b = cache.info, other.info
  for what, mine, theirs in (
    ("backbone", a.backbone_fingerprint[:12], b.backbone_fingerprint[:12]),
    ("embedding_dtype", a.embedding_dtype, b.embedding_dtype),
    ("views", a.views, b.views),
  ):
    if mine != theirs:
      raise InputError(
        f"{cache.path} has {what} {mine}, {other.path} {theirs}: one image has"
        " another embedding in each; extract both in the same way."
      )


def _find(
  cache: FeatureCache,
  against: FeatureCache | None,
  min_cosine: float | None,
  progress: Progress,
) -> Iterator[DuplicatePair]:
  repeats: list[tuple[int, int]] = []
  place, ids, rows = _read(cache, repeats, min_cosine is not None, progress)
  if against is None:
    for first, again in repeats:
      yield _pair(first, again)
  index = None if min_cosine is None else CosineIndex(rows, min_cosine)
  if against is not None:
    yield from _between(place, ids, against, index, progress)
  elif index is not None:
    for close in index.within(functools.partial(progress, "compare")):
      yield from map(_pair, ids[close.row], ids[close.query], close.cosine)


def _read(
  cache: FeatureCache,
  repeats: list[tuple[int, int]],
  keep_rows: bool,
  progress: Progress,
) -> tuple[dict[bytes, int], np.ndarray, np.ndarray]:
  """Where the digest of each embedding is first, and the ids and rows there.

  There are no rows unless they are kept.
  """
  n, info = len(cache), cache.info
  position: dict[bytes, int] = {}
  ids = np.empty(n, np.int64)
  rows = np.empty(
    (n if keep_rows else 0, info.feature_dim),
    EMBEDDING_DTYPES[info.embedding_dtype],
  )
  for block in _finite_blocks(cache, progress):
    for digest, embedding, example_id in zip(
      _digests(block), block.embedding, block.example_id.tolist(), strict=True
    ):
      new = len(position)
      first = position.setdefault(digest, new)
      if first < new:
        repeats.append((int(ids[first]), example_id))
        continue
      ids[new] = example_id
      if keep_rows:
        rows[new] = embedding
  count = len(position)
  return position, ids[:count], rows[:count]


def _between(
  place: dict[bytes, int],
  ids: np.ndarray,
  other: FeatureCache,
  index: CosineIndex | None,
  progress: Progress,
) -> Iterator[DuplicatePair]:
  blocks = _finite_blocks(other, progress)
  while batch := list(itertools.islice(blocks, _QUERY_BLOCKS)):
    embedding = np.concatenate([block.embedding for block in batch])
    others = np.concatenate([block.example_id for block in batch])
    same = np.array([place.get(d, -1) for b in batch for d in _digests(b)])
    for query in np.flatnonzero(same >= 0):
      yield _pair(ids[same[query]], others[query])
    for pairs in index.against(embedding) if index else ():
      for row, query, cosine in zip(
        pairs.row, pairs.query, pairs.cosine, strict=True
      ):
        if same[query] != row:
          yield _pair(ids[row], others[query], cosine)


def _pair(
  row: Any, other: Any, cosine: float | np.float64 | None = None
) -> DuplicatePair:
  """Two rows of these ids; of equal bits where no cosine is given."""
  return DuplicatePair(
    example_id=int(row),
    other_id=int(other),
    cosine=1.0 if cosine is None else float(cosine),
    equal_bits=cosine is None,
  )


def _finite_blocks(cache: FeatureCache, progress: Progress) -> Iterator[Block]:
  done = 0
  for block in cache.blocks():
    finite = np.isfinite(block.embedding).all(axis=1)
    if not finite.all():
      raise InputError(
        f"{cache.path}: example_id {block.example_id[~finite][0]} is not"
        " finite; run `oneshot-dp verify`, then extract it again."
      )
    yield block
    done += len(block)
    progress(f"read {cache.path.name}", done, len(cache))


def _digests(block: Block) -> list[bytes]:
  rows = np.ascontiguousarray(block.embedding).view(np.uint8)
  return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]
