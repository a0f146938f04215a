"""Which head, where the user leaves the choice to us."""

import dataclasses
import sys

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.linear_dp.statistics.class_moments import MAX_ROWS


def choose_head(config: HeadConfig, info: CacheInfo) -> HeadConfig:
  """Settles `auto`, by public facts alone, and says what it is and why."""
  if config.head != "auto":
    return config
  head, why = (
    "whitened",
    "it was the most accurate of all, at nearly every n, d, K and epsilon that"
    " was tried",
  )
  if info.has_units:
    head, why = "lamb", f"it clips all rows of a {info.privacy_unit} as one"
  elif info.num_examples > MAX_ROWS:
    head, why = "lamb", f"whitened is for at most {MAX_ROWS:,} rows"
  print(f"head: {head}, as {why}", file=sys.stderr)
  return dataclasses.replace(config, head=head)
