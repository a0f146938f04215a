import dataclasses
import math
from fractions import Fraction
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import baseline_without_privacy
from oneshot_dp.linear_dp.one_step.unit_sums import UnitSums, clip_unit
from oneshot_dp.linear_dp.rows import whole_units
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.units import choose_rows
from oneshot_dp.linear_dp.rows.whole_units import count_rows
from tests.linear_dp.blocks import (
  Block,
  in_blocks,
  make_block,
  random_block,
  squared_distance,
)
from tests.linear_dp.rows.units_test import (
  NULL_ROW,
  PLAN,
  REPLACE,
  D,
  K,
  of_units,
  thirty_alike,
  units_of,
  with_units,
  without,
)


def make_grid(num_classes=K, feature_dim=D, **changes):
  return ClippedGradientGrid(
    num_classes=num_classes, feature_dim=feature_dim, clipped="unit", **changes
  )


def sum_of(block: Block, grid, sizes=(256,), **options):
  return exact_clipped_sum(
    in_blocks(block, sizes),
    grid,
    num_examples=len(block),
    sizes=count_rows(in_blocks(block, sizes)),
    **options,
  )


def statistic(block: Block, grid) -> np.ndarray:
  """G, by the product's own code."""
  if not len(block):
    return np.zeros((grid.num_classes, grid.row_dim), np.int64)
  return baseline_without_privacy(sum_of(block, grid), PLAN).noisy_sum


def unit_gradients(block: Block, grid) -> dict[int, np.ndarray]:
  """The sum of each unit's clipped gradients: dense, float64."""
  rows = block.embedding.astype(np.float64)
  if grid.train_bias:
    rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
  residual = grid.initial_probability - np.eye(grid.num_classes)[block.label]
  gradients = residual[:, :, None] * rows[:, None, :]
  norm = np.linalg.norm(gradients, axis=(1, 2))
  clipped = gradients / np.maximum(norm / grid.l2_clip_norm, 1)[:, None, None]
  unit = units_of(block)
  return {u: clipped[unit == u].sum(axis=0) for u in np.unique(unit)}


@pytest.mark.parametrize(
  ("dtype", "train_bias", "clip"),
  [("float32", False, 2.0), ("bfloat16", True, 0.1), ("float16", True, 2.0)],
)
def test_equals_clipping_the_gradients_of_units(dtype, train_bias, clip):
  grid = make_grid(10, 16, train_bias=train_bias, l2_clip_norm=clip)
  counts = [1, 1, 5, 9, 30, 2, 70]
  units = np.random.default_rng(0).permutation(np.repeat(range(7), counts))
  block = with_units(random_block(118, 16, 10, dtype=dtype), units)
  found = statistic(block, grid) * grid.step
  expected = np.zeros_like(found)
  norms = []
  for gradient in unit_gradients(block, grid).values():
    norms.append(np.linalg.norm(gradient))
    expected += gradient / max(norms[-1] / clip, 1)
  assert max(norms) > 2 * clip
  # Rounding of rows that are scaled down, units, and one of the release.
  np.testing.assert_allclose(found, expected, atol=40 * grid.step)


@pytest.mark.slow
def test_equals_the_clipped_gradients_of_jax_privacy():
  """jax-privacy differentiates a unit's loss; no row of it is clipped."""
  block = random_block(60, D, K, seed=3)
  rows = block.embedding / np.maximum(block.embedding_norm, 1)[:, None] / 1.01
  block = with_units(make_block(rows, block.label), np.arange(60) % 12)
  grid = make_grid(initial_bias=-1.0)

  def loss(kernel, x, y):
    target = jax.nn.one_hot(y, K, dtype=x.dtype)
    return optax.sigmoid_binary_cross_entropy(x @ kernel - 1.0, target).sum()

  with jax.enable_x64(True):
    clipped = jax_privacy.clipped_grad(
      loss, l2_clip_norm=1.0, batch_argnums=(1, 2), keep_batch_dim=False
    )
    by_unit = np.argsort(units_of(block), kind="stable").reshape(12, 5)
    wide = block.embedding.astype(np.float64)
    # Rows that no clip of their own has touched: ‖r‖ is below 1.01.
    assert grid.residual_norm < 1.01
    gradient = clipped(jnp.zeros((D, K)), wide[by_unit], block.label[by_unit])
  found = statistic(block, grid) * grid.step
  np.testing.assert_allclose(found, np.asarray(gradient).T, atol=40 * grid.step)


@pytest.mark.parametrize(
  ("dtype", "train_bias"), [("float16", False), ("bfloat16", True)]
)
def test_units_of_one_row_have_the_bits_of_clipped_rows(dtype, train_bias):
  block = random_block(3000, 19, 5, dtype=dtype)
  units = np.random.default_rng(0).permutation(3000)
  grid = make_grid(5, 19, train_bias=train_bias)
  rows = ClippedGradientGrid(
    num_classes=5, feature_dim=19, train_bias=train_bias
  )
  np.testing.assert_array_equal(
    sum_of(with_units(block, units), grid).secret_class_sums,
    exact_clipped_sum([block], rows, num_examples=3000).secret_class_sums,
  )
  for relation in (NULL_ROW, REPLACE):
    assert grid.sensitivity(relation) == rows.sensitivity(relation)


@pytest.mark.parametrize("order", range(3))
def test_rows_that_differ_all_count(order):
  """Thirty orthogonal rows, of which a bound of one would drop 29."""
  rows = 9 * np.eye(30, dtype=np.float32)
  block = with_units(make_block(rows, np.arange(30) % K), np.zeros(30))
  grid = make_grid(K, 30)
  sums = sum_of(block[np.random.default_rng(order).permutation(30)], grid)
  weight = sums.secret_class_sums.sum(axis=0)
  assert (weight > 0.999 * GRID_RADIUS / math.sqrt(30)).all()
  assert weight.min() == weight.max()


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
  counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
  shape=st.sampled_from([(2, 1), (3, 4), (5, 2), (40, 3)]),
  seed=st.integers(0, 2**32),
  initial_bias=st.floats(-12, 6),
  train_bias=st.booleans(),
  kind=st.sampled_from(["any", "alike", "all labels", "opposite"]),
)
def test_a_unit_moves_the_statistic_by_at_most_the_sensitivity(
  counts, shape, seed, initial_bias, train_bias, kind
):
  k, d = shape
  block = of_units(counts, seed=seed, d=d, k=k)
  unit = int(units_of(block)[0])
  own = np.flatnonzero(units_of(block) == unit)
  if kind != "any":  # the worst cases: all its rows long and parallel
    rows, label = block.embedding.copy(), block.label.copy()
    rows[own] = 1000 * np.sign(rows[0]) + 1
    label[own] = label[0] if kind == "alike" else np.arange(own.size) % k
    if kind == "opposite":
      rows[own[::2]] *= -1
    block = make_block(rows, label).but(unit_id=block.unit_id)
  grid = make_grid(k, d, initial_bias=initial_bias, train_bias=train_bias)
  moved = squared_distance(
    statistic(block, grid), statistic(without(block, unit), grid)
  )
  assert moved <= Fraction(grid.sensitivity(NULL_ROW)) ** 2
  if kind == "alike":
    assert moved > Fraction(0.99 * grid.sensitivity(NULL_ROW)) ** 2


def test_replacing_a_unit_costs_twice_as_much():
  grid = make_grid(2, 1)
  one = with_units(
    make_block(np.full((5, 1), 9e3, np.float32), [0] * 5), [1] * 5
  )
  other = one.but(embedding=-one.embedding)
  moved = squared_distance(statistic(one, grid), statistic(other, grid))
  assert moved > Fraction(1.99 * grid.sensitivity(NULL_ROW)) ** 2
  assert moved <= Fraction(grid.sensitivity(REPLACE)) ** 2


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
  counts=st.lists(st.integers(1, 12), min_size=1, max_size=8),
  sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
  order=st.integers(0, 2**32),
)
def test_same_bits_in_any_order_and_block_size(counts, sizes, order):
  block, grid = of_units(counts), make_grid()
  shuffled = block[np.random.default_rng(order).permutation(len(block))]
  np.testing.assert_array_equal(
    sum_of(shuffled, grid, sizes).secret_class_sums,
    sum_of(block, grid).secret_class_sums,
  )


class TestClip:
  @hypothesis.settings(max_examples=50, deadline=None)
  @hypothesis.given(
    classes=st.integers(1, 6),
    scale=st.integers(0, 45),
    seed=st.integers(0, 2**32),
    initial_bias=st.floats(-12, 6),
    parallel=st.booleans(),
  )
  def test_what_leaves_it_is_in_the_ball(
    self, classes, scale, seed, initial_bias, parallel
  ):
    grid = make_grid(6, 5, initial_bias=initial_bias)
    rng = np.random.default_rng(seed)
    sums = rng.integers(-(2**scale), 2**scale + 1, (classes, 5))
    sums = np.broadcast_to(sums[:1], sums.shape) if parallel else sums
    clipped = clip_unit(sums, grid)
    p0 = Fraction(grid.initial_probability)
    of_classes = [[Fraction(int(x)) for x in row] for row in clipped]
    zeros = [[Fraction(0)] * 5] * (6 - classes)
    shared = [p0 * sum(column) for column in zip(*of_classes, strict=True)]
    squared = sum(
      (t - x) ** 2
      for row in [*of_classes, *zeros]
      for t, x in zip(shared, row, strict=True)
    )
    residual = (1 - p0) ** 2 + 5 * p0**2
    assert squared <= residual * GRID_RADIUS**2
    if np.array_equal(clipped, sums):
      return
    # As near to the ball as its rounding lets it be, and in the same direction.
    assert math.sqrt(squared / residual) > GRID_RADIUS - 40
    turned = clipped - sums * (clipped.ravel() @ sums.ravel().astype(float)) / (
      np.square(sums, dtype=float).sum()
    )
    assert np.abs(turned).max() < 2

  @pytest.mark.parametrize("initial_bias", [-10.0, 0.0, 20.0])
  def test_rounding_all_classes_up_is_paid_for(self, initial_bias):
    for k in range(2, 60):
      grid = make_grid(k, 1, initial_bias=initial_bias)
      clip_unit(np.full((k, 1), 2**30), grid)  # looks at its own length

  def test_what_is_in_the_ball_stays(self):
    grid = make_grid()
    sums = np.zeros((2, D), np.int64)
    sums[0, 0] = GRID_RADIUS
    np.testing.assert_array_equal(clip_unit(sums, grid), sums)
    sums[1, 1] = 1
    assert (clip_unit(sums, grid) != sums).any()

  def test_a_clip_that_leaves_the_ball_releases_nothing(self, monkeypatch):
    monkeypatch.setattr(np, "rint", np.ceil)
    sums = np.full((2, D), 2**30)
    assert clip_unit(sums, make_grid()).max() < GRID_RADIUS  # paid for
    monkeypatch.setattr(np, "rint", lambda x: x * 1.1)
    with pytest.raises(RunError, match="too long, so nothing was released"):
      clip_unit(sums, make_grid())

  @pytest.mark.parametrize("bits", [3, 20, 40, 47])
  def test_squares_are_exact(self, bits):
    rng = np.random.default_rng(0)
    sums = rng.integers(-(2**bits), 2**bits, (30, 40))
    assert (
      sum(whole_units.squared_norms(sums)) == (sums.astype(object) ** 2).sum()
    )


class TestMemory:
  """D·8 bytes for each class of a unit that is begun and not complete."""

  def limit(self, monkeypatch, vectors: int):
    monkeypatch.setattr(whole_units, "MAX_OPEN_BYTES", vectors * D * 8)

  def test_scattered_units_are_refused(self, monkeypatch):
    units = np.tile(np.arange(40), 2)
    block = with_units(random_block(80, D, K), units)
    self.limit(monkeypatch, 39)
    with pytest.raises(InputError, match="order the rows by unit") as caught:
      sum_of(block, make_grid(), (8,))
    assert "--max-rows-per-unit" in str(caught.value)
    assert "\n" not in str(caught.value)

  def test_rows_by_unit_or_alone_need_next_to_none(self, monkeypatch):
    self.limit(monkeypatch, 2)
    ordered = np.repeat(np.arange(40), 2)
    sum_of(with_units(random_block(80, D, K), ordered), make_grid())
    sum_of(with_units(random_block(80, D, K), np.arange(80)), make_grid())


def no_units(changed, **given: Any):
  """What sums the units of `thirty_alike`, but as the rows were changed."""
  block = thirty_alike()
  sizes = count_rows([block])
  assert sizes.secret_rows.tolist() == [30] + [1] * 70
  options: dict[str, Any] = {"sizes": sizes, "grid": make_grid()} | given
  exact_clipped_sum([changed(block)], num_examples=100, **options)


class TestRefusals:
  def test_what_does_not_fit_the_grid(self):
    choice = choose_rows([thirty_alike()], 1)
    rows = ClippedGradientGrid(num_classes=K, feature_dim=D)
    wrong: list[dict[str, Any]] = [
      {"grid": rows},
      {"sizes": None, "chosen": choice},
      {"chosen": choice},
      {"grid": rows, "chosen": choice},
    ]
    for given in wrong:
      clipped = given.get("grid", make_grid()).clipped
      with pytest.raises(InputError, match=f"clipped='{clipped}'"):
        no_units(lambda block: block, **given)
    with pytest.raises(InputError, match="rows_per_unit=2 is for clipped rows"):
      make_grid(rows_per_unit=2)
    changes: dict[str, Any] = {"clipped": "users"}
    with pytest.raises((InputError, TypeError), match="clipped"):
      dataclasses.replace(make_grid(), **changes)
    with pytest.raises(InputError, match="unit_id none"):
      count_rows([random_block(10, D, K)])

  @pytest.mark.parametrize(
    ("row", "unit"),
    [(99, 77), (99, -77), (99, 1), (0, 70), (50, 0), (slice(30), -77)],
  )
  def test_rows_that_change_their_unit_between_the_passes(self, row, unit):
    """A unit may not begin again after it was clipped, nor stay unfinished."""

    def changed(block):
      units = units_of(block).copy()
      units[row] = unit
      return block.but(unit_id=units)

    with pytest.raises(InputError, match="not those that were counted"):
      no_units(changed)

  def test_a_unit_that_is_not_complete(self):
    block = thirty_alike()
    sums = UnitSums(make_grid(), count_rows([block]))
    sums.add(block[1:])
    with pytest.raises(InputError, match="not those that were counted"):
      sums.finish()

  @pytest.mark.parametrize("value", [np.nan, np.inf, 1e38, 60.0])
  def test_rows_that_are_no_rows(self, value):
    """As for clipped rows, though the clip of the unit would hold it."""

    def changed(block):
      block.embedding[17, 2] = value
      return block

    with pytest.raises(InputError, match="example_id=1051: its embedding"):
      no_units(changed)
