"""Both forms against Python's own integers."""

import math
from fractions import Fraction

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from oneshot_dp.linear_dp.rows import integers as ball_check
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS, row_scale

B = GRID_RADIUS


within_float64 = jax.jit(ball_check.within_ball_float64)
within_int32 = jax.jit(ball_check.within_ball_int32)


def float64(rows):
  with jax.enable_x64(True):
    return np.asarray(within_float64(rows))


def float64_in_parts(rows):
  """As rows with a bias are checked."""
  with jax.enable_x64(True):
    return np.asarray(within_float64(rows[:, 1:], rows[:, :1]))


def int32(rows):
  return np.asarray(within_int32(rows))


FORMS = [float64, float64_in_parts, int32]


def of_length(squared, start, width):
  """A row whose squares sum to `squared`: greedily, after a given start."""
  row = [int(u) for u in start]
  rest = squared - sum(u * u for u in row)
  while rest > 0:
    row.append(math.isqrt(rest))
    rest -= row[-1] ** 2
  assert rest == 0
  assert len(row) <= width
  return row + [0] * (width - len(row))


def check(form, rows):
  rows = np.array(rows, np.int64)  # a sum of 66,311 squares has room
  expected = ((rows**2).sum(axis=1) <= B**2).tolist()
  assert form(rows.astype(np.float32)).tolist() == expected


@pytest.mark.parametrize("form", FORMS)
@hypothesis.settings(max_examples=25)
@hypothesis.given(
  seed=st.integers(0, 2**32),
  share=st.floats(0, 1),
  off=st.sampled_from([-(2**33), -129, -1, 0, 1, 127, 128, 2**14, 2**28]),
)
def test_edge_of_the_ball(form, seed, share, off):
  """Rows of norm B² and a little less or more, in any direction."""
  rng = np.random.default_rng(seed)
  start = rng.standard_normal(40)
  start *= share * (B - 2**14) / np.linalg.norm(start)
  start = np.rint(start)
  check(form, [of_length(B**2 + off, start, 64)])


@pytest.mark.parametrize("form", FORMS)
def test_few_coordinates(form):
  # 2¹⁴ and 2⁷ are where limbs begin.
  edges = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**19, B - 1, B]
  check(form, [[a, b] for a in edges for b in edges])
  check(form, [[-a, b] for a in edges for b in edges])
  longer = [B + 1, B + 128, 2 * B, 2**21 + 2, 2**22, 2**23, 2**24 - 1]
  check(form, [[0, sign * u] for u in longer for sign in (1, -1)])


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_integer_of_32_bits_is_refused(form):
  rows = np.zeros((3, 200), np.float32)
  for value in (np.nan, np.inf, -np.inf, 2.0**31, -(2.0**32), 2.0**40, 3e38):
    rows[1] = 0
    rows[1, 150] = value
    assert form(rows).tolist() == [True, False, True]
    rows[1] = value
    assert form(rows).tolist() == [True, False, True]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [1280, ball_check.MAX_ROW_DIM])
def test_no_sum_overflows(form, width):
  # Each makes one of the sums as large as it can be.
  edges = [
    *(1, 127, 128, 127 * 129, 64 * 2**14),
    *(63 * 2**14 + 127 * 129, 64 * 2**14 - 1),
  ]
  rows = np.repeat(np.array(edges)[:, None], width, axis=1)
  check(form, rows)
  rows[:, ::2] *= -1
  check(form, rows)


def test_the_bound_of_the_width():
  terms = [
    max(x1 * x1 + 2 * x2 * x0, 2 * x2 * x1, 2 * x1 * x0, x0 * x0)
    for x2 in (0, 64)
    for x1 in (0, 127)
    for x0 in (0, 127)
  ]
  assert max(terms) * ball_check.MAX_ROW_DIM < 2**31
  assert max(terms) * (ball_check.MAX_ROW_DIM + 1) >= 2**31


@pytest.mark.parametrize("d", [1, 12, 1280, 10**6])
def test_row_scale(d):
  norm = np.array(
    [0, 2.0**-149, 1e-38, 1e-33, 1e-32, 1e-3, 1, 3e38], np.float32
  )
  scale = row_scale(norm, d)
  assert scale.dtype == np.float32
  assert np.isfinite(scale).all()
  assert not scale[:4].any()
  radius = GRID_RADIUS - math.sqrt(d) / 2 - 1
  for s, n in zip(scale[4:].tolist(), norm[4:].tolist(), strict=True):
    exact = Fraction(radius) / Fraction(n)
    assert abs(Fraction(s) - exact) <= exact / 2**24 + Fraction(1, 2**149)


@pytest.mark.parametrize(("max_norm", "d"), [(1.0, 1), (1024.0, 1280)])
def test_row_scale_where_norms_count(d, max_norm):
  most = GRID_RADIUS / max_norm
  near = np.float32(max_norm) * (1 + np.linspace(-0.01, 0.01, 201))
  norm = np.concatenate([[0, 1e-38, 1e-3], near, [3e38]]).astype(np.float32)
  scale, plain = row_scale(norm, d, most), row_scale(norm, d)
  assert scale.dtype == np.float32
  np.testing.assert_array_equal(scale, np.minimum(plain, np.float32(most)))
  assert scale[2] == np.float32(most)
  # What is left for the rounding of d coordinates.
  longest = (norm * scale.astype(np.float64)).max() + math.sqrt(d) / 2
  assert GRID_RADIUS - 1.5 < longest < GRID_RADIUS
