"""One of several hosts: python host_worker.py PLACE WHAT; prints what it has.

Every sum over hosts is made of rows of which each has a part; host 0 alone may
draw a random bit.
"""

import functools
import json
import os
import signal
import sys

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.distributed.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from tests.linear_dp.statistic_catalogue import (
  STATISTICS,
  data_of,
  hostile_rows,
)


class NoBits(NoiseSource):
  words = bits = None  # type: ignore[assignment]


FEW = "class sums", "moment of a map", "right", "residual"


def released(hosts: Hosts, units: bool, names=STATISTICS) -> list:
  """What leaves of every statistic, in hexadecimal."""
  x, label = hostile_rows(np.random.default_rng(0), n=150)
  unit = None
  if units:
    # Units of about 30 rows, and three of a single one.
    unit = np.random.default_rng(1).integers(0, 5, 150)
    unit[:3] = [-1, 2**63 - 1, -(2**63)]
  # Shards of one row each; a single host would read all of them.
  shards = hosts.own_shards(150, units)
  own = slice(None) if shards is None else list(shards)
  data = data_of(
    x[own],
    label[own],
    None if unit is None else unit[own],
    n=150,
    block=11,
    hosts=hosts,
  )
  source = NoiseSource(7) if hosts.index == 0 else NoBits(7)
  sums = PrivateSums(source, 100.0)
  found = []
  for name in names:
    estimate, sigma = STATISTICS[name].release(sums, data)
    found.append([name, estimate.tobytes().hex(), sigma])
  return found


def without_rows(hosts: Hosts) -> list:
  """Exact sums where all but the first host have no rows."""
  x, label = hostile_rows(np.random.default_rng(0), n=9)
  own = slice(0, 9 if hosts.index == 0 else 0)
  data = data_of(x[own], label[own], n=9, hosts=hosts)
  return [STATISTICS[name].exact(data).tolist() for name in FEW]


def meet_errors(hosts: Hosts) -> None:
  """Prints those that the second host has, on all."""
  for kind in (InputError, RunError):

    def fails(kind=kind):
      if hosts.index == 1:
        raise kind("a shard\nis damaged")
      return np.zeros(3, np.int64)

    of_first = functools.partial(hosts.from_first, shape=(3,))
    for on_all in (hosts.sum, of_first):
      try:
        on_all(fails)
      except (InputError, RunError) as error:
        print(type(error).__name__, error)

  def fails_before_a_sum():
    if hosts.index == 1:
      raise InputError("no cache")
    return hosts.sum(lambda: np.zeros(1, np.int64))

  try:
    hosts.sum(fails_before_a_sum)
  except InputError as error:
    print(error)
  try:
    hosts.agree("cache", f"cache {hosts.index}")
  except InputError as error:
    print(error)
  hosts.agree("cache", "the same")


def main(place: str, what: str) -> None:
  hosts = ALONE if place == "alone" else Hosts.join(place)
  if what in ("few", "sums", "many things"):
    names = STATISTICS if what == "sums" else FEW
    made = [released(hosts, units, names) for units in (False, True)]
    print(json.dumps(made))
  if what == "many things":
    print(json.dumps(without_rows(hosts)))
    meet_errors(hosts)
  if what in ("killed", "frozen") and hosts.index == 1:
    os.kill(os.getpid(), signal.SIGKILL if what == "killed" else signal.SIGSTOP)
  if what == "terminated":
    os.kill(os.getpid(), signal.SIGTERM)
  if what == "failed" and hosts.index == 0:
    raise RunError("the disk is full.")
  hosts.sum(lambda: np.ones(1, np.int64))
  print("done")


if __name__ == "__main__":
  try:
    main(*sys.argv[1:])
  except (InputError, RunError) as error:
    print(f"oneshot-dp: error: {error}", file=sys.stderr)
    sys.exit(2 if isinstance(error, InputError) else 1)
