"""The null row of REPLACE_SPECIAL adds nothing to any statistic of any head.

So a row, or the null row in its place, costs what a row more or less does.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.head_config import HeadConfig, StepsConfig
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.evaluate import count_hits
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.registry import head_kind, make_trainer
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.noisy_counts import CountPlan, release_accuracies
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import baseline_without_privacy
from oneshot_dp.linear_dp.public_statistics import (
  PublicMatrix,
  PublicStatistics,
)
from oneshot_dp.linear_dp.rows.units import choose_rows
from oneshot_dp.linear_dp.rows.whole_units import count_rows
from oneshot_dp.linear_dp.statistics.class_moments import class_moments
from oneshot_dp.linear_dp.statistics.exact_map import (
  STEP_RADIUS,
  ReleasedMap,
)
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  clipped_gradient,
  gradient_sensitivity,
)
from oneshot_dp.linear_dp.statistics.row_gradient import Loss
from oneshot_dp.linear_dp.trainer import TrainingRows
from tests.linear_dp.blocks import (
  Block,
  make_block,
  random_block,
  rows_of,
  steps_of,
)

SPECIAL = NeighboringRelation.REPLACE_SPECIAL
PLAN = ReleasePlan(epsilons=(2.0,), delta=1e-5, neighboring_relation=SPECIAL)
K, D = 3, 2
LENGTHS = (0.0, 1e-40, 1e-20, 0.5, 1.0, 3e4)
DIRECTIONS = ((1.0, 0.0), (-1.0, 0.0), (0.6, -0.8))
ROWS = [
  (np.float32(length) * np.array(way, np.float32), label)
  for length, way, label in itertools.product(LENGTHS, DIRECTIONS, range(K))
]
NULLS = [(np.zeros(D, np.float32), label) for label in range(K)]
BASE = random_block(5, D, K)


def with_rows(*rows: tuple[np.ndarray, int], base: Block = BASE) -> Block:
  """The base, and these behind it."""
  embedding = np.array([*base.embedding, *(x for x, _ in rows)], np.float32)
  return make_block(embedding, [*base.label, *(label for _, label in rows)])


def statistic_of(grid: ClippedGradientGrid, block: Block) -> np.ndarray:
  """G, of units or rows as the grid says, by the product's own code."""
  given: dict[str, Any] = {}
  if grid.clipped == "unit":
    given["sizes"] = count_rows([block])
  elif block.unit_id is not None:
    given["chosen"] = choose_rows([block], grid.rows_per_unit)
  secret = exact_clipped_sum([block], grid, num_examples=len(block), **given)
  return baseline_without_privacy(secret, PLAN).noisy_sum


def grid_of(train_bias: bool, b0: float, **changes: Any) -> ClippedGradientGrid:
  return ClippedGradientGrid(
    num_classes=K,
    feature_dim=D,
    initial_bias=b0,
    train_bias=train_bias,
    **changes,
  )


class TestOneStep:
  @pytest.mark.parametrize(
    ("train_bias", "b0", "clip_norm"),
    [
      (False, -10.0, 0.4),
      (True, -10.0, 1.0),
      (False, 0.0, 1.0),
      (True, 0.0, 0.4),
      (False, 3.0, 0.4),
      (True, 3.0, 1.0),
    ],
  )
  def test_every_row_against_every_null_row(self, train_bias, b0, clip_norm):
    """Largest ‖ΔG‖/Δ: with the bias of a null row it would be √2."""
    grid = grid_of(train_bias, b0, l2_clip_norm=clip_norm)
    without = statistic_of(grid, BASE)
    for null in NULLS:
      np.testing.assert_array_equal(
        statistic_of(grid, with_rows(null)), without
      )
    moved = [
      np.linalg.norm(statistic_of(grid, with_rows(row)) - without)
      for row in ROWS
    ]
    assert 0.999 < max(moved) / grid.sensitivity(SPECIAL) <= 1

  @pytest.mark.parametrize("train_bias", [False, True])
  @pytest.mark.parametrize(
    "of_units", [{"clipped": "unit"}, {"rows_per_unit": 2}]
  )
  def test_a_unit_against_as_many_null_rows(self, train_bias, of_units):
    grid = grid_of(train_bias, -10.0, **of_units)

    def of_unit(rows: list[tuple[np.ndarray, int]]) -> np.ndarray:
      block = with_rows(*rows)
      places = np.arange(len(block))
      return statistic_of(grid, block.but(unit_id=np.minimum(places, 5)))

    base = BASE.but(unit_id=np.arange(5))
    without = statistic_of(grid, base)
    for nulls in itertools.product(NULLS, repeat=2):
      np.testing.assert_array_equal(of_unit([*nulls]), without)
    moved = [
      np.linalg.norm(of_unit([*rows]) - without)
      for rows in itertools.combinations_with_replacement(ROWS[::4], 2)
    ]
    assert 0.99 < max(moved) / grid.sensitivity(SPECIAL) <= 1


def public_maps() -> list[PublicStatistics]:
  mean = np.array([3.0, -4.0], np.float32)
  matrix = PublicMatrix.of(np.array([[2.0, 0.5], [0.5, 1.0]]))
  return [PublicStatistics(mean=mean, whitening=a) for a in (None, matrix)]


@pytest.mark.parametrize("public", public_maps())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_public_map_leaves_the_null_row_where_it_is(public, dtype):
  rows = np.array([[0, 0], [-0.0, 0], [0, 1e-3], [3, -4]]).astype(dtype)
  mapped = public.mapped(rows)
  assert mapped.dtype == np.float32
  np.testing.assert_array_equal(mapped.any(axis=1), [0, 0, 1, 0])
  assert np.isnan(public.mapped(np.array([[np.nan, 0]], np.float32))).any()


@pytest.mark.parametrize("public", public_maps())
@pytest.mark.parametrize("train_bias", [False, True])
def test_behind_a_public_map_a_row_costs_no_more(public, train_bias):
  """Were 0 mapped to −Aμ, a row in the null row's place would move G by 2Δ."""
  grid = grid_of(train_bias, -10.0)

  def of(*rows: tuple[np.ndarray, int]) -> np.ndarray:
    block = with_rows(*rows)
    return statistic_of(
      grid, make_block(public.mapped(block.embedding), block.label)
    )

  moved = [
    np.linalg.norm(of(row) - of(null))
    for row, null in itertools.product(ROWS[:: len(ROWS) // 9], NULLS)
  ]
  assert 0.99 < max(moved) / grid.sensitivity(SPECIAL) <= 1


@pytest.mark.parametrize("max_norm", [None, 256.0])
def test_moments_have_no_trace_of_a_null_row(max_norm):
  without = class_moments(rows_of(BASE, num_classes=K, max_norm=max_norm))
  for null in NULLS:
    found = class_moments(
      rows_of(with_rows(null), num_classes=K, max_norm=max_norm)
    )
    for name in ("moment", "class_sums", "class_counts"):
      np.testing.assert_array_equal(
        getattr(found, f"secret_{name}"), getattr(without, f"secret_{name}")
      )


@pytest.mark.parametrize(
  ("max_norm", "released_map", "loss"),
  [
    (None, None, Loss()),
    (None, ReleasedMap.of(np.eye(D), np.array([0.6, 0.8])), Loss()),
    (None, ReleasedMap.of(None, np.array([5.0, 0.0])), Loss()),
    (256.0, None, Loss()),
    (256.0, None, Loss(name="sigmoid", bias=-10.0)),
    (256.0, None, Loss(name="sigmoid", bias=10.0)),
  ],
)
def test_every_row_against_every_null_row_in_a_step(
  max_norm, released_map, loss
):
  kernel = np.array([[2.0, -1.0, 0.5], [0.0, 1.0, -3.0]])

  def gradient_of(*rows: tuple[np.ndarray, int]):
    block = with_rows(*rows)
    steps = steps_of(
      block, a_map=released_map, max_norm=max_norm, num_classes=K
    )
    return clipped_gradient(steps, kernel, 0.5, loss=loss)

  sums = [gradient_of(null).secret_sum for null in NULLS]
  for other in sums[1:]:
    np.testing.assert_array_equal(other, sums[0])
  np.testing.assert_array_equal(sums[0], gradient_of().secret_sum)
  moved = [gradient_of(row).secret_sum - sums[0] for row in ROWS]
  steps = max(np.linalg.norm(m) for m in moved) / STEP_RADIUS
  assert 0.99 < steps / gradient_sensitivity(SPECIAL, D * K) <= 1


def test_counts_move_by_their_sensitivity_at_most():
  """What a head makes of a null row counts; a count moves by 1 at most."""
  kernels = [np.eye(D, K), -np.eye(D, K), np.ones((D, K))]
  heads = [
    LinearHead(kernel=k.astype(np.float32), bias=np.arange(K, dtype=np.float32))
    for k in kernels
  ]
  plan = CountPlan(epsilon=1.0, delta=1e-5, neighboring_relation=SPECIAL)
  hits = [count_hits(heads, [with_rows(row)]) for row in (*ROWS[::5], *NULLS)]
  statement = release_accuracies(
    hits[0], plan, NoiseSource(0), charge=lambda *_: None
  ).statement
  moved = [
    np.linalg.norm(a.secret_hits[0] - b.secret_hits[0])
    for a, b in itertools.product(hits, repeat=2)
  ]
  assert max(moved) > 1
  assert max(moved) <= statement.sensitivity


def steps(**changes: Any) -> HeadConfig:
  return HeadConfig(head="multi-step", steps=StepsConfig(epochs=2, **changes))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "public"),
  [
    (HeadConfig(head="lamb", train_bias=True), public_maps()[1]),
    (HeadConfig(head="momentum"), None),
    (HeadConfig(head="least-squares"), public_maps()[1]),
    (HeadConfig(head="whitened"), None),
    (steps(), public_maps()[1]),
    (steps(unit_norm=False, loss="sigmoid", initial_bias=-10.0), None),
    (steps(batch_size=8, sampling="poisson"), public_maps()[1]),
    (steps(batch_size=8, sampling="partition"), None),
  ],
)
def test_no_head_sees_the_label_of_a_null_row(small_chunks, config, public):
  """The same noise on two neighbours that differ in a label: the same bytes."""
  base = random_block(40, D, K)

  def trained(label: int) -> LinearHead:
    block = with_rows((np.zeros(D), label), base=base)
    if public is not None:
      block = make_block(public.mapped(block.embedding), block.label)
    rows = TrainingRows(
      blocks=lambda: [block],
      feature_dim=D,
      num_classes=K,
      num_examples=len(block),
      are_centred=public is not None,
    )
    trainer = make_trainer(rows, [config])
    plan = ReleasePlan(
      epsilons=(8.0,),  # little noise: a coarse grid of losses does
      delta=1e-5,
      neighboring_relation=SPECIAL,
      order="independent",
      sampling=head_kind(config.head).sampling(config, len(block)),
    )
    trainer.read()
    (made,) = trainer.release(plan, NoiseSource(3), lambda *_: None)
    return made.head

  first, *others = [trained(label) for label in range(K)]
  for other in others:
    np.testing.assert_array_equal(other.kernel, first.kernel)
    np.testing.assert_array_equal(other.bias, first.bias)
