"""Sums of clipped gradients: of integers, in any order, on any device."""

import functools
import math
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics import gradient_sum
from oneshot_dp.linear_dp.statistics.exact_map import (
  STEP_RADIUS,
  ReleasedMap,
)
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  MAX_ROWS,
  SecretGradient,
  clipped_gradient,
  gradient_sensitivity,
  gradient_step,
  release_gradient,
)
from oneshot_dp.linear_dp.statistics.row_gradient import Loss
from tests.linear_dp import blocks
from tests.linear_dp.blocks import (
  make_block,
  random_block,
)

SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
K, D, P = 4, 6, 3
P_VALUE = 1e-4
"""Seeds are fixed, so that a test passes always or never."""
LOSSES = {"softmax": Loss(), "sigmoid": Loss(name="sigmoid", bias=-3.0)}


@pytest.fixture(autouse=True)
def _small_chunks(small_chunks):
  pass


@functools.cache
def some_map() -> ReleasedMap:
  rng = np.random.default_rng(8)
  return ReleasedMap.of(rng.standard_normal((D, P)), rng.standard_normal(D) / 4)


steps_of = functools.partial(blocks.steps_of, num_classes=K)
mapped = functools.partial(steps_of, a_map=some_map())


def kernel_of(length: float, seed=0, p=P) -> np.ndarray:
  kernel = np.random.default_rng(seed).standard_normal((p, K))
  return kernel * (length / np.linalg.norm(kernel, axis=0).max())


def kernels():
  kernel = kernel_of(1.0)
  yield "zero", 0 * kernel
  for length in (1e-12, 1.0, 30.0, 1e4):
    yield f"random {length}", kernel * length
  yield "near ties", kernel[:, :1] * 1e4 + kernel
  yield "one class always", np.outer(np.ones(P), np.arange(K)) * 1e4
  yield "of all lengths", kernel * 10.0 ** np.arange(-4, K - 4)


KERNELS = dict(kernels())


# The integers.


@functools.cache
def row_by_row(case: str, clip_norm: float, loss: str) -> np.ndarray:
  """ρ ⊗ z of every row, each alone in its sum, in integers of Python."""
  block = random_block(60, D, K, seed=1)
  return np.array(
    [
      clipped_gradient(
        mapped(block[i : i + 1]), KERNELS[case], clip_norm, loss=LOSSES[loss]
      ).secret_sum
      for i in range(60)
    ]
  ).astype(object)


@pytest.mark.slow
@hypothesis.settings(
  max_examples=12,
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  case=st.sampled_from(["zero", "random 30.0", "near ties"]),
  clip_norm=st.sampled_from([0.05, 1.0]),
  loss=st.sampled_from(sorted(LOSSES)),
  sizes=st.lists(st.integers(1, 250), min_size=1, max_size=4),
  order=st.integers(0, 2**32),
  devices=st.sampled_from([1, 8]),
  float64=st.booleans(),
  chunk=st.sampled_from([1, 32]),
  resident=st.sampled_from([0, 2**30]),
  some=st.booleans(),
)
def test_same_bits_in_any_order_on_any_devices_in_both_forms(
  monkeypatch,
  case,
  clip_norm,
  loss,
  sizes,
  order,
  devices,
  float64,
  chunk,
  resident,
  some,
):
  """The sum is that of the rows' own integers, added by Python."""
  each = row_by_row(case, clip_norm, loss)
  rng = np.random.default_rng(order)
  shuffle = rng.permutation(60)
  chosen = rng.random(60) < 0.4 if some else None
  platforms = ("cpu",) if float64 else ()
  with monkeypatch.context() as patch:
    patch.setattr(unit_norm_rows, "FLOAT64_PLATFORMS", platforms)
    patch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", chunk)
    block = random_block(60, D, K, seed=1)[shuffle]
    rows = mapped(block, devices, sizes, resident_bytes=resident)
    for _ in range(2):
      found = clipped_gradient(
        rows, KERNELS[case], clip_norm, loss=LOSSES[loss], chosen=chosen
      )
      expected = each[shuffle if chosen is None else shuffle[chosen]].sum(0)
      assert (found.secret_sum.astype(object) == expected).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_same_bits_in_programs_of_other_shapes(monkeypatch, loss):
  monkeypatch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", 4096)
  block = random_block(8192, D, K, seed=1)
  one, other = (
    clipped_gradient(
      mapped(block, devices, [8192]),
      KERNELS["random 30.0"],
      0.05,
      loss=LOSSES[loss],
    ).secret_sum
    for devices in (1, 4)  # chunks of 4096 and of 2048 rows for each
  )
  np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
  ("case", "loss", "clip_norm"),
  [
    (case, loss, (0.05, 1.0)[(i + j) % 2])
    for i, case in enumerate(KERNELS)
    for j, loss in enumerate(LOSSES)
  ],
)
def test_no_row_is_longer_than_the_ball(case, clip_norm, loss):
  """‖ρ ⊗ z‖² ≤ (B·R)², in Python's integers; most are clipped to it."""
  each = row_by_row(case, clip_norm, loss)
  squares = [int((one**2).sum()) for one in each]
  assert max(squares) <= (GRID_RADIUS * STEP_RADIUS) ** 2
  if clip_norm == 0.05:
    assert max(squares) > (0.999 * GRID_RADIUS * STEP_RADIUS) ** 2


def test_sums_past_float64_are_exact():
  """16 times 8,192 rows of the longest gradient: 2⁵¹ and more steps."""
  n = 2**17
  rows = make_block(np.repeat(np.eye(1, 2, dtype=np.float16), n, 0), [1] * n)
  kernel = np.zeros((2, 2))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", 8192)
    found, one = (
      clipped_gradient(
        blocks.steps_of(block, num_classes=2), kernel, 0.05
      ).secret_sum
      for block in (rows, rows[:1])
    )
  np.testing.assert_array_equal(found, n * one)
  assert np.abs(found).max() > 2**50


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(value):
  rows, kernel = mapped(random_block(3, D, K)), kernel_of(1.0)
  with pytest.raises(InputError, match="longest column has norm"):
    clipped_gradient(rows, np.full((P, K), value), 1.0)
  for clip_norm in (0.0, -1.0, value):
    with pytest.raises(InputError, match="must be positive and finite"):
      clipped_gradient(rows, kernel, clip_norm)


def test_int64_is_left_in_time():
  assert MAX_ROWS * GRID_RADIUS * STEP_RADIUS < 2**63
  rows = mapped(random_block(3, D, K), num_examples=MAX_ROWS + 1)
  with pytest.raises(InputError, match="whose gradients can be summed"):
    clipped_gradient(rows, kernel_of(1.0), 1.0)


# What one row moves.


def test_a_row_moves_the_grid_by_the_sensitivity():
  """At weights of zero a row moves it by C, and one for its opposite by 2C."""
  block, flat = random_block(40, D, K, seed=2), np.zeros((D, K))

  def grid(block):
    secret = clipped_gradient(steps_of(block), flat, 0.1)
    return release_gradient(secret, 1.0, SPECIAL, None) / gradient_step(0.1)

  rows = block.embedding.copy()
  rows[0] *= -1
  one, turned = grid(block), grid(make_block(rows, block.label))
  once = gradient_sensitivity(SPECIAL, D * K)
  assert 0.999 * once < np.linalg.norm(one - grid(block[1:])) <= once
  assert 1.999 * once < np.linalg.norm(one - turned) <= 2 * once


@pytest.mark.parametrize("entries", [1, 10, 1_280_000])
def test_sensitivity_is_rounded_up(entries):
  once = gradient_sensitivity(SPECIAL, entries)
  assert (Fraction(once) - GRID_RADIUS) ** 2 >= entries
  assert once <= (GRID_RADIUS + math.sqrt(entries)) * (1 + 1e-15)
  assert gradient_sensitivity(REPLACE, entries) == 2 * once


# The release.


def make_secret(shape=(50, 40), clip_norm=0.3) -> SecretGradient:
  rng = np.random.default_rng(0)
  return SecretGradient(
    clip_norm=clip_norm,
    secret_parts=rng.integers(-(2**40), 2**40, (3, *shape)),
  )


@pytest.mark.parametrize(
  ("relation", "clip_norm"), [(SPECIAL, 0.1), (REPLACE, 1.0)]
)
def test_law_of_the_noise(relation, clip_norm):
  secret = make_secret((100, 100), clip_norm)
  sigma, step = 1.7, clip_norm / GRID_RADIUS
  released = release_gradient(secret, sigma, relation, NoiseSource(1))
  steps = released / step
  np.testing.assert_allclose(steps, np.rint(steps), rtol=1e-15)
  # (R is a power of two: no halves but the exact ones, which go up.)
  exact = np.floor(secret.secret_sum / STEP_RADIUS + 0.5)
  noise = np.rint(steps) - exact
  expected = sigma * gradient_sensitivity(relation, noise.size)
  assert expected > sigma * GRID_RADIUS * (2 if relation is REPLACE else 1)
  assert len(np.unique(noise)) > 0.98 * noise.size
  law = scipy.stats.chi2(noise.size)
  assert P_VALUE < law.cdf((noise**2).sum() / expected**2) < 1 - P_VALUE
  normal = scipy.stats.norm(scale=expected)
  assert scipy.stats.kstest(noise.ravel(), normal.cdf).pvalue > P_VALUE
  for axis in (noise, noise.T):
    lagged = np.corrcoef(axis[1:].ravel(), axis[:-1].ravel())[0, 1]
    assert abs(lagged) < 5 / math.sqrt(noise.size)
  without = release_gradient(secret, sigma, relation, None)
  np.testing.assert_array_equal(without, exact * step)


@hypothesis.settings(
  max_examples=40,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  sigma=st.floats(0.01, 1e4), relation=st.sampled_from([SPECIAL, REPLACE])
)
def test_the_deviation_is_never_rounded_down(monkeypatch, sigma, relation):
  """Both what is asked for, and what the normals are multiplied by."""
  asked, chains = [], []

  def watched(shape, sd, source):
    asked.append(sd)
    chains.append(GaussianChain(shape, source))
    return chains[-1].extend(sd)

  monkeypatch.setattr(gradient_sum, "rounded_gaussian", watched)
  release_gradient(make_secret((2, 3)), sigma, relation, NoiseSource(1))
  least = Fraction(sigma) * Fraction(gradient_sensitivity(relation, 6))
  assert Fraction(asked[0]) >= least
  ((_, added),) = chains[0]._terms
  assert least <= Fraction(added) <= least * Fraction(1 + 1e-14)
