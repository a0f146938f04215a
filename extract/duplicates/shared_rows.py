"""Rows that two caches share, whatever these are called; see `content_keys`."""

import numpy as np

from oneshot_dp.extract.cache.content_keys import is_among, shares_a_key
from oneshot_dp.extract.cache.reader import FeatureCache


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
