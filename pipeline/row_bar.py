"""Progress over the rows of a cache."""

from tqdm import tqdm

from extract.cache_reader import FeatureCache


def row_bar(cache: FeatureCache, what: str) -> tqdm:
  """Counts all rows of the cache, whether or not they are in the sum."""
  return tqdm(
    total=len(cache),
    desc=what,
    unit="row",
    unit_scale=True,
    disable=None,
    leave=False,
  )
