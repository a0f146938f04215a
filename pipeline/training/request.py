"""What a run asks for, said and bounded before it is charged.

All of it follows from public sizes, the plans and the settings.
"""

import os
import sys
from collections.abc import Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE, ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import Trainer

_SUMS_PER_SECOND = 1e10
_BESIDES = 70
"""Multiply-adds of two CPU cores at steps of 2K + 70 for each number of a row:
within a third of what whitened heads took at four sizes, K from 3 to 1000."""
_YEAR = 365 * 86400.0


def estimate(
  parts: Sequence[tuple[Trainer, ReleasePlan]], info: CacheInfo
) -> str:
  """What a run asks for, in a line; InputError: more than there is memory."""
  n, d, num_classes = (
    info.public_num_examples,
    info.feature_dim,
    info.num_classes,
  )
  releases = sum(plan.num_draws * len(plan.epsilons) for _, plan in parts)
  memory = releases * 4 * (d + 1) * num_classes
  many = [trainer.resumes_by(plan) for trainer, plan in parts]
  steps = sum(each.num_steps for each in many)
  disk = 2 * memory + sum(each.num_bytes for each in many)
  seconds = steps * n * d * (2 * num_classes + _BESIDES) / _SUMS_PER_SECOND
  has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  if memory > has:
    raise InputError(
      f"{releases:,} releases would take {_size(memory)} of memory, of"
      f" {_size(has)} that there are: ask for fewer draws or epsilons."
    )
  work = f", {steps:,} steps over at most {n:,} rows" if steps else ""
  took = f", {_time(seconds)} on two CPU cores" if steps else ""
  return (
    f"asks for {releases:,} release{'s' * (releases > 1)} of {d:,} x"
    f" {num_classes:,} weights{work}: about {_size(memory)} of memory for them,"
    f" {_size(disk)} of disk{took}"
  )


def warn(source: NoiseSource, info: CacheInfo) -> None:
  """Says on stderr what no guarantee covers."""
  if not info.num_classes_is_public:
    _say(
      "the number of classes was read off the private labels; the guarantee"
      " holds only if it is public anyway. Import with --num-classes."
    )
  if not source.is_private:
    _say(f"the noise comes from a seed: these heads are {NOT_PRIVATE}.")


def _say(warning: str) -> None:
  print(f"warning: {warning}", file=sys.stderr)


def _size(count: int) -> str:
  units = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 0}
  name, _ = next(each for each in units.items() if count >= each[1])
  return f"{count / (units[name] or 1000):,.3g} {name}"


def _time(seconds: float) -> str:
  for unit, length in ("years", _YEAR), ("days", 86400), ("hours", 3600):
    if seconds >= 2 * length:
      return f"{seconds / length:,.0f} {unit}"
  if seconds >= 120:
    return f"{seconds / 60:.0f} minutes"
  return f"{max(1, seconds):.0f} s"
