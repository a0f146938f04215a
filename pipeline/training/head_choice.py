"""Which head, where the user leaves the choice to us."""

import dataclasses
import sys

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, ReleaseOrder
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


def release_order(
  config: HeadConfig, asked: ReleaseOrder | None
) -> ReleaseOrder:
  """The order asked for, or the cheapest that the head allows.

  Raises:
    InputError: nested releases of a head of several steps.
  """
  if config.can_nest:
    return asked or "nested"
  if asked == "nested":
    raise InputError(
      "release='nested' is for heads of one step and least squares: each"
      f" head={config.head!r} has noise of its own; leave it out, or use"
      " --release independent."
    )
  return "independent"
