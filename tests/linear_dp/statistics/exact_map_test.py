"""Released maps and weights, in integers."""

import math
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.statistics.exact_map import (
  STEP_RADIUS,
  WEIGHTS_RADIUS,
  ReleasedMap,
  integer_kernel,
)
from oneshot_dp.linear_dp.statistics.exact_product import exact_product

D, P = 7, 5


def matrix_of(a_map: ReleasedMap) -> np.ndarray:
  assert a_map.matrix is not None
  return a_map.matrix


def centre_of(a_map: ReleasedMap) -> np.ndarray:
  assert a_map.centre is not None
  return a_map.centre


# The map itself.


@hypothesis.settings(max_examples=25)
@hypothesis.given(
  seed=st.integers(0, 2**32),
  d=st.integers(1, 300),
  p=st.integers(1, 4),
  scale=st.floats(-150, 150).map(lambda e: 10.0**e),
  kind=st.sampled_from(["normal", "signs", "one", "uneven"]),
)
def test_a_map_is_of_integers_of_bounded_columns(seed, d, p, scale, kind):
  rng = np.random.default_rng(seed)
  matrix = rng.standard_normal((d, p)) * scale
  if kind == "signs":
    matrix = np.where(matrix > 0, scale, -scale)
  elif kind == "one":
    matrix[1:] = 0
  elif kind == "uneven":
    matrix *= 10.0 ** np.arange(0, -2 * p, -2)
  found = matrix_of(ReleasedMap.of(matrix))
  assert found.dtype == np.float64
  columns = [[int(x) for x in column] for column in found.T]
  np.testing.assert_array_equal(np.array(columns, float).T, found)
  lengths = [sum(x * x for x in column) for column in columns]
  assert max(lengths) <= STEP_RADIUS**2
  assert max(lengths) >= (STEP_RADIUS - 2 * math.sqrt(d)) ** 2
  # The nearest, up to one scale for all columns.
  longest = int(np.argmax(lengths))
  factor = np.linalg.norm(found[:, longest]) / np.linalg.norm(
    matrix[:, longest]
  )
  np.testing.assert_allclose(found, matrix * factor, rtol=5e-3, atol=0.51)


@hypothesis.settings(max_examples=25)
@hypothesis.given(
  seed=st.integers(0, 2**32),
  d=st.integers(1, 2000),
  length=st.sampled_from([0.0, 1e-9, 0.3, 1.0, 1 + 1e-9, 7.0, 1e9, 1e150]),
  kind=st.sampled_from(["normal", "signs", "one"]),
)
def test_a_centre_is_of_integers_in_the_ball(seed, d, length, kind):
  """A noisy mean may be longer than any row: it is shortened, not refused."""
  rng = np.random.default_rng(seed)
  mean = rng.standard_normal(d)
  if kind == "signs":
    mean = np.sign(mean)
  elif kind == "one":
    mean[1:] = 0
  mean *= length / np.linalg.norm(mean)
  found = centre_of(ReleasedMap.of(None, mean))
  integers = [int(x) for x in found]
  assert integers == found.tolist()
  assert sum(x * x for x in integers) <= STEP_RADIUS**2
  # Where it was, within what rounding and the room for it make.
  expected = mean / max(1.0, length) * STEP_RADIUS
  assert np.linalg.norm(found - expected) <= math.sqrt(d) + 1.01


@pytest.mark.parametrize("off", ["norm", "fraction", "nan", "inf"])
@pytest.mark.parametrize("part", ["matrix", "centre"])
def test_parts_that_would_not_be_exact_are_refused(part, off):
  limit = float(STEP_RADIUS)
  entry = {"norm": limit, "fraction": 0.5, "nan": math.nan, "inf": math.inf}
  wrong = np.array([entry[off], 129.0])
  made: dict[str, Any] = (
    {"matrix": None, "centre": wrong}
    if part == "centre"
    else {"matrix": wrong[:, None]}
  )
  with pytest.raises(InputError, match="exact map must be of") as caught:
    ReleasedMap(**made)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limit", [2.0**14, -(2.0**14)])
def test_the_longest_parts_are_taken(limit):
  ReleasedMap(matrix=np.array([[limit], [0]]), centre=np.array([0, limit]))


@pytest.mark.parametrize("entry", [0.0, math.nan, math.inf])
def test_a_matrix_of_no_direction_is_refused(entry):
  with pytest.raises(InputError, match="longest column has norm"):
    ReleasedMap.of(np.full((D, P), entry))


@pytest.mark.parametrize("entry", [math.nan, math.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_centre_that_is_not_finite_is_refused(entry):
  with pytest.raises(InputError, match="exact map must be of integers"):
    ReleasedMap.of(None, np.full(D, entry))


@pytest.mark.parametrize("length", [0.0, 1e-9, 0.7, 1.0, 1e6])
def test_weights_are_rounded_to_a_power_of_two(length):
  rng = np.random.default_rng(0)
  kernel = rng.standard_normal((300, 9))
  kernel *= length / np.linalg.norm(kernel, axis=0).max()
  integers, power = integer_kernel(kernel)
  squares = (integers.astype(int).astype(object) ** 2).sum(axis=0)
  assert max(squares) <= WEIGHTS_RADIUS**2
  assert not length or max(squares) > (WEIGHTS_RADIUS / 2.1) ** 2
  np.testing.assert_allclose(
    np.ldexp(integers, -power), kernel, atol=np.ldexp(0.5, -power), rtol=0
  )


# Exact products.


@pytest.mark.parametrize("wide", [jnp.float64, jnp.int64])
@pytest.mark.parametrize(
  ("limbs", "norms", "dtype"),
  [
    ((2, 2), (2**14, 2**14), "i4"),
    ((2, 2), (STEP_RADIUS, WEIGHTS_RADIUS), "f4"),
    ((2, 3), (2**14, 2**20), "i8"),
  ],
)
@pytest.mark.parametrize("d", [7, 8192])
def test_a_product_is_that_of_pythons_integers(d, limbs, norms, dtype, wide):
  """Columns as long as they may be, of all signs, and random ones."""
  rng = np.random.default_rng(d)
  sides = []
  for norm in norms:
    long = math.isqrt(norm**2 // d)
    columns = rng.integers(-long, long + 1, (d, 6))
    columns[:, 0], columns[:, 1] = long, -long
    columns[:, 2] = 0
    columns[0, 2] = norm
    sides.append(columns)
  x, y = sides[0].T, sides[1]
  with jax.enable_x64(True):
    found = np.asarray(
      exact_product(
        jnp.asarray(x), jnp.asarray(y), limbs, jnp.dtype(wide), jnp.dtype(dtype)
      )
    )
  assert found.dtype == dtype
  assert (found == x.astype(object) @ y.astype(object)).all()
  assert np.abs(found).max() == math.prod(norms)


def test_a_gpu_multiplies_all_bits_of_float32():
  with jax.enable_x64(True):
    x, wide = jnp.ones((2, 2), jnp.float32), jnp.dtype(jnp.float64)
    product = jax.jit(
      lambda x: exact_product(x, x, (2, 2), wide, jnp.float32)
    ).lower(x)
  assert "precision = [HIGHEST, HIGHEST]" in product.as_text()
