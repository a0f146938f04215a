"""Progress over the rows of a cache."""

from collections.abc import Sized

from tqdm import tqdm


def row_bar(rows: Sized, what: str) -> tqdm:
  """Counts all rows, whether or not they are in the sum."""
  return tqdm(
    total=len(rows),
    desc=what,
    unit="row",
    unit_scale=True,
    disable=None,
    leave=False,
  )
