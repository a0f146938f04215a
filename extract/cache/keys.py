"""Keys by which a row is recognized, whatever name or id it has.

Each row has two keys: a hash of its image's bytes, and a hash of the direction
of its embedding. The second is computed from the embedding itself, so nobody
can choose it. Two rows that share either key are taken for the same row: under
another name, split, id, label or unit; scaled, or in another precision; and (by
the image) through another backbone. An image that was encoded again or cropped
has other keys, and so has an embedding that was centered, projected or changed
in any other way.

Whoever holds a candidate image can compute its keys and look for them among
those of the rows. So keys, and whatever is made of them, stay with the private
data.
"""

import functools
import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt64

from oneshot_dp.configs.extract_config import NO_OWNER
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import Rows

MOST_KEYS = 1 << 22
"""How many keys of each kind are kept: the smallest. Keys are hashes, so these
are a random sample."""
_MOST_VALUES = 256
"""At most so many values of an embedding decide the key of its direction."""
_BUCKETS = 64
_FINENESS = 1024
"""How finely buckets are cut into cells, summed over all buckets of a row. Rows
whose buckets differ by a share s of their size have the same key with
probability about exp(-1024 s). That is so for 3 of 4 rows rounded to float16,
for nearly all in float32, and for one in 10^6 pairs of images whose embeddings
have a cosine of 0.9999 (s = 0.014)."""
_LEAST_DIM = 8
"""Embeddings of fewer dimensions get no key of their direction: many images
would share one."""


def image_units(
  image_key: UInt64[np.ndarray, "n 2"],
) -> Int64[np.ndarray, " n"]:
  """The `unit_id` of each row where all rows of one image are a unit.

  It is 63 bits of the image's hash, which whoever has the image can compute:
  like all unit ids it stays in the cache.

  *Formal guarantee*: a function of the row's own image alone, so that no image
  moves another from its unit.
  """
  return (image_key[:, 0] >> np.uint64(1)).astype(np.int64)


def embedding_keys(
  embedding: Float[np.ndarray, "rows d"],
) -> UInt64[np.ndarray, "rows 2"]:
  """128-bit hashes of the values of embeddings, for rows without an image.

  *Formal guarantee*: the same in every precision that holds the values.

  Args:
    embedding: one row per example.

  Returns:
    Two words of 64 bits per row; zeros for a row of zeros, which stands for no
    example.
  """
  values = embedding.astype("<f4") + np.float32(0)  # -0 becomes 0
  keys = _hash_rows(values, b"embedding", 16)
  keys[~values.any(axis=1)] = 0
  return keys


def direction_keys(
  embedding: Float[np.ndarray, "rows d"],
) -> UInt64[np.ndarray, " rows"]:
  """64-bit hashes of the directions of embeddings, whatever their lengths.

  The values are summed, with random signs, in up to 64 buckets. Each bucket is
  divided by the buckets' mean size and rounded to a cell; the cells are hashed.

  *Formal guarantee*: a row scaled by a power of two has the same key. One that
  was scaled otherwise, brought to norm 1 or rounded has it mostly (see
  `_FINENESS`); of rows that were stored as bfloat16 instead, 0.3 to 22 % have
  the same key (PRIVACY.md, section 6).

  Args:
    embedding: one row per example, in any floating-point dtype.

  Returns:
    One word per row; 0 where there is no direction: rows of fewer than 8
    values, and rows whose buckets are all zero or not finite. No two rows are
    taken for the same because both have 0.
  """
  num_rows, d = embedding.shape
  keys = np.zeros(num_rows, np.uint64)
  if d < _LEAST_DIM or not num_rows:
    return keys
  projection = _projection(d)
  num_buckets, per_bucket = projection.columns.shape
  with np.errstate(invalid="ignore"):
    values = embedding[:, projection.columns.ravel()].astype(np.float64)
    signed = values * projection.signs.ravel()
    buckets = signed.reshape(num_rows, num_buckets, per_bucket).sum(axis=2)
    # The mean is over square roots, so that one bucket that is far larger than
    # the others does not hide them.
    roots = np.sqrt(np.abs(buckets)).mean(axis=1, keepdims=True)
    scale = roots**2
    has_direction = np.isfinite(scale[:, 0]) & (scale[:, 0] > 0)
    relative = buckets[has_direction] / scale[has_direction]
    cells = np.floor(relative * (_FINENESS / num_buckets) + 0.5)
  # Scaling or rounding a row seldom moves a bucket over the border of its cell,
  # and one row that keeps its key is enough to recognize the data.
  hashes = _hash_rows(cells.astype("<i4"), b"direction", 8)
  keys[has_direction] = hashes[:, 0]
  return keys


class _Projection(NamedTuple):
  """The values of an embedding that are summed into each bucket.

  Attributes:
    columns: indices of values, int [buckets, values per bucket].
    signs: +1 or -1 for each of them, float64.
  """

  columns: np.ndarray
  signs: np.ndarray


@functools.cache
def _projection(d: int) -> _Projection:
  """A pseudorandom projection, the same in every process and version."""
  stream = hashlib.shake_256(b"direction %d" % d).digest(8 * d)
  # From a hash and not from a generator of NumPy, whose streams may change:
  # keys of old ledgers are compared with those of new caches.
  words = np.frombuffer(stream, "<u8")
  num_buckets = min(_BUCKETS, d)
  per_bucket = max(1, min(d, _MOST_VALUES) // _BUCKETS)
  order = np.argsort(words, kind="stable")
  columns = order[: num_buckets * per_bucket].reshape(num_buckets, per_bucket)
  signs = (words[columns] & np.uint64(1)).astype(np.float64) * 2 - 1
  return _Projection(columns, signs)


def in_part(part: Part, rows: Rows) -> Bool[np.ndarray, " rows"]:
  """Tells which rows are in a part, by their units or else by their images.

  *Formal guarantee*: whether a row is in a part is a function of its own image
  key alone or, where each row has one unit, of its `unit_id` alone. So all rows
  of a unit are in the same one of several parts that do not overlap. (Where a
  row may belong to several units, all units may be connected, and images
  decide.)

  Args:
    part: percentages of the rows.
    rows: columns of one block.

  Returns:
    For each row, whether it is in the part.
  """
  if "unit_id" in rows and rows["unit_id"].ndim == 1:
    # Where rows have a unit each, it alone decides: all rows of a person are in
    # one part, and which others are there does not matter.
    words = _unit_words(rows["unit_id"])
  else:
    words = rows["image_key"][:, 1]
  # The upper 32 bits, as a fraction of 2^32, in percent.
  percentile = (words >> np.uint64(32)).astype(np.int64) * 100 >> 32
  return (part.first <= percentile) & (percentile < part.last)


def _unit_words(ids: Int64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
  """A hash of each unit's id."""
  distinct, place = np.unique(ids.astype("<i8"), return_inverse=True)
  return _hash_rows(distinct[:, None], b"unit", 8)[place, 0]


def _hash_rows(rows: np.ndarray, kind: bytes, size: int) -> np.ndarray:
  """BLAKE2b of each row's bytes, as words of 64 bits [n, size / 8]."""
  # BLAKE2b's `person` is the kind of key: the same bytes have different keys of
  # different kinds.
  digests = []
  for row in np.ascontiguousarray(rows):
    digest = hashlib.blake2b(row.data, digest_size=size, person=kind)
    digests.append(digest.digest())
  words = np.frombuffer(b"".join(digests), "<u8")
  return words.reshape(-1, size // 8).copy()


def keys_of(blocks: Iterable[Rows]) -> dict[str, UInt64[np.ndarray, " _keys"]]:
  """Computes the keys of rows, by kind: "image", "direction" and "unit".

  They are private. About 40 bytes are held for each row, for at most 2 ·
  `MOST_KEYS` rows.

  Args:
    blocks: the rows of a cache, as `FeatureCache.blocks` yields them.

  Returns:
    Sorted 64-bit words without duplicates, at most `MOST_KEYS` of a kind. A
    kind that no row has is left out.
  """
  # The smallest keys are a sample that is the same for equal rows: of two large
  # data sets with common rows, both samples have common keys.
  image = _KeySample()
  direction = _KeySample()
  unit = _KeySample()
  rows_since_trim = 0
  for rows in blocks:
    image.add(rows["image_key"][:, 0])
    direction.add(direction_keys(rows["embedding"]))
    if "unit_id" in rows:
      unit.add(_unit_words(_units_in(rows["unit_id"])))
    # Sorting takes the time, so it is done only once in so many rows; that
    # still bounds the memory.
    rows_since_trim += len(rows["label"])
    if rows_since_trim > MOST_KEYS:
      for sample in (image, direction, unit):
        sample.trim()
      rows_since_trim = 0
  samples = {"image": image, "direction": direction, "unit": unit}
  keys = {kind: sample.trim() for kind, sample in samples.items()}
  return {kind: words for kind, words in keys.items() if len(words)}


def _units_in(unit_id: Int64[np.ndarray, "n *m"]) -> Int64[np.ndarray, " u"]:
  """All units that own one of these rows."""
  units = np.unique(unit_id)
  if unit_id.ndim == 2:  # else every number is somebody's
    units = units[units != NO_OWNER]
  return units


class _KeySample:
  """The `MOST_KEYS` smallest distinct keys of all that were added, but 0."""

  def __init__(self):
    self._parts = [np.empty(0, np.uint64)]

  def add(self, words: UInt64[np.ndarray, " n"]) -> None:
    """Adds keys, which are kept until the next `trim`."""
    self._parts.append(words)

  def trim(self) -> UInt64[np.ndarray, " keys"]:
    """Drops all but the smallest, and returns those."""
    kept = _smallest(self._parts)
    self._parts = [kept]
    return kept


def _smallest(parts: list[np.ndarray]) -> UInt64[np.ndarray, " keys"]:
  keys = np.concatenate(parts)
  keys.sort()  # numpy's `unique` takes ten times as long
  is_first = np.diff(keys, prepend=np.uint64(0)) != 0  # and 0 is none
  return keys[is_first][:MOST_KEYS]
