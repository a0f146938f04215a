from fractions import Fraction

import hypothesis
import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.one_step.clipping import (
  MAX_ROWS_PER_UNIT,
  ClippedGradientGrid,
)
from oneshot_dp.linear_dp.one_step.device_sums import ClassSums
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import (
  baseline_without_privacy,
)
from oneshot_dp.linear_dp.rows import units as unit_rows
from oneshot_dp.linear_dp.rows.units import (
  ChosenRows,
  check_contributions,
  choose_rows,
)
from tests.linear_dp.blocks import (
  Block,
  in_blocks,
  make_block,
  random_block,
  squared_distance,
)

NULL_ROW = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
K, D = 4, 6
PLAN = ReleasePlan(epsilons=(1.0,), delta=1e-5)


def make_grid(rows_per_unit=1, num_classes=K, feature_dim=D, **changes):
  return ClippedGradientGrid(
    num_classes=num_classes,
    feature_dim=feature_dim,
    rows_per_unit=rows_per_unit,
    **changes,
  )


def with_units(block: Block, units) -> Block:
  return block.but(unit_id=np.asarray(units, np.int64))


def of_units(counts, seed=0, d=D, k=K) -> Block:
  """Rows of units −5, 2, 9 …, as many of each as asked, shuffled."""
  names = np.arange(len(counts)) * 7 - 5
  units = np.random.default_rng(seed).permutation(np.repeat(names, counts))
  return with_units(random_block(len(units), d, k, seed=seed), units)


def units_of(block: Block) -> np.ndarray:
  assert block.unit_id is not None
  return block.unit_id


def without(block: Block, unit: int) -> Block:
  return block[units_of(block) != unit]


def chosen_ids(block: Block, m: int, sizes=(256,)) -> set[int]:
  chosen = choose_rows(in_blocks(block, sizes), m)
  ids = chosen.secret_example_ids.tolist()
  assert len(set(ids)) == len(ids)
  return set(ids)


def sum_of(block: Block, grid: ClippedGradientGrid, chosen=None, sizes=(256,)):
  if chosen is None:
    chosen = choose_rows(in_blocks(block, sizes), grid.rows_per_unit)
  return exact_clipped_sum(
    in_blocks(block, sizes),
    grid,
    num_examples=len(block),
    chosen=chosen,
    devices=jax.local_devices()[:1],
  )


def statistic(block: Block, grid: ClippedGradientGrid) -> np.ndarray:
  """G, by the product's own code."""
  if not len(block):
    return np.zeros((grid.num_classes, grid.row_dim), np.int64)
  return baseline_without_privacy(sum_of(block, grid), PLAN).noisy_sum


counts_of_units = st.lists(st.integers(1, 12), min_size=1, max_size=8)


@hypothesis.settings(max_examples=15)
@hypothesis.given(counts=counts_of_units, m=st.integers(1, 14))
def test_as_many_rows_of_each_unit_as_there_are_up_to_m(counts, m):
  block = of_units(counts)
  ids = chosen_ids(block, m)
  counted = np.isin(block.example_id, list(ids))
  units, found = np.unique(units_of(block)[counted], return_counts=True)
  assert units.tolist() == sorted(set(units_of(block).tolist()))
  assert found.tolist() == [min(m, count) for count in counts]


@hypothesis.settings(max_examples=15)
@hypothesis.given(
  counts=counts_of_units,
  m=st.integers(1, 5),
  sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
  order=st.integers(0, 2**32),
)
def test_the_choice_is_blind_to_content_order_and_block_size(
  counts, m, sizes, order
):
  block = of_units(counts)
  rng = np.random.default_rng(order)
  other = random_block(len(block), D, K, seed=order)
  changed = block.but(
    embedding=other.embedding,
    embedding_norm=other.embedding_norm,
    label=other.label,
  )
  shuffled = changed[rng.permutation(len(block))]
  assert chosen_ids(shuffled, m, sizes) == chosen_ids(block, m)


@hypothesis.settings(max_examples=15)
@hypothesis.given(
  counts=st.lists(st.integers(1, 12), min_size=2, max_size=8),
  m=st.integers(1, 5),
  gone=st.integers(0, 7),
)
def test_the_choice_is_blind_to_other_units(counts, m, gone):
  """Also where ids are positions, which move when a unit goes."""
  block = of_units(counts)
  unit = int(np.unique(units_of(block))[gone % len(counts)])
  rest = without(block, unit)
  kept = chosen_ids(block, m) & set(rest.example_id.tolist())
  assert chosen_ids(rest, m) == kept
  moved = rest.but(example_id=np.arange(len(rest)))
  positions = chosen_ids(moved, m)
  assert {int(rest.example_id[i]) for i in positions} == kept


def test_every_place_within_a_unit_has_the_same_chance():
  """First come, first served would favour whatever the ids are sorted by."""
  units, rows = 4000, 5
  unit = np.repeat(np.arange(units), rows)
  block = with_units(random_block(units * rows, 1, 2), unit)
  ids = np.array(sorted(chosen_ids(block, 2)))
  place = np.searchsorted(block.example_id, ids) % rows
  share = np.bincount(place, minlength=rows) / units
  # Of a binomial: 4000 draws at 2/5, six standard deviations.
  assert np.abs(share - 2 / rows).max() < 6 * np.sqrt(0.24 / units)


def test_the_choice_never_changes():
  """Heads of one cache must all be of the same rows, in any version.

  The hash again, in integers of Python.
  """

  def mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)

  def place_hash(unit: int, place: int) -> int:
    return mixed(place ^ mixed(unit % 2**64 ^ 0x243F6A8885A308D3))

  units = [-(2**63), -1, 0, 1, 2**63 - 1]
  block = with_units(random_block(50, 1, 2), np.repeat(units, 10))
  places = [
    (index, place)
    for index, unit in enumerate(units)
    for place in sorted(range(10), key=lambda j: place_hash(unit, j))[:2]
  ]
  expected = {int(block.example_id[10 * i + place]) for i, place in places}
  assert chosen_ids(block, 2) == expected
  # The first output of SplitMix64 from the seed 0, as published.
  assert mixed(0) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize(("m", "devices"), [(1, 2), (2, 1), (5, 2)])
def test_the_sum_is_of_the_chosen_rows_alone(m, devices):
  block = of_units([30, 1, 4, 70, 2], seed=m)
  grid = make_grid(m, train_bias=True)
  chosen = choose_rows([block], m)
  found = exact_clipped_sum(
    in_blocks(block, (7, 256)),
    grid,
    num_examples=len(block),
    chosen=chosen,
    devices=jax.local_devices()[:devices],
  )
  counted = block[np.isin(block.example_id, chosen.secret_example_ids)]
  expected = exact_clipped_sum(
    [counted.but(unit_id=None)],
    make_grid(train_bias=True),
    num_examples=len(counted),
  )
  np.testing.assert_array_equal(
    found.secret_class_sums, expected.secret_class_sums
  )
  assert found.num_examples == len(block)


def test_rows_that_do_not_count_take_the_same_work(monkeypatch):
  """Also where a whole block has none that does: the time tells nothing."""
  added = []
  add = ClassSums.add

  def note(self, block, counts):
    added.append((len(block.label), int(counts.sum())))
    add(self, block, counts)

  monkeypatch.setattr(ClassSums, "add", note)
  # All of one unit, of which one row counts.
  sum_of(of_units([100]), make_grid(), sizes=(10,))
  assert sorted(added) == [(10, 0)] * 9 + [(10, 1)]


@hypothesis.settings(max_examples=40)
@hypothesis.given(
  counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
  m=st.integers(1, 6),
  shape=st.sampled_from([(2, 1), (3, 4), (5, 2)]),
  seed=st.integers(0, 2**32),
  initial_bias=st.floats(-12, 3),
  train_bias=st.booleans(),
  alike=st.booleans(),
)
def test_a_unit_moves_the_statistic_by_at_most_the_sensitivity(
  counts, m, shape, seed, initial_bias, train_bias, alike
):
  k, d = shape
  block = of_units(counts, seed=seed, d=d, k=k)
  unit = int(units_of(block)[0])
  if alike:  # the worst case: all its rows long and the same
    own = units_of(block) == unit
    rows, label = block.embedding.copy(), block.label.copy()
    rows[own], label[own] = 1000 * np.sign(rows[0]) + 1, label[0]
    block = make_block(rows, label).but(unit_id=block.unit_id)
  grid = make_grid(m, k, d, initial_bias=initial_bias, train_bias=train_bias)
  moved = squared_distance(
    statistic(block, grid), statistic(without(block, unit), grid)
  )
  assert moved <= Fraction(grid.sensitivity(NULL_ROW)) ** 2
  count = counts[(unit + 5) // 7]
  if alike and count >= m:
    assert moved > Fraction(0.99 * grid.sensitivity(NULL_ROW)) ** 2


def thirty_alike() -> Block:
  """Unit 0 has 30 rows that are nearly one; each other unit has one row."""
  rng = np.random.default_rng(0)
  block = random_block(100, D, K)
  rows, label = block.embedding.copy(), block.label.copy()
  rows[:30] = 50 + 1e-3 * rng.standard_normal((30, D))
  label[:30] = 1
  units = np.concatenate([np.zeros(30, int), np.arange(1, 71)])
  return with_units(make_block(rows, label), units)


def alike_but(changed, m: int, chosen_m: int) -> None:
  """Sums m rows of each unit of `thirty_alike`, changed after the choice."""
  block = thirty_alike()
  chosen = choose_rows([block], chosen_m)
  sum_of(changed(block, chosen.secret_example_ids), make_grid(m), chosen)


class TestRefusals:
  def test_units_and_bounds_that_miss_each_other(self):
    block = random_block(10, D, K)
    with pytest.raises(InputError, match="choose how many of each are summed"):
      exact_clipped_sum([thirty_alike()], make_grid(), num_examples=100)
    with pytest.raises(InputError, match="rows_per_unit=2 is for rows with"):
      exact_clipped_sum([block], make_grid(2), num_examples=10)
    with pytest.raises(InputError, match="unit_id none"):
      sum_of(block, make_grid(), ChosenRows(secret_example_ids=np.arange(1)))

  @pytest.mark.parametrize(
    ("units", "said"),
    [
      (None, r"unit_id none, not int64 \[10\]"),
      (np.zeros(10, np.int32), r"unit_id int.* not int64"),
      (np.zeros(9, np.int64), r"unit_id int.* not int64"),
    ],
  )
  def test_units_of_another_kind(self, units, said):
    with pytest.raises(InputError, match=said):
      choose_rows([random_block(10, D, K).but(unit_id=units)], 1)

  def test_what_was_added_is_counted_whoever_chose_it(self):
    alike_but(lambda block, ids: block, 3, 3)
    with pytest.raises(InputError, match="more than rows_per_unit=2 rows"):
      alike_but(lambda block, ids: block, 2, 3)

    def of_one_unit(block, ids):
      units = units_of(block).copy()
      units[np.isin(block.example_id, ids)] = 77
      return block.but(unit_id=units)

    with pytest.raises(InputError, match="more than rows_per_unit=1 rows"):
      alike_but(of_one_unit, 1, 1)
    with pytest.raises(InputError, match="not in the cache any more"):
      alike_but(lambda b, _: b.but(example_id=b.example_id + 10**6), 1, 1)

  @pytest.mark.parametrize(
    "m", [0, -1, MAX_ROWS_PER_UNIT + 1, 1.0, True, None, float("nan")]
  )
  def test_numbers_that_bound_nothing(self, m):
    with pytest.raises((InputError, TypeError), match="rows_per_unit"):
      make_grid(m)

  def test_a_sum_that_is_counted(self):
    check_contributions(np.array([3, 1, 3, 1]), 2)
    check_contributions(np.empty(0, np.int64), 1)
    with pytest.raises(InputError, match="rows_per_unit=2") as caught:
      check_contributions(np.array([3, 1, 3, 51, 3]), 2)
    assert "51" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_hash_is_a_permutation_for_each_unit():
  place = np.arange(10_000)
  for unit in (-(2**63), -1, 0, 12345):
    hashed = unit_rows._hash(np.full(10_000, unit), place)
    assert len(np.unique(hashed)) == 10_000
