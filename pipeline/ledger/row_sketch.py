"""Which rows a ledger was charged for, by keys of what is in them.

An entry that charges for rows has their keys in `row_keys`, but for those that
an entry before it has. Of a cache of more than `MOST_KEYS` keys the smallest
are kept, which are a sample, since keys are hashes: all caches keep the same
part of their common rows. However many others a ledger is charged for, what it
keeps of some rows stays. Where rows have units, a key of each unit of the data
set is among them.
"""

import base64
import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, UInt64

from oneshot_dp.extract.cache.content_keys import is_among
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.duplicates.shared_rows import units_in

MOST_KEYS = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RowSketch:
  """The smallest keys of a set of rows, `MOST_KEYS` at most; private.

  That of several entries has all that each of them keeps.

  Formal guarantees: of two sets of rows (one a charge's, whatever else was
  charged, or a cache's) with u different keys in both together,
  a common key is seen for certain where u ≤ `MOST_KEYS`; else s common keys are
  all missed with a probability below exp(−s·MOST_KEYS/u). Keys have 64 bits
  here, so two such sketches that have nothing in common seem to have something
  with a probability below MOST_KEYS²/2⁶⁴ < 3e-10.

  Keys are sorted, each once.
  """

  keys: UInt64[np.ndarray, " keys"]

  @classmethod
  def of(cls, keys: UInt64[np.ndarray, "..."]) -> Self:
    """The sketch of all keys of some rows; 0 is that of no row."""
    distinct = _distinct(keys)
    return cls(distinct[distinct > 0][:MOST_KEYS])

  @classmethod
  def of_cache(cls, cache: FeatureCache) -> "RowSketch":
    """The sketch of a cache's rows; reads all keys, and keeps few."""
    sketch, waiting = cls.of(np.empty(0, np.uint64)), [np.empty(0, np.uint64)]
    for keys in cache.key_blocks():
      low = keys[..., 0].ravel()
      if len(sketch) == MOST_KEYS:  # and larger ones cannot enter
        low = low[low < sketch.keys[-1]]
      waiting.append(low)
      if sum(map(len, waiting)) > MOST_KEYS:
        sketch |= cls.of(np.concatenate(waiting))
        waiting = [np.empty(0, np.uint64)]
    units = unit_keys(cache, cache.info.dataset)
    return sketch | cls.of(np.concatenate([*waiting, units]))

  @classmethod
  def of_entries(cls, entries: Iterable[dict[str, Any]]) -> Self:
    """All that some entries of a ledger keep of rows that they charged for."""
    kept = [
      np.frombuffer(base64.b64decode(entry["row_keys"]), "<u8")
      for entry in entries
      if "row_keys" in entry
    ]
    return cls(_distinct(np.concatenate([np.empty(0, np.uint64), *kept])))

  def __or__(self, other: "RowSketch") -> "RowSketch":
    return self.of(np.concatenate([self.keys, other.keys]))

  def __len__(self) -> int:
    return len(self.keys)

  def holds(
    self, keys: UInt64[np.ndarray, "rows kinds 2"]
  ) -> Bool[np.ndarray, " rows"]:
    """Which rows are seen to be among those of the sketch; private."""
    seen = is_among(self.keys, keys[..., 0])
    return np.logical_or.reduce(seen, axis=1)

  def common(self, other: Self) -> int:
    """How many keys are seen to be in both."""
    return len(np.intersect1d(self.keys, other.keys, assume_unique=True))

  def facts_beyond(self, known: Self) -> dict[str, str]:
    """What an entry has to keep where `known` is kept already."""
    new = np.setdiff1d(self.keys, known.keys, assume_unique=True)
    data = new.astype("<u8").tobytes()
    return {"row_keys": base64.b64encode(data).decode()} if data else {}


def _distinct(keys: np.ndarray) -> UInt64[np.ndarray, " keys"]:
  """Sorted, each once; for which np.unique takes 50 times as long."""
  words = np.sort(keys, axis=None)
  return np.concatenate([words[:1], words[1:][words[1:] != words[:-1]]])


def unit_keys(
  cache: FeatureCache, dataset: str
) -> UInt64[np.ndarray, " units"]:
  """A key of each unit of a cache, as if in a data set of this name; private.

  Numbers of units mean something within a data set: in another one, and as
  another unit, they have other keys.
  """
  start = hashlib.blake2b(digest_size=8, person=b"unit of a ledger")
  start.update(f"{dataset}\0{cache.info.privacy_unit}\0".encode())
  digests = []
  for unit in units_in(cache).astype("<i8"):
    digest = start.copy()
    digest.update(unit.tobytes())
    digests.append(digest.digest())
  return np.frombuffer(b"".join(digests), "<u8")
