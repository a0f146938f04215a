"""What two caches share, whatever it is called; see `content_keys`."""

import numpy as np
from jaxtyping import Int64

from oneshot_dp.extract.cache.content_keys import is_among, shares_a_key
from oneshot_dp.extract.cache.reader import FeatureCache


def units_in(cache: FeatureCache) -> Int64[np.ndarray, " units"]:
  """The sorted `unit_id` of a cache, each once; reads all of it. Private."""
  found = np.empty(0, np.int64)
  for block in cache.blocks() if cache.info.has_units else ():
    assert block.unit_id is not None
    found = np.union1d(found, block.unit_id)
  return found


def count_shared_units(cache: FeatureCache, among: FeatureCache) -> int:
  """How many units of a cache are units of another one, by their ids; private.

  Units of another name have nothing in common.
  """
  if cache.info.privacy_unit != among.info.privacy_unit:
    return 0
  return len(np.intersect1d(units_in(cache), units_in(among)))


def count_shared_rows(cache: FeatureCache, among: FeatureCache) -> int:
  """How many rows of a cache are rows of another one, too; private.

  In memory are the keys of `cache`, the smaller one, and of `among` those that
  it shares.
  """
  keys = np.concatenate(list(cache.key_blocks()))
  low = np.unique(keys[..., 0])
  found = [
    block[shared]
    for block in among.key_blocks()
    if (shared := is_among(low, block[..., 0]).any(axis=1)).any()
  ]
  if not found:
    return 0
  return int(shares_a_key(keys, np.concatenate(found)).sum())
