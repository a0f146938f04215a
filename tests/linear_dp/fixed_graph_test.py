"""Rows that several units share: who owns which row is fixed and public.

Neighbors differ in all rows of one owner, those that others own as well: they
are there, or there is nothing in their place. All are tried, by brute force.
"""

import dataclasses
import functools

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import NO_OWNER
from oneshot_dp.configs.head_config import HeadOptions
from oneshot_dp.linear_dp import statistics
from oneshot_dp.linear_dp.dataset import UNIT_WEIGHT
from oneshot_dp.linear_dp.evaluate import private_accuracies
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.heads.self_training import choose_head
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import SumCache, rows_of
from oneshot_dp.linear_dp.sum_kernels import exact_sum
from tests.linear_dp.statistic_catalogue import (
  SENSITIVITY,
  STATISTICS,
  D,
  K,
  data_of,
  every,
  hostile_rows,
)
from tests.sample_caches import weight_divisors

N = 60
M = 3
OWNERS = 9
ALIKE = 8
"""An owner of equal rows of one class, which nobody else owns."""
MU_SQUARED = 1e4


class Album:
  """Rows of which one owner, with all that is theirs, may be absent."""

  def __init__(self):
    rng = np.random.default_rng(5)
    self.x, self.label = hostile_rows(rng, n=N)
    self.owners = np.full((N, M), NO_OWNER)
    for row in self.owners:
      number = rng.integers(1, M + 1)
      row[:number] = rng.choice(ALIKE, number, replace=False)
    self.owners[:7] = [ALIKE, NO_OWNER, NO_OWNER]
    self.x[:7] = self.x[7]
    self.label[:7] = 1
    self.divisor = weight_divisors(self.owners)
    self.absent = None
    data = data_of(self.x, self.label, self.owners, divisor=self.divisor)
    self.data = dataclasses.replace(data, blocks=self.blocks)

  def is_of(self, owner):
    return (self.owners == owner).any(axis=1)

  def blocks(self):
    x = self.x
    if self.absent is not None:
      x = np.where(self.is_of(self.absent)[:, None], 0, x).astype(np.float32)
    yield from data_of(
      x, self.label, self.owners, divisor=self.divisor
    ).blocks()

  def moves(self, exact):
    """How far each owner moves a sum, squared, in Python's integers."""
    self.absent = None
    whole = exact()
    moves = []
    for owner in range(OWNERS):
      self.absent = owner
      moved = (whole - exact()).ravel().tolist()
      moves.append(sum(value * value for value in moved))
    self.absent = None
    return moves


@pytest.fixture
def album():
  return Album()


@pytest.mark.slow
@every
def test_an_owner_moves_a_sum_by_no_more_than_the_sensitivity(name, album):
  statistic = STATISTICS[name]

  moves = album.moves(lambda: statistic.exact(album.data))

  assert 0 < max(moves) <= SENSITIVITY**2
  if name in ("class sums", "mean", "units"):
    # Nothing is given away: an owner of equal rows moves it as far as allowed.
    assert moves[ALIKE] >= (0.99 * SENSITIVITY) ** 2


@every
def test_absent_rows_are_rows_of_zeros_and_take_no_weight(name, album):
  """As an image that cannot be decoded: the table decides, and no image."""
  statistic = STATISTICS[name]
  is_left = ~album.is_of(3)
  left = data_of(
    album.x[is_left],
    album.label[is_left],
    album.owners[is_left],
    divisor=album.divisor[is_left],
    n=N,
  )

  album.absent = 3

  np.testing.assert_array_equal(
    statistic.exact(album.data), statistic.exact(left)
  )


class AskedSums(PrivateSums):
  """Remembers what was asked of it."""

  def __init__(self):
    super().__init__(NoiseSource(1), MU_SQUARED)
    self.asked = []

  def release(self, name, rows, statistic, *, mu_squared, public=(), **options):
    self.asked.append((name, rows, statistic, public))
    return super().release(
      name, rows, statistic, mu_squared=mu_squared, public=public, **options
    )


def train(name, sums, album, options):
  # Nothing is kept from pass to pass: neighbors are to be read anew.
  rows = dataclasses.replace(HEADS[name].prepare_rows(album.data), keep=False)
  HEADS[name].make(
    sums,
    rows,
    new_mu_squared=MU_SQUARED,
    spent_mu_squared=0.0,
    state=None,
    options=options,
  )


def some_heads():
  rng = np.random.default_rng(7)
  bias = np.zeros(K, np.float32)
  heads = []
  for _ in range(2):
    kernel = rng.standard_normal((D, K)).astype(np.float32)
    heads.append(LinearHead(kernel=kernel, bias=bias, unit_norm=True))
  return heads


def evaluate(sums, album):
  rows = rows_of(album.data, per_row=True)
  private_accuracies(sums, rows, some_heads(), mu_squared=MU_SQUARED)


def choose(sums, album):
  teacher, student = some_heads()
  choose_head(
    sums,
    rows_of(album.data),
    teacher=teacher,
    student=student,
    mu_squared=MU_SQUARED,
  )


def assert_bounded(sums, album):
  # Of many gradients the first and the last.
  asked = {f"last {name}": (name, *rest) for name, *rest in sums.asked}
  asked |= {name: (name, *rest) for name, *rest in reversed(sums.asked)}
  for name, rows, statistic, public in asked.values():
    fresh = dataclasses.replace(
      rows, keep=False, sum_cache=SumCache(), _kept=None
    )
    moves = album.moves(functools.partial(exact_sum, fresh, statistic, public))
    assert 0 < max(moves) <= SENSITIVITY**2, name


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_an_owner_moves_all_that_a_head_asks_for_by_the_sensitivity(
  name, album
):
  sums = AskedSums()
  train(name, sums, album, HeadOptions())
  assert_bounded(sums, album)


@pytest.mark.slow
def test_an_owner_moves_all_that_a_balanced_head_asks_for_by_the_sensitivity(
  album,
):
  sums = AskedSums()
  train("auto", sums, album, HeadOptions(balanced=True))
  names = {name for name, *_ in sums.asked}
  assert names == {
    *("units", "class counts", "mean", "second moment", "gradient")
  }
  assert_bounded(sums, album)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [evaluate, choose])
def test_an_owner_moves_what_answers_are_counted_by_by_the_sensitivity(
  ask, album
):
  sums = AskedSums()
  ask(sums, album)
  assert_bounded(sums, album)


def test_rows_of_an_owner_that_weigh_too_much_are_refused(album):
  """Before anything is charged: every row is read once for that."""
  # Of two rows of one owner, each would weigh as much as a unit may.
  light = data_of(album.x[:2], [0, 1], [[4], [4]], divisor=[2, 2])
  heavy = data_of(album.x[:2], [0, 1], [[4], [4]], divisor=[2, 1])
  rows_of(light).validate()
  with pytest.raises(InputError, match="owners weigh more than a unit may"):
    rows_of(heavy).validate()


def test_a_row_without_a_divisor_is_refused(album):
  data = data_of(album.x[:2], [0, 1], [[4], [5]], divisor=[1, 0])
  with pytest.raises(InputError, match="example_id=1: its weight_divisor is 0"):
    rows_of(data).validate()


def test_an_owner_of_more_rows_than_the_weight_has_parts_adds_nothing():
  n = 4
  divisor = [UNIT_WEIGHT + 1] * n
  data = data_of(
    np.ones((n, D), np.float32), [0] * n, [[1]] * n, divisor=divisor
  )
  rows = rows_of(data)
  assert not exact_sum(rows, statistics.row_weights, ()).any()


def test_order_and_blocks_do_not_matter(album):
  statistic = STATISTICS["residual"]
  expected = statistic.exact(album.data)
  order = np.random.default_rng(0).permutation(N)
  for block in (1, 7):
    given = data_of(
      album.x[order],
      album.label[order],
      album.owners[order],
      divisor=album.divisor[order],
      block=block,
    )
    np.testing.assert_array_equal(statistic.exact(given), expected)
