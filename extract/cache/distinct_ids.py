"""Whether every example of a cache has an id of its own."""

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.reader import FeatureCache


def check_distinct(cache: FeatureCache) -> None:
  """Refuses two examples of one id, whichever shards they are in.

  Args:
    cache: whose shards are on disk; every one is read.

  Raises:
    InputError: names the first such id.
  """
  ids = [
    block.example_id
    for i in range(len(cache.shards))
    for block in cache.shard_blocks(i)
  ]
  skipped = np.asarray(cache.info.skipped_example_ids, np.int64)
  values, counts = np.unique(
    np.concatenate([*ids, skipped]), return_counts=True
  )
  if len(repeated := values[counts > 1]):
    raise InputError(
      f"{cache.path}: {len(repeated)} numbers in {cache.info.id_source!r} come"
      f" more than once, the first is {repeated[0]}, so they name no example:"
      " delete it and extract without source.id_key."
    )
