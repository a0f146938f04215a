"""Several hosts as threads: what crosses between them, but for the wire.

The wire itself, in processes of their own: pipeline/training/hosts_test.py.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.rows.hosts import (
  ALONE,
  Hosts,
  JoinedHosts,
  limbs_of,
  numbers_of,
)
from tests.linear_dp.blocks import Block, random_block

COUNT = 3
D, K = 5, 3
GRID = ClippedGradientGrid(num_classes=K, feature_dim=D)


class Board:
  """Stands for the coordination service, and for the all-reduce."""

  def __init__(self):
    self.values: dict[str, str] = {}
    self.barrier = threading.Barrier(COUNT, timeout=20)
    self.limbs: dict[int, np.ndarray] = {}

  def key_value_set(self, key: str, value: str) -> None:
    self.values[key] = value

  def blocking_key_value_get(self, key: str, timeout: int) -> str:
    while key not in self.values:
      time.sleep(0.001)
    return self.values[key]

  def key_value_dir_get(self, place: str) -> list[tuple[str, str]]:
    return [(k, v) for k, v in self.values.items() if k.startswith(place)]

  def wait_at_barrier(self, name: str, timeout: int) -> None:
    self.barrier.wait()


class Threads(JoinedHosts):
  def _add_limbs(self, limbs: np.ndarray) -> np.ndarray:
    board = self._client
    board.limbs[self.index] = limbs
    board.barrier.wait()
    total = np.stack([*board.limbs.values()]).sum(axis=0, dtype=np.int32)
    board.barrier.wait()
    return total


def on_all(work: Callable[[JoinedHosts], Any]) -> list[Any]:
  """What a work gives on every host: its value, or its error."""
  board = Board()

  def one(index: int) -> Any:
    host = Threads(board, index, COUNT)
    try:
      return work(host)
    except (InputError, RunError) as error:
      try:
        host.end(error, 2)
      except (InputError, RunError) as of_all:
        return of_all
      return error

  with ThreadPoolExecutor(COUNT) as pool:
    return list(pool.map(one, range(COUNT)))


def summed(host: Hosts, block: Block) -> np.ndarray:
  """The class sums of rows of which a host has every third."""
  own = block[host.index :: host.count]
  if isinstance(host, JoinedHosts) and host.index:
    next(host.asked())
  return exact_clipped_sum(
    [own], GRID, num_examples=len(own), hosts=host
  ).secret_class_sums


def test_limbs_add_up_to_any_int64():
  numbers = np.random.default_rng(0).integers(-(2**60), 2**60, (5, 40))
  numbers[:, 0] = -1, 2**61, -(2**61), 1, -(2**16)
  added = np.stack([limbs_of(r) for r in numbers]).sum(axis=0, dtype=np.int32)
  np.testing.assert_array_equal(numbers_of(added), numbers.sum(axis=0))


@pytest.mark.parametrize("n", [100, 2], ids=["rows for all", "for two"])
def test_parts_add_up_to_the_whole(n):
  block = random_block(n, D, K)
  for found in on_all(lambda host: summed(host, block)):
    np.testing.assert_array_equal(found, summed(ALONE, block))


@pytest.mark.parametrize("places", [(0, 1), (1, 2), (0, 3)])
def test_an_example_id_of_two_hosts_is_refused_on_all(places):
  """As is one that the same host has twice."""
  block = random_block(30, D, K)
  block.example_id[places[1]] = block.example_id[places[0]]
  for found in on_all(lambda host: summed(host, block)):
    assert isinstance(found, InputError)
    assert f"example_id={block.example_id[places[0]]} comes more" in str(found)


@pytest.mark.parametrize("kind", [InputError, RunError])
def test_what_one_host_fails_with_all_do(kind):
  def work(host: JoinedHosts) -> None:
    with host.together():
      if host.index == 1:
        raise kind("a shard is damaged.")

  found = on_all(work)
  assert {type(error) for error in found} == {kind}
  assert {str(error) for error in found} == {"host 1: a shard is damaged."}


def test_what_host_0_asks_for_arrives_with_all_its_bits():
  asked = {"kernel": np.array([0.1, -0.0, np.nan]), "loss": "softmax", "c": 0.5}

  def work(host: JoinedHosts) -> Any:
    if host.index == 0:
      host.ask("gradient", **asked, prior=None, chosen=np.array([True, False]))
      host.sum()
      return host.end(None, 3)
    ((what, found),) = [each for each in host.asked() if not host.sum()]
    return what, found, host.status

  for what, found, status in on_all(work)[1:]:
    assert (what, status) == ("gradient", 3)
    assert found.pop("kernel").tobytes() == asked["kernel"].tobytes()
    assert found.pop("chosen").tolist() == [True, False]
    assert found == {"loss": "softmax", "c": 0.5}
