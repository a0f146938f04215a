"""One of several hosts: python host_worker.py PLACE WHAT; prints what it has.

Every sum over hosts is made of rows of which each has a part; host 0 alone may
draw a random bit.
"""

import dataclasses
import functools
import json
import os
import signal
import sys
from collections.abc import Iterator

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.dataset import Block, PrivateDataset
from oneshot_dp.linear_dp.distributed.hosts import Hosts
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
  if shards is not None:
    own = list(shards)
    x = x[own]
    label = label[own]
    if unit is not None:
      unit = unit[own]
  data = data_of(x, label, unit, n=150, block=11, hosts=hosts)
  source = NoiseSource(7)
  if hosts.index > 0:
    source = NoBits(7)
  sums = PrivateSums(source, 100.0)
  found = []
  for name in names:
    estimate, sigma = STATISTICS[name].release(sums, data)
    found.append([name, estimate.tobytes().hex(), sigma])
  return found


def without_rows(hosts: Hosts) -> list:
  """Exact sums where all but the first host have no rows."""
  x, label = hostile_rows(np.random.default_rng(0), n=9)
  if hosts.index > 0:
    x = x[:0]
    label = label[:0]
  data = data_of(x, label, n=9, hosts=hosts)
  return [STATISTICS[name].exact(data).tolist() for name in FEW]


def fail_on_second_host(hosts: Hosts, kind: type[Exception]) -> np.ndarray:
  """Returns three numbers; raises on the second host."""
  if hosts.index == 1:
    raise kind("a shard\nis damaged")
  return np.zeros(3, np.int64)


def meet_errors(hosts: Hosts) -> None:
  """Prints those that the second host has, on all."""
  for kind in (InputError, RunError):
    fails = functools.partial(fail_on_second_host, hosts, kind)
    of_first = functools.partial(hosts.from_first, shape=(3,))
    for on_all in (hosts.sum, of_first):
      try:
        on_all(fails)
      except (InputError, RunError) as error:
        print(type(error).__name__, error)

  def fail_before_a_sum():
    if hosts.index == 1:
      raise InputError("no cache")
    return hosts.sum(lambda: np.zeros(1, np.int64))

  try:
    hosts.sum(fail_before_a_sum)
  except InputError as error:
    print(error)
  try:
    hosts.agree("cache", f"cache {hosts.index}")
  except InputError as error:
    print(error)
  hosts.agree("cache", "the same")


def compare_rows(hosts: Hosts) -> None:
  """Prints what hosts say of rows of which no host alone sees a fault."""
  embedding, label = hostile_rows(np.random.default_rng(0), n=9)
  same_ids = data_of(embedding, label, hosts=hosts)
  # Nine rows of one owner on each host, which weigh W: that the other host has
  # nine more of them only both can tell.
  owner = np.full((9, 1), 7)
  one_owner = data_of(embedding, label, owner, divisor=[9] * 9, hosts=hosts)
  one_owner = with_ids(one_owner, first=9 * hosts.index)
  for data in (same_ids, one_owner):
    list(data.checked_blocks())
    try:
      data.check_across_hosts()
    except InputError as error:
      print(error)
  with_ids(same_ids, first=9 * hosts.index).check_across_hosts()


def with_ids(data: PrivateDataset, first: int) -> PrivateDataset:
  """The same rows, whose ids begin at another number."""

  def blocks() -> Iterator[Block]:
    for block in data.blocks():
      yield {**block, "example_id": block["example_id"] + first}

  return dataclasses.replace(data, blocks=blocks)


def print_sums(hosts: Hosts, names) -> None:
  """Prints what leaves of these statistics, of rows and of units."""
  made = [released(hosts, units, names) for units in (False, True)]
  print(json.dumps(made))


def main(place: str, what: str) -> None:
  """Does one thing as one of the hosts of a run, and meets the others."""
  hosts = Hosts.join(place)
  match what:
    case "sums":
      print_sums(hosts, STATISTICS)
    case "few":
      print_sums(hosts, FEW)
    case "many things":
      print_sums(hosts, FEW)
      print(json.dumps(without_rows(hosts)))
      compare_rows(hosts)
      meet_errors(hosts)
    case "killed" if hosts.index == 1:
      os.kill(os.getpid(), signal.SIGKILL)
    case "frozen" if hosts.index == 1:
      os.kill(os.getpid(), signal.SIGSTOP)
    case "terminated":
      os.kill(os.getpid(), signal.SIGTERM)
    case "failed" if hosts.index == 0:
      raise RunError("the disk is full.")
  hosts.sum(lambda: np.ones(1, np.int64))
  print("done")


if __name__ == "__main__":
  try:
    main(*sys.argv[1:])
  except InputError as error:
    print(f"oneshot-dp: error: {error}", file=sys.stderr)
    sys.exit(2)
  except RunError as error:
    print(f"oneshot-dp: error: {error}", file=sys.stderr)
    sys.exit(1)
