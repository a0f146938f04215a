import math
from fractions import Fraction

import hypothesis
import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum
from oneshot_dp.linear_dp.one_step.release import baseline_without_privacy
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from tests.linear_dp.blocks import DTYPES, norm_of, squared_distance

NULL_ROW = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE


def make_grid(num_classes=3, feature_dim=2, **changes):
  return ClippedGradientGrid(
    num_classes=num_classes, feature_dim=feature_dim, **changes
  )


def integer_rows(grid, embedding, norm):
  """u, from the documented formula in float32, as Python integers."""
  scale = grid.row_scale(norm)
  u = np.rint(embedding.astype(np.float32) * scale[:, None])
  if grid.train_bias:
    u = np.concatenate([u, np.rint(scale)[:, None]], axis=1)
  return [[int(v) for v in row] for row in u]


def statistic(grid, class_sums):
  secret = SecretSum(
    grid=grid, num_examples=1, secret_class_sums=np.array(class_sums, np.int64)
  )
  plan = ReleasePlan(epsilons=(1.0,), delta=1e-6)
  return baseline_without_privacy(secret, plan).noisy_sum


@hypothesis.settings(max_examples=80, deadline=None)
@hypothesis.given(
  num_classes=st.integers(2, 10**6),
  feature_dim=st.integers(1, 10**5),
  initial_bias=st.floats(-800, 800),
  train_bias=st.booleans(),
)
def test_residual_norm_and_sensitivity_are_rounded_up(
  num_classes, feature_dim, initial_bias, train_bias
):
  grid = make_grid(
    num_classes, feature_dim, initial_bias=initial_bias, train_bias=train_bias
  )
  with mpmath.workdps(50):
    sigmoid = 1 / (1 + mpmath.exp(-mpmath.mpf(initial_bias)))
    p0 = mpmath.mpf(grid.initial_probability)
    if sigmoid > 1e-300:
      assert abs(p0 / sigmoid - 1) < 1e-15
    else:
      assert p0 <= 1.1e-300
    norm = mpmath.sqrt((1 - p0) ** 2 + (num_classes - 1) * p0**2)
    assert norm <= grid.residual_norm <= norm * (1 + 1e-14)
    row_dim = feature_dim + train_bias
    rounding = (1 + mpmath.mpf(2) ** -10) * mpmath.sqrt(num_classes * row_dim)
    sensitivity = GRID_RADIUS * norm + rounding
    for relation, times in ((NULL_ROW, 1), (REPLACE, 2)):
      found = grid.sensitivity(relation)
      assert times * sensitivity <= found <= times * sensitivity * (1 + 1e-14)


@st.composite
def rows_to_clip(draw):
  """Rows of every dtype, shape and size, aimed at the edge of the ball."""
  dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
  d = draw(st.sampled_from([1, 2, 3, 5, 17, 64, 192, 1023, 1280, 4096]))
  rng = np.random.default_rng(draw(st.integers(0, 2**32)))
  kind = draw(st.sampled_from(["normal", "constant", "one_hot", "heavy"]))
  match kind:
    case "normal":
      rows = rng.standard_normal((4, d))
    case "constant":
      rows = rng.choice([-1.0, 1.0], (4, d))
    case "one_hot":
      rows = np.eye(1, d, k=int(rng.integers(d))).repeat(4, axis=0)
    case _:
      rows = rng.standard_cauchy((4, d))
  rows /= np.sqrt((rows**2).sum(axis=1, keepdims=True))
  factor = draw(
    st.one_of(
      st.floats(-1e-6, 1e-6).map(lambda e: 1 + e),  # at the clip norm
      st.floats(0.1, 10),
      st.floats(-37, 37).map(lambda e: 10.0**e),
      st.just(0.0),
    )
  )
  with np.errstate(over="ignore", under="ignore"):
    rows = (rows * factor).astype(dtype)
  hypothesis.assume(np.isfinite(rows.astype(np.float32)).all())
  hypothesis.assume(np.isfinite(norm_of(rows)).all())
  return rows


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
  rows=rows_to_clip(),
  train_bias=st.booleans(),
  initial_bias=st.sampled_from([-10.0, 0.0, 4.0]),
  # None: the clip norm of a row of norm one, where most of the rows are.
  l2_clip_norm=st.sampled_from([None, None, 1.0, 1e-3, 30.0, 1e30, 1e-30]),
)
def test_no_row_leaves_the_ball(rows, train_bias, initial_bias, l2_clip_norm):
  fields = {"train_bias": train_bias, "initial_bias": initial_bias}
  if l2_clip_norm is None:
    l2_clip_norm = make_grid(5, **fields).residual_norm
    l2_clip_norm *= math.sqrt(1 + train_bias)
  grid = make_grid(5, rows.shape[1], l2_clip_norm=l2_clip_norm, **fields)
  norms = norm_of(rows)
  units = GRID_RADIUS * grid.residual_norm / grid.l2_clip_norm
  slack = math.sqrt(grid.row_dim)
  for row, norm, u in zip(
    rows, norms, integer_rows(grid, rows, norms), strict=True
  ):
    squared = sum(v * v for v in u)
    assert squared <= GRID_RADIUS**2
    bias = 1.0 if train_bias and norm > 0 else 0.0  # but of a null row
    wanted = units * math.sqrt(float(norm) ** 2 + bias)
    if wanted > GRID_RADIUS and norm > 1e-30:  # clipped, and hardly more
      assert squared >= (GRID_RADIUS - slack - 2) ** 2
    # (A row so short that it is told from zeros by no more counts as such.)
    is_short = wanted <= GRID_RADIUS - slack / 2 - 1
    if is_short and units < 1e38 and (train_bias or norm > 1e-32):
      real = units * np.append(row.astype(np.float64), [bias] * train_bias)
      error = np.abs(np.array(u) - real)
      assert (error <= 0.5 + 2.0**-23 * np.abs(real)).all()


def dims_at_the_edge():
  """D for which a row of equal steps just misses a whole number: m − η."""
  for dim in range(2, 4097):
    steps = GRID_RADIUS / math.sqrt(dim)
    if 0 < math.ceil(steps) - steps < steps * 2.0**-23:
      yield dim


def test_float32_cannot_push_a_row_out_of_the_ball():
  """Rows of equal numbers, clipped to m − η − 1/2: a hair more rounds to m.

  That is what the last step of the margin is for.
  """
  dims = list(dims_at_the_edge())
  assert len(dims) > 5
  values = np.random.default_rng(0).uniform(2, 4, 200).astype(np.float32)
  for dim in dims:
    grid = make_grid(2, dim)
    norm = (values.astype(np.float64) * math.sqrt(dim)).astype(np.float32)
    steps = np.rint(values * grid.row_scale(norm))
    assert dim * int(steps.max()) ** 2 <= GRID_RADIUS**2


@st.composite
def sums_and_rows(draw):
  """Class sums, a class, and one more row within the ball."""
  num_classes = draw(st.integers(2, 6))
  dim = draw(st.integers(1, 6))
  rng = np.random.default_rng(draw(st.integers(0, 2**32)))
  size = 2 ** draw(st.integers(0, 49))
  sums = rng.integers(-size, size, (num_classes, dim), endpoint=True)
  direction = rng.standard_normal(dim)
  direction /= math.sqrt(direction @ direction)
  row = np.fix(direction * GRID_RADIUS * draw(st.floats(0, 1)))
  return sums, int(rng.integers(num_classes)), row.astype(np.int64)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(case=sums_and_rows(), initial_bias=st.floats(-12, 12))
def test_one_row_moves_the_statistic_by_at_most_the_sensitivity(
  case, initial_bias
):
  sums, label, row = case
  grid = make_grid(*sums.shape, initial_bias=initial_bias)
  more = sums.copy()
  more[label] += row
  before, after = statistic(grid, sums), statistic(grid, more)
  bound = Fraction(grid.sensitivity(NULL_ROW))
  assert squared_distance(before, after) <= bound**2

  # Replaced: the worst case is the opposite row of the same class.
  other = sums.copy()
  other[label] -= row
  replaced = squared_distance(statistic(grid, other), after)
  assert replaced <= Fraction(grid.sensitivity(REPLACE)) ** 2


@pytest.mark.parametrize("dim", [1, 4])
@pytest.mark.parametrize(("num_classes", "p0"), [(3, 0.61), (40, 0.3)])
def test_the_rounding_term_is_needed_and_enough(num_classes, p0, dim):
  """Sums chosen so that every rounding goes the wrong way."""
  grid = make_grid(num_classes, dim, initial_bias=math.log(p0 / (1 - p0)))
  rng = np.random.default_rng(dim)
  row = np.full(dim, GRID_RADIUS // math.isqrt(dim))
  totals = rng.integers(0, 2**45, (3000, dim))
  exact_p0 = Fraction(grid.initial_probability)

  def rounding(total, u):
    moved = round(exact_p0 * (total + u)) - round(exact_p0 * total)
    return float(moved - exact_p0 * u)

  worst = [
    max(column.tolist(), key=lambda t: rounding(t, int(u)))
    for column, u in zip(totals.T, row, strict=True)
  ]
  sums = np.zeros((num_classes, dim), np.int64)
  sums[1] = worst
  more = sums.copy()
  more[0] += row
  moved = squared_distance(statistic(grid, sums), statistic(grid, more))
  assert moved > (GRID_RADIUS * grid.residual_norm) ** 2
  assert moved <= Fraction(grid.sensitivity(NULL_ROW)) ** 2


@pytest.mark.parametrize(
  ("field", "value"),
  [
    ("l2_clip_norm", 0.0),
    ("l2_clip_norm", -1.0),
    ("l2_clip_norm", math.inf),
    ("l2_clip_norm", math.nan),
    ("initial_bias", math.inf),
    ("initial_bias", math.nan),
    ("num_classes", 1),
    ("num_classes", 0),
    ("feature_dim", 0),
  ],
)
def test_what_cannot_be_a_grid_is_refused(field, value):
  with pytest.raises(InputError, match=f"{field}={value}"):
    make_grid(**{field: value})
