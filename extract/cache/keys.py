"""Keys of what is in a row: the same, whatever the row is called.

A row has a key of its image's bytes and one of its embedding's direction, which
is computed of the embedding itself and so cannot be made up. Rows that share
either are one row: under another name, split, id, label or unit; scaled, in
another precision, and (by the image) through another backbone. An image that
was encoded again or cropped has other keys, and so has an embedding that was
centred, projected or changed otherwise.

A key tells whoever holds a candidate whether it is among the rows, so keys, and
whatever is made of them, stay with the private data.
"""

import functools
import hashlib
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt64

from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import Rows

if TYPE_CHECKING:
  from oneshot_dp.extract.cache.read import FeatureCache

MOST_KEYS = 1 << 22
"""Keys kept of a kind: the smallest, a sample, since keys are hashes."""
_MOST_VALUES = 256
"""Values of an embedding that its direction is read off."""
_BUCKETS = 64
_FINENESS = 1024
"""Cells that a row's buckets are cut into, all together, per mean bucket. Rows
whose buckets differ by a share s of their size have one key with probability
about exp(-1024 s): 3 of 4 that float16 rounded anew, nearly all in float32; one
in 10^6 pairs of images whose embeddings have a cosine of 0.9999 (s = 0.014)."""
_LEAST_DIM = 8
"""In fewer dimensions many images have one direction."""


def embedding_keys(
  embedding: Float[np.ndarray, "rows d"],
) -> UInt64[np.ndarray, "rows 2"]:
  """128 bits of the values of each embedding, for rows without an image.

  The same in every precision that holds the values. A row of zeros stands for
  nothing: its key is 0.
  """
  values = embedding.astype("<f4") + np.float32(0)  # -0 is 0
  keys = _hashed(values, b"embedding", 16)
  keys[~values.any(axis=1)] = 0
  return keys


def direction_keys(
  embedding: Float[np.ndarray, "rows d"],
) -> UInt64[np.ndarray, " rows"]:
  """64 bits of where each embedding points to, whatever its length is.

  The values are summed, with random signs, in up to 64 buckets; a bucket over
  the buckets' mean size is cut into cells, and the cells are hashed. A row
  scaled by a power of two has the same key; one scaled otherwise, brought to
  norm 1 or rounded has it mostly (`_FINENESS`). 0, which no row is said to
  share: buckets of zeros, or that are not finite; any row of fewer than 8
  values.
  """
  rows, d = embedding.shape
  if d < _LEAST_DIM or not rows:
    return np.zeros(rows, np.uint64)
  chosen, signs = _drawn(d)
  m, each = chosen.shape
  with np.errstate(invalid="ignore"):
    values = embedding[:, chosen.ravel()].astype(np.float64) * signs.ravel()
    buckets = values.reshape(rows, m, each).sum(axis=2)
    # Of roots: a bucket that is far larger than the others hides none of them.
    scale = np.sqrt(np.abs(buckets)).mean(axis=1, keepdims=True) ** 2
    good = np.isfinite(scale[:, 0]) & (scale[:, 0] > 0)
    cells = np.floor(buckets[good] / scale[good] * (_FINENESS / m) + 0.5)
  keys = np.zeros(rows, np.uint64)
  keys[good] = _hashed(cells.astype("<i4"), b"direction", 8)[:, 0]
  return keys


@functools.cache
def _drawn(d: int) -> tuple[np.ndarray, np.ndarray]:
  """Which values go into which bucket, and with which sign; the same always."""
  words = np.frombuffer(
    hashlib.shake_256(b"direction %d" % d).digest(8 * d), "<u8"
  )
  each = max(1, min(d, _MOST_VALUES) // _BUCKETS)
  m = min(_BUCKETS, d)
  chosen = np.argsort(words, kind="stable")[: m * each].reshape(m, each)
  return chosen, (words[chosen] & np.uint64(1)).astype(np.float64) * 2 - 1


def in_part(part: Part, rows: Rows) -> Bool[np.ndarray, " rows"]:
  """Which rows are in a part, by the keys of their images or by their units.

  *Formal guarantee*: of each row a function of its own bytes alone, and where
  rows have units of the `unit_id` alone: of parts that do not meet, a unit has
  rows in one.
  """
  words = rows["image_key"][:, 1]
  if "unit_id" in rows:
    words = _unit_words(rows["unit_id"])
  percentile = (words >> np.uint64(32)).astype(np.int64) * 100 >> 32
  return (part.first <= percentile) & (percentile < part.last)


def _unit_words(ids: Int64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
  distinct, place = np.unique(ids.astype("<i8"), return_inverse=True)
  return _hashed(distinct[:, None], b"unit", 8)[place, 0]


def _hashed(rows: np.ndarray, kind: bytes, size: int) -> np.ndarray:
  """BLAKE2b of each row's bytes, as words of 64 bits [n, size / 8]."""
  digests = [
    hashlib.blake2b(row.data, digest_size=size, person=kind).digest()
    for row in np.ascontiguousarray(rows)
  ]
  return np.frombuffer(b"".join(digests), "<u8").reshape(-1, size // 8).copy()


def keys_of(cache: "FeatureCache") -> dict[str, UInt64[np.ndarray, " _keys"]]:
  """Keys of a cache's rows, by kind: "image", "direction" and "unit"; private.

  64 bits each, sorted, each once, `MOST_KEYS` of a kind at most; a kind that no
  row has is left out. Reads all rows once, and holds about 40 bytes for each,
  of 2 · `MOST_KEYS` at most.
  """
  none, waiting = np.empty(0, np.uint64), 0
  found = {kind: [none] for kind in ("image", "direction", "unit")}
  for rows in cache.blocks():
    found["image"].append(rows["image_key"][:, 0])
    found["direction"].append(direction_keys(rows["embedding"]))
    if "unit_id" in rows:
      found["unit"].append(_unit_words(np.unique(rows["unit_id"])))
    waiting += len(rows["label"])
    if waiting > MOST_KEYS:
      found = {kind: [_smallest(parts)] for kind, parts in found.items()}
      waiting = 0
  kept = {kind: _smallest(parts) for kind, parts in found.items()}
  return {kind: keys for kind, keys in kept.items() if len(keys)}


def _smallest(parts: list[np.ndarray]) -> UInt64[np.ndarray, " keys"]:
  keys = np.concatenate(parts)
  keys.sort()  # numpy's `unique` takes ten times as long
  return keys[np.diff(keys, prepend=np.uint64(0)) != 0][:MOST_KEYS]
