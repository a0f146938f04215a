import functools
import itertools
import math
from fractions import Fraction

import hypothesis
import jax
import mpmath
import numpy as np
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.statistics import gradient_sum
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  SecretGradient,
  clipped_gradient,
  gradient_sensitivity,
  gradient_step,
  release_gradient,
)
from oneshot_dp.linear_dp.statistics.row_gradient import row_error
from tests.linear_dp import blocks
from tests.linear_dp.blocks import (
  Block,
  in_blocks,
  integers_of,
  make_block,
  random_block,
)
from tests.linear_dp.statistics.real_gradients import distance, real_gradient

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
K, D, P = 5, 7, 4
# Seeds are fixed, so that a test passes always or never.
P_VALUE = 1e-4


@pytest.fixture(autouse=True)
def _small_chunks(small_chunks):
  pass


rows_of = functools.partial(blocks.rows_of, num_classes=K)


@functools.cache
def some_map() -> ReleasedMap:
  return ReleasedMap.of(np.random.default_rng(8).standard_normal((D, P)))


def matrix_of(a_map: ReleasedMap) -> np.ndarray:
  assert a_map.matrix is not None
  return a_map.matrix


def real_gradients(block: Block, kernel, clip_norm, matrix=None) -> list:
  """g of every row, [rows, p·K], to 50 digits."""
  matrix = matrix_of(some_map()) if matrix is None else matrix
  mapped = integers_of(block).astype(object) @ matrix.astype(int).astype(object)
  return [
    real_gradient(y, label, kernel, clip_norm)
    for y, label in zip(mapped.tolist(), block.label.tolist(), strict=True)
  ]


def summed(gradients: list) -> list:
  with mpmath.workdps(50):
    return [mpmath.fsum(entry) for entry in zip(*gradients, strict=True)]


def random_kernel(length: float, seed=0) -> np.ndarray:
  kernel = np.random.default_rng(seed).standard_normal((P, K))
  return kernel * (length / np.linalg.norm(kernel, axis=0).max())


# The error of a row, and of a sum.


def adversarial_kernels():
  kernel = random_kernel(1.0)
  yield "zero", 0 * kernel
  for length in (1e-12, 1.0, 30.0, 700.0, 1e4):
    yield f"random {length}", kernel * length
  yield "all ties", np.repeat(kernel[:, :1], K, axis=1) * 1e4
  # Long, and a little apart: the softmax is where it is steepest.
  apart = kernel[:, :1] * 1e4 + kernel
  yield "near ties", apart
  yield "near ties of 1e6", kernel[:, :1] * 1e6 + kernel
  yield "one class always", np.outer(np.ones(P), np.arange(K)) * 1e4
  one = np.zeros((P, K))
  one[0, 0], one[0, 1] = 1e4, -1e4
  yield "saturated", one
  yield "of all lengths", kernel * 10.0 ** np.arange(-4, K - 4)


KERNELS = dict(adversarial_kernels())


@functools.cache
def single_rows() -> Block:
  """Rows of many directions, and one that the map takes to nothing."""
  block = random_block(13, D, K, seed=5, spread=3)
  rows = block.embedding.copy()
  rows[0] = 0
  rows[1:8] = np.eye(D)
  rows[8] = matrix_of(some_map())[:, 0] / 2**32
  return make_block(rows, block.label)


@pytest.mark.parametrize(
  ("case", "clip_norm"),
  [
    *zip(sorted(KERNELS), itertools.cycle([1.0, 0.1])),
    ("near ties", 0.1),
    ("saturated", 1.0),
  ],
)
def test_the_error_of_a_row_is_less_than_stated(case, clip_norm):
  kernel, block = KERNELS[case], single_rows()
  real = real_gradients(block, kernel, clip_norm)
  worst = 0.0
  for i, gradient in enumerate(real):
    secret = clipped_gradient(
      rows_of(block[i : i + 1]), some_map(), kernel, clip_norm
    )
    off = distance(secret.secret_sum, gradient)
    bound = row_error(kernel, clip_norm)
    assert off <= bound
    assert np.linalg.norm(secret.secret_sum) <= clip_norm + bound
    worst = max(worst, off)
  if case.startswith("near ties") and clip_norm == 1:  # where it is needed
    assert worst > row_error(kernel, clip_norm) / 1000


def test_residuals_that_are_exactly_zero_are_not_clipped_to_nan():
  """Classes 1000 apart: exp is 0 for all but the right one."""
  kernel = KERNELS["one class always"]
  block = random_block(60, D, K, seed=9)
  z = integers_of(block) @ matrix_of(some_map())
  logits = z / np.linalg.norm(z, axis=1, keepdims=True) @ kernel
  clear = np.abs(logits[:, 1]) > 1000
  assert clear.sum() > 30
  right = make_block(block.embedding, np.argmax(logits, axis=1))
  secret = clipped_gradient(rows_of(right[clear]), some_map(), kernel, 1.0)
  assert not secret.secret_sum.any()


def wide(n: int, p: int) -> tuple[Block, ReleasedMap, np.ndarray]:
  rng = np.random.default_rng(p)
  block = random_block(n, p, K, seed=p)
  kernel = rng.standard_normal((p, K))
  return block, ReleasedMap.of(rng.standard_normal((p, p))), kernel


@pytest.mark.parametrize("p", [1, 2, 64])
def test_the_error_at_other_widths(p):
  block, a_map, kernel = wide(4, p)
  for length in (0.0, 1e4):
    weights = kernel[:, :1] * length + kernel
    for i in range(len(block)):
      one = block[i : i + 1]
      (real,) = real_gradients(one, weights, 1.0, a_map.matrix)
      secret = clipped_gradient(rows_of(one), a_map, weights, 1.0)
      assert distance(secret.secret_sum, real) <= row_error(weights, 1.0)


def worst_row(kernel: np.ndarray) -> tuple[Block, list]:
  """The row whose error is largest, and its gradient."""
  found = []
  for i, real in enumerate(real_gradients(single_rows(), kernel, 1.0)):
    row = single_rows()[i : i + 1]
    secret = clipped_gradient(rows_of(row), some_map(), kernel, 1.0)
    found.append((distance(secret.secret_sum, real), row, real))
  _, row, real = max(found, key=lambda each: each[0])
  return row, real


@pytest.mark.parametrize("devices", [1, 8])
def test_errors_that_all_point_the_same_way_are_paid_for(devices):
  """n rows of one error: E grows with n."""
  n = 600
  kernel = KERNELS["near ties"]
  block, real = worst_row(kernel)
  alike = make_block(np.repeat(block.embedding, n, 0), [block.label[0]] * n)
  secret = clipped_gradient(rows_of(alike, devices), some_map(), kernel, 1.0)
  off = distance(secret.secret_sum, [n * entry for entry in real])
  assert row_error(kernel, 1.0) < off <= secret.error


@pytest.mark.parametrize("devices", [1, 2])
def test_error_of_the_sum(devices):
  """(n + 1)·(e_row + γ_N·C), with N the additions on the way to an entry."""
  block, kernel = random_block(100, D, K), random_kernel(10)
  for clip_norm in (0.1, 50.0):
    secret = clipped_gradient(
      rows_of(block, devices), some_map(), kernel, clip_norm
    )
    # Within a chunk, over the chunks (a neighbour may have one more), and over
    # the devices.
    additions = 16 + -(-100 // (16 * devices)) + 1 + devices
    roundoff = Fraction(additions, 2**53)
    gamma = roundoff / (1 - roundoff)
    of_a_row = Fraction(row_error(kernel, clip_norm))
    least = 101 * (of_a_row + gamma * Fraction(clip_norm))
    assert least <= Fraction(secret.error) <= least * Fraction(1.001)


# Order, blocks, devices.


@functools.cache
def reference(n: int, clip_norm: float) -> list:
  kernel = KERNELS["near ties"]
  return summed(
    real_gradients(random_block(n, D, K, seed=n), kernel, clip_norm)
  )


@hypothesis.settings(
  max_examples=8,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  n=st.sampled_from([1, 33, 120]),
  sizes=st.lists(st.integers(1, 250), min_size=1, max_size=4),
  order=st.integers(0, 2**32),
  devices=st.sampled_from([1, 4]),
  clip_norm=st.sampled_from([0.1, 1.0]),
)
def test_within_the_error_in_any_order_on_any_devices(
  n, sizes, order, devices, clip_norm
):
  block = random_block(n, D, K, seed=n)
  shuffled = block[np.random.default_rng(order).permutation(n)]
  rows = rows_of(shuffled, devices, sizes)
  for _ in range(2):
    secret = clipped_gradient(rows, some_map(), KERNELS["near ties"], clip_norm)
    assert distance(secret.secret_sum, reference(n, clip_norm)) <= secret.error


def test_zero_rows_and_padding_add_nothing():
  zeros = make_block(np.zeros((20, D), np.float32), [1] * 20)
  kernel = random_kernel(3)
  secret = clipped_gradient(rows_of(zeros, 2), some_map(), kernel, 1.0)
  assert not secret.secret_sum.any()


def test_damaged_rows_are_refused():
  block = random_block(40, D, K)
  kernel = random_kernel(1)
  with pytest.raises(InputError, match="gave 40 rows"):
    clipped_gradient(rows_of(block, num_examples=39), some_map(), kernel, 1.0)


# Some of the rows.


def chosen_of(n: int, seed: int) -> np.ndarray:
  return np.random.default_rng(seed).random(n) < 0.4


@hypothesis.settings(
  max_examples=6,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  sizes=st.lists(st.integers(1, 150), min_size=1, max_size=4),
  seeds=st.lists(st.integers(0, 2**32), min_size=2, max_size=2),
  devices=st.sampled_from([1, 2]),
  resident=st.sampled_from([0, 2**30]),
  clip_norm=st.sampled_from([0.1, 1.0]),
)
def test_the_sum_of_chosen_rows_is_that_of_a_cache_of_these(
  sizes, seeds, devices, resident, clip_norm
):
  """Each time another choice, of rows that are kept or read again."""
  block, kernel = random_block(150, D, K, seed=1), random_kernel(10)
  rows = rows_of(block, devices, sizes, resident_bytes=resident)
  real = real_rows(clip_norm)
  for seed in seeds:
    chosen = chosen_of(150, seed)
    secret = clipped_gradient(
      rows, some_map(), kernel, clip_norm, chosen=chosen
    )
    # By a cache of their own, and by 50 digits.
    alone = clipped_gradient(
      rows_of(block[chosen]), some_map(), kernel, clip_norm
    )
    off = np.linalg.norm(secret.secret_sum - alone.secret_sum)
    assert off <= secret.error + alone.error
    expected = summed([real[i] for i in np.flatnonzero(chosen)])
    assert distance(secret.secret_sum, expected) <= secret.error


@functools.cache
def real_rows(clip_norm: float) -> list:
  block = random_block(150, D, K, seed=1)
  return real_gradients(block, random_kernel(10), clip_norm)


@pytest.mark.parametrize(("devices", "resident"), [(1, 0), (2, 2**30)])
def test_every_row_is_chosen_by_its_own_place(devices, resident):
  """One row at a time; C is 1, and the gradients of all rows differ."""
  block, kernel = random_block(50, D, K, seed=1), random_kernel(10)
  rows = rows_of(block, devices, (7, 20), resident_bytes=resident)
  for i in (0, 15, 16, 31, 32, 48, 49):
    chosen = np.arange(50) == i
    secret = clipped_gradient(rows, some_map(), kernel, 1.0, chosen=chosen)
    alone = clipped_gradient(rows_of(block[i : i + 1]), some_map(), kernel, 1.0)
    assert np.linalg.norm(alone.secret_sum) > 0.01
    np.testing.assert_allclose(
      secret.secret_sum, alone.secret_sum, atol=1e-13, rtol=0
    )


@pytest.mark.parametrize("devices", [1, 2])
def test_no_row_chosen_is_zero_and_all_are_all(devices):
  block, kernel = random_block(50, D, K), random_kernel(10)
  rows = rows_of(block, devices)
  none, all_rows, plain = (
    clipped_gradient(rows, some_map(), kernel, 1.0, chosen=chosen)
    for chosen in (np.zeros(50, bool), np.ones(50, bool), None)
  )
  assert not none.secret_sum.any()
  np.testing.assert_array_equal(all_rows.secret_sum, plain.secret_sum)


def test_the_error_does_not_tell_how_many_were_chosen():
  """Nor, then, the noise: of a Poisson sample, even the size is private."""
  rows, kernel = rows_of(random_block(150, D, K)), random_kernel(10)
  errors = {
    clipped_gradient(
      rows, some_map(), kernel, 1.0, chosen=np.arange(150) < count
    ).error
    for count in (0, 1, 16, 17, 150)
  }
  everything = clipped_gradient(rows, some_map(), kernel, 1.0)
  assert errors == {everything.error}


@pytest.mark.parametrize("chosen", [None, np.arange(40) < 3])
def test_another_order_of_the_rows_is_refused(chosen):
  """Places would be of other rows."""
  block, kernel = random_block(40, D, K), random_kernel(1)
  turned = block[np.arange(40)[::-1]]
  readings = iter([block, block, turned])
  rows = SecretRows(
    lambda: in_blocks(next(readings), (16,)),
    feature_dim=D,
    num_classes=K,
    num_examples=40,
    devices=jax.local_devices()[:1],
    resident_bytes=0,
  )
  for _ in range(2):
    clipped_gradient(rows, some_map(), kernel, 1.0, chosen=chosen)
  with pytest.raises(InputError, match="in another order"):
    clipped_gradient(rows, some_map(), kernel, 1.0, chosen=chosen)


# Clipping.


@pytest.mark.parametrize("clip_norm", [0.1, 1.0])
def test_a_long_gradient_is_clipped_to_c_and_a_short_one_is_not(clip_norm):
  kernel, block = random_kernel(4), single_rows()
  seen = set()
  for i in range(1, len(block)):
    one = block[i : i + 1]
    (real,) = real_gradients(one, kernel, math.inf)
    length = float(mpmath.norm(real))
    secret = clipped_gradient(rows_of(one), some_map(), kernel, clip_norm)
    found = np.linalg.norm(secret.secret_sum)
    assert found == pytest.approx(min(clip_norm, length), rel=1e-12)
    direction = secret.secret_sum / found
    expected = np.array([float(g) for g in real]).reshape(P, K) / length
    np.testing.assert_allclose(direction, expected, atol=1e-12)
    seen.add(length > clip_norm)
  assert seen == ({True} if clip_norm == 0.1 else {True, False})


# What one row moves.


@pytest.fixture
def no_noise(monkeypatch):
  """The grid that is released, without what protects it."""
  monkeypatch.setattr(
    gradient_sum,
    "rounded_gaussian",
    lambda shape, sd, source: np.zeros(shape, np.int64),
  )


def grid_of(block: Block, kernel, clip_norm, **changes) -> np.ndarray:
  """rint(F/step), by the product's own code."""
  secret = clipped_gradient(
    rows_of(block, **changes), some_map(), kernel, clip_norm
  )
  released = release_gradient(secret, 1.0, ADD_OR_REMOVE, NoiseSource(0))
  steps = np.rint(released / gradient_step(clip_norm))
  np.testing.assert_allclose(steps * gradient_step(clip_norm), released)
  return steps.astype(np.int64)


def squared_distance(one: np.ndarray, other: np.ndarray) -> int:
  return sum(int(x) ** 2 for x in (one - other).ravel())


def sensitivity_of(relation, n, kernel, clip_norm) -> float:
  """At the error of the smaller data set, by the formula of the class."""
  error = n * row_error(kernel, clip_norm)
  return gradient_sensitivity(
    relation, clip_norm=clip_norm, error=error, entries=P * K
  )


@hypothesis.settings(
  max_examples=20,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  n=st.integers(2, 40),
  seed=st.integers(0, 2**32),
  case=st.sampled_from(sorted(KERNELS)),
  clip_norm=st.sampled_from([0.1, 0.3, 1.0, 7.0]),
  devices=st.sampled_from([1, 2]),
)
def test_a_row_moves_the_grid_by_at_most_the_sensitivity(
  no_noise, n, seed, case, clip_norm, devices
):
  kernel = KERNELS[case]
  block = random_block(n, D, K, seed=seed)
  other = random_block(n, D, K, seed=seed + 1)
  rows, label = block.embedding.copy(), block.label.copy()
  rows[0], label[0] = other.embedding[0], other.label[0]
  replaced = grid_of(
    make_block(rows, label), kernel, clip_norm, devices=devices
  )
  all_rows = grid_of(block, kernel, clip_norm, devices=devices)
  # Which rows meet in a chunk, or on a device, may differ.
  fewer = grid_of(block[1:], kernel, clip_norm, devices=3 - devices)
  removed = sensitivity_of(ADD_OR_REMOVE, n - 1, kernel, clip_norm)
  assert squared_distance(all_rows, fewer) <= Fraction(removed) ** 2
  moved = squared_distance(all_rows, replaced)
  limit = sensitivity_of(REPLACE, n, kernel, clip_norm)
  assert moved <= Fraction(limit) ** 2


@pytest.mark.parametrize("clip_norm", [0.1, 1.0])
def test_the_sensitivity_is_no_more_than_it_must_be(no_noise, clip_norm):
  """A confident mistake moves it by C, and one for its opposite by 2C."""
  kernel = random_kernel(30)
  block = random_block(40, D, K, seed=2)
  z = integers_of(block) @ matrix_of(some_map())
  wrong = np.argmin(z @ kernel, axis=1)
  rows, label = block.embedding, wrong.astype(np.int32)
  one = make_block(rows, label)
  moved = squared_distance(
    grid_of(one, kernel, clip_norm), grid_of(one[1:], kernel, clip_norm)
  )
  once = sensitivity_of(ADD_OR_REMOVE, 40, kernel, clip_norm)
  assert moved <= once**2
  assert moved > (0.999 * once) ** 2
  # At weights of zero the row −x adds −g.
  flat = np.zeros((P, K))
  turned = make_block(np.concatenate([-rows[:1], rows[1:]]), label)
  if clip_norm < 0.5:
    moved = squared_distance(
      grid_of(one, flat, clip_norm), grid_of(turned, flat, clip_norm)
    )
    assert moved > (1.999 * once) ** 2
    assert moved <= sensitivity_of(REPLACE, 40, flat, clip_norm) ** 2


@pytest.mark.parametrize(
  ("clip_norm", "error", "entries"),
  [(0.1, 0.0, 10), (1.0, 1e-9, 1), (3.0, 0.5, 1_280_000), (0.1, 0.5, 1)],
)
def test_sensitivity_is_rounded_up(clip_norm, error, entries):
  def of(relation):
    return gradient_sensitivity(
      relation, clip_norm=clip_norm, error=error, entries=entries
    )

  once = of(ADD_OR_REMOVE)
  step = Fraction(clip_norm) / GRID_RADIUS
  least = GRID_RADIUS + 2 * Fraction(error) / step
  assert (Fraction(once) - least) ** 2 > entries  # and Fraction: no rounding
  assert once <= (float(least) + 1.001 * math.sqrt(entries)) * (1 + 1e-9)
  assert of(NeighboringRelation.REPLACE_SPECIAL) == once
  assert of(REPLACE) == 2 * once


# The release.


def make_secret(shape=(50, 40), clip_norm=0.3, error=1e-3) -> SecretGradient:
  rng = np.random.default_rng(0)
  return SecretGradient(
    clip_norm=clip_norm,
    error=error,
    secret_sum=rng.standard_normal(shape) * 100 * clip_norm,
  )


@pytest.mark.parametrize(
  ("relation", "clip_norm"), [(ADD_OR_REMOVE, 0.1), (REPLACE, 1.0)]
)
def test_law_of_the_noise(relation, clip_norm):
  secret = make_secret((100, 100), clip_norm)
  sigma, step = 1.7, clip_norm / GRID_RADIUS
  released = release_gradient(secret, sigma, relation, NoiseSource(1))
  assert released.shape == (100, 100)
  steps = released / step
  np.testing.assert_allclose(steps, np.rint(steps), rtol=1e-15)
  noise = np.rint(steps) - np.rint(secret.secret_sum / step)
  expected = sigma * gradient_sensitivity(
    relation, clip_norm=clip_norm, error=secret.error, entries=noise.size
  )
  assert expected > sigma * GRID_RADIUS * (2 if relation is REPLACE else 1)
  assert len(np.unique(noise)) > 0.98 * noise.size
  total = (noise**2).sum() / expected**2
  law = scipy.stats.chi2(noise.size)
  assert P_VALUE < law.cdf(total) < 1 - P_VALUE
  normal = scipy.stats.norm(scale=expected)
  assert scipy.stats.kstest(noise.ravel(), normal.cdf).pvalue > P_VALUE
  for axis in (noise, noise.T):
    lagged = np.corrcoef(axis[1:].ravel(), axis[:-1].ravel())[0, 1]
    assert abs(lagged) < 5 / math.sqrt(noise.size)


@pytest.mark.parametrize("seed", [None, 1])
def test_every_release_has_noise_of_its_own(seed):
  secret = make_secret()
  source = NoiseSource(seed)
  one, other = (
    release_gradient(secret, 1.0, ADD_OR_REMOVE, source) for _ in range(2)
  )
  assert (one != other).mean() > 0.99


@hypothesis.settings(
  max_examples=40,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  sigma=st.floats(0.01, 1e4),
  clip_norm=st.floats(1e-3, 1e3),
  error=st.floats(0, 1),
  relation=st.sampled_from([ADD_OR_REMOVE, REPLACE]),
)
def test_the_deviation_is_never_rounded_down(
  monkeypatch, sigma, clip_norm, error, relation
):
  """Both what is asked for, and what the normals are multiplied by."""
  asked, chains = [], []

  def watched(shape, sd, source):
    asked.append(sd)
    chains.append(GaussianChain(shape, source))
    return chains[-1].extend(sd)

  monkeypatch.setattr(gradient_sum, "rounded_gaussian", watched)
  secret = make_secret((2, 3), clip_norm, error * clip_norm)
  release_gradient(secret, sigma, relation, NoiseSource(1))
  sensitivity = gradient_sensitivity(
    relation, clip_norm=clip_norm, error=secret.error, entries=6
  )
  least = Fraction(sigma) * Fraction(sensitivity)
  assert Fraction(asked[0]) >= least
  ((_, added),) = chains[0]._terms
  assert Fraction(added) >= least
  assert Fraction(added) <= least * Fraction(1 + 1e-14)


def test_weights_too_long_for_float64_are_refused():
  """E is infinite, so there is no noise that would do."""
  secret = make_secret(error=math.inf)
  with pytest.raises(InputError, match="sd=inf must be finite"):
    release_gradient(secret, 1.0, ADD_OR_REMOVE, NoiseSource(1))
