"""Several hosts as threads: what crosses between them, but for the wire.

The wire itself, in processes of their own: pipeline/training/hosts_test.py.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import chex
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.rows import whole_units
from oneshot_dp.linear_dp.rows.hosts import (
  ALONE,
  Hosts,
  JoinedHosts,
  limbs_of,
  numbers_of,
)
from oneshot_dp.linear_dp.rows.units import choose_rows
from oneshot_dp.linear_dp.rows.whole_units import count_rows
from oneshot_dp.linear_dp.statistics.class_moments import class_moments
from oneshot_dp.linear_dp.statistics.gains import count_gains
from oneshot_dp.linear_dp.statistics.gradient_sum import clipped_gradient
from oneshot_dp.linear_dp.statistics.step_rows import StepRows
from tests.linear_dp.blocks import Block, random_block, rows_of
from tests.linear_dp.rows.units_test import with_units

COUNT = 3
D, K = 6, 4
KERNEL = np.random.default_rng(1).standard_normal((D, K))
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


class Alike(Threads):
  """All hosts call the same: what host 0 asks for, the others are about to."""

  def ask(self, what: str, **asked: Any) -> None:
    super().ask(what, **asked)
    if self.index:
      assert next(self.asked())[0] == what


def on_all(work: Callable[[Any], Any], kind: type[Threads] = Threads) -> list:
  """What a work gives on every host: its value, or its error."""
  board = Board()

  def one(index: int) -> Any:
    host = kind(board, index, COUNT)
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
      host.gather(np.zeros((host.index, 1), np.int64))
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


def statistics(host: Hosts, own: Block) -> dict[str, np.ndarray]:
  """What heads of all kinds sum of units, a host having some of their rows."""
  sizes = count_rows([own], host)
  rows = rows_of(
    own,
    num_examples=120,
    own_rows=range(len(own)),
    has_units=True,
    hosts=host,
  )
  steps = StepRows(rows, resident_bytes=2**30 if host.index != 1 else 0)
  found = {
    "places": sizes.secret_unit_ids,
    "rows": sizes.secret_rows,
    "moment": class_moments(rows).secret_moment,
    "all": clipped_gradient(steps, KERNEL, 0.1).secret_sum,
    "a batch": clipped_gradient(
      steps, KERNEL, 0.1, chosen=np.arange(steps.secret_units) % 2 == 0
    ).secret_sum,
  }
  whole = dataclasses.replace(GRID, clipped="unit")
  two = dataclasses.replace(GRID, rows_per_unit=2)
  for grid in whole, two:
    found[grid.clipped] = exact_clipped_sum(
      [own],
      grid,
      num_examples=len(own),
      sizes=sizes if grid is whole else None,
      chosen=choose_rows([own], 2, host) if grid is two else None,
      hosts=host,
    ).secret_class_sums
  return found


UNITS = {
  "scattered": np.arange(120) * 7919 % 13,
  "one": np.zeros(120, int),
  "one after another": np.sort(np.arange(120) * 7919 % 23),
  "each a row": np.arange(120),
}


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 1000])
@pytest.mark.parametrize("hosts", ["all", "two"])
@pytest.mark.parametrize("units", UNITS.values(), ids=UNITS)
def test_units_of_several_hosts_are_whole(monkeypatch, units, hosts, at_once):
  """Whichever hosts their rows are on, as long as they are on one in all."""
  monkeypatch.setattr(whole_units, "_AT_ONCE", at_once * D)
  block = with_units(random_block(120, D, K), units + 40)
  ends = [0, 50, 71, 120] if hosts == "all" else [0, 50, 50, 120]
  expected = statistics(ALONE, block)
  for found in on_all(
    lambda host: statistics(host, block[slice(*ends[host.index :][:2])]), Alike
  ):
    chex.assert_trees_all_equal(found, expected)


def test_gains_are_in_the_same_steps_where_host_0_completes_no_unit():
  """Its noise is for all: in whole units it would be 2²⁰ times too small."""
  block = with_units(random_block(30, D, K), np.repeat([7, 5, 7], 10))
  kernels = np.stack([KERNEL, -KERNEL])

  def gains(host: Hosts) -> tuple[list[int], int]:
    own = block[10 * host.index :][: 10 if host.count > 1 else 30]
    given = {"own_rows": range(len(own)), "has_units": True, "hosts": host}
    steps = StepRows(rows_of(own, num_examples=30, **given))
    found = count_gains(steps, kernels)
    return found.secret_gains.tolist(), found.count_steps

  assert on_all(gains, Alike) == [gains(ALONE)] * COUNT


def test_units_that_one_host_has_no_room_for_are_refused_on_all(monkeypatch):
  """Where each had room for its part, and the others' would be empty."""
  monkeypatch.setattr(whole_units, "MAX_OPEN_BYTES", 8 * D * 12)
  # Every third of 15 units is on three hosts, each of which has a class of it.
  units = np.concatenate([np.repeat(np.arange(0, 15, COUNT), COUNT), range(15)])
  label = np.arange(30, dtype=np.int32) % COUNT
  block = with_units(random_block(30, D, K).but(label=label), units)
  found = on_all(lambda h: statistics(h, block[h.index :: COUNT]), Alike)
  assert all("scattered take more" in str(error) for error in found)
