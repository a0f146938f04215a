"""auto: against itself in NumPy, what it releases, and where it begins."""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from oneshot_dp.configs.head_config import HeadOptions, PublicStart
from oneshot_dp.linear_dp.api import dataset_from_arrays
from oneshot_dp.linear_dp.heads.auto import (
  BALANCED_CLIP_NORM,
  CLASS_COUNTS_SHARE,
  LITTLE_NOISE,
  MEAN_SHARE,
  ROWS_TO_LEAVE_START,
  SECOND_MOMENT_SHARE,
  START_LENGTH,
  STEPS,
  STEPS_OF_LITTLE_NOISE,
  UNIT_COUNT_SHARE,
  auto,
  choose_num_steps,
  log_class_shares,
  split_budget,
)
from oneshot_dp.linear_dp.heads.nesting import moved_before
from oneshot_dp.linear_dp.heads.whitening import (
  RIDGE,
  Whitening,
  inverse_square_root,
  shrink_mean,
)
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import rows_of

K, D = 4, 10
CENTERS = np.random.default_rng(0).standard_normal((K, D))
START = PublicStart.of(CENTERS, num_classes=K, feature_dim=D)


def clusters(n, seed=1, spread=1.0):
  rng = np.random.default_rng(seed)
  label = rng.integers(0, K, n)
  x = CENTERS[label] + spread * rng.standard_normal((n, D)) + 1.0
  return x.astype(np.float32), label


def rows_of_clusters(n=1000, rows_per_unit=None):
  unit_ids = None
  if rows_per_unit:
    unit_ids = np.arange(n) // rows_per_unit
  data = dataset_from_arrays(*clusters(n), num_classes=K, unit_ids=unit_ids)
  return rows_of(data, keep=True)


class Observation(NamedTuple):
  name: str
  mu_squared: float
  public: tuple
  estimate: np.ndarray

  @property
  def kernel(self):
    """The weights that a gradient was computed at."""
    integers, step = self.public[:2]
    return integers * step * ROW_NORM


class ObservedSums(PrivateSums):
  """The mechanism itself, which remembers what it was asked and said."""

  def __init__(self, *args):
    super().__init__(*args)
    self.observations = []

  def release(
    self, name, rows, statistic, *, mu_squared, public: tuple = (), cache=True
  ):
    estimate, noise = super().release(
      name, rows, statistic, mu_squared=mu_squared, public=public, cache=cache
    )
    seen = Observation(name, mu_squared, public, estimate)
    self.observations.append(seen)
    return estimate, noise

  def all_of(self, name):
    return [seen for seen in self.observations if seen.name == name]

  def only(self, name):
    (seen,) = self.all_of(name)
    return seen


def make_head(sums, rows, new_mu_squared, *, spent=0.0, state=None, **options):
  return auto(
    sums,
    rows,
    new_mu_squared=new_mu_squared,
    spent_mu_squared=spent,
    state=state,
    options=HeadOptions(**options),
  )


def observe_head(rows, mu_squared, **options):
  """Returns the mechanism after one head with noise, and the head."""
  sums = ObservedSums(NoiseSource(3), mu_squared)
  head = make_head(sums, rows, mu_squared, **options).head
  return sums, head


def mu_squared_of(releases):
  costs = [Fraction(release.noise_multiplier) ** -2 for release in releases]
  return sum(costs, Fraction(0))


# Without noise.


def head_in_numpy(x, y, steps=STEPS_OF_LITTLE_NOISE, clip=0.03):
  """The whole head without noise, in plain float64."""
  n = len(x)
  u = x / np.linalg.norm(x, axis=1, keepdims=True)
  mean = u.mean(axis=0)
  values, vectors = np.linalg.eigh((u - mean).T @ (u - mean))
  matrix = (vectors / np.sqrt(np.maximum(values, 0) + 1e-6 * n)) @ vectors.T
  v = (u - mean) @ matrix
  v /= np.linalg.norm(v, axis=1, keepdims=True)
  kernel = np.zeros((D, K))
  velocity = np.zeros((D, K))
  rate = (1 + math.log10(K) / 2) * 0.5 * (0.92**0.5) / (steps * clip)
  for _ in range(steps):
    logits = v @ kernel
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    r = p / p.sum(axis=1, keepdims=True) - np.eye(K)[y]
    r /= np.maximum(1, np.linalg.norm(r, axis=1, keepdims=True) / clip)
    velocity = velocity / 2 + v.T @ r / n
    kernel = kernel - rate * n * velocity
  kernel = matrix @ kernel
  kernel /= np.linalg.norm(kernel, axis=0).max()
  return kernel, -mean @ kernel


@pytest.mark.slow
def test_auto_without_noise_is_the_head_of_numpy():
  sums = PrivateSums(None, 0.0)
  head = make_head(sums, rows_of_clusters(600), math.inf).head
  kernel, bias = head_in_numpy(*clusters(600))
  np.testing.assert_allclose(head.kernel, kernel, atol=2e-3)
  np.testing.assert_allclose(head.bias, bias, atol=2e-3)
  assert head.unit_norm


# What is released, and what it costs.


class ReleaseCase(NamedTuple):
  options: dict
  rows_per_unit: int | None
  mu_squared: float
  shares: dict


RELEASE_CASES = [
  ReleaseCase({}, None, 0.1, {"mean": MEAN_SHARE}),
  ReleaseCase(
    {},
    None,
    9.0,
    {"mean": MEAN_SHARE, "second moment": SECOND_MOMENT_SHARE},
  ),
  ReleaseCase(
    {"balanced": True},
    None,
    0.1,
    {"class counts": CLASS_COUNTS_SHARE, "mean": MEAN_SHARE},
  ),
  ReleaseCase({"start": START}, None, 0.1, {}),
  ReleaseCase(
    {"start": START}, None, 9.0, {"second moment": SECOND_MOMENT_SHARE}
  ),
  ReleaseCase({}, 2, 0.1, {"units": UNIT_COUNT_SHARE, "mean": MEAN_SHARE}),
  ReleaseCase(
    {"balanced": True, "start": START},
    2,
    40.0,
    {
      "units": UNIT_COUNT_SHARE,
      "class counts": CLASS_COUNTS_SHARE,
      "second moment": SECOND_MOMENT_SHARE,
    },
  ),
]


@pytest.fixture(params=RELEASE_CASES)
def released(request):
  """A case, and the releases of a head of it."""
  case = request.param
  rows = rows_of_clusters(rows_per_unit=case.rows_per_unit)
  sums, _ = observe_head(rows, case.mu_squared, **case.options)
  return case, sums.releases


@pytest.mark.slow
def test_releases_are_each_statistic_once_and_then_the_gradients(released):
  case, releases = released
  names = [release.name for release in releases]
  assert names == [*case.shares, *["gradient"] * STEPS]


@pytest.mark.slow
def test_releases_cost_all_of_the_budget_and_no_more(released):
  case, releases = released
  spent = mu_squared_of(releases)
  assert spent <= Fraction(case.mu_squared)
  assert float(spent) == pytest.approx(case.mu_squared, rel=1e-9)


def test_each_release_costs_its_share_and_steps_cost_alike(released):
  case, releases = released
  for release in releases[: len(case.shares)]:
    expected = case.shares[release.name] * case.mu_squared
    assert release.noise_multiplier**-2 == pytest.approx(expected)
  steps = releases[len(case.shares) :]
  assert len({step.noise_multiplier for step in steps}) == 1


@pytest.mark.parametrize(
  ("factor", "expected"), [(0.99, STEPS_OF_LITTLE_NOISE), (1.01, STEPS)]
)
def test_steps_are_more_where_noise_is_little(factor, expected):
  sigma = factor * LITTLE_NOISE * 50_000 / 10
  assert choose_num_steps(n=50_000.0, sigma=sigma, num_classes=10) == expected


def test_more_steps_cost_no_more():
  sums, _ = observe_head(rows_of_clusters(), 1000.0)
  assert len(sums.all_of("gradient")) == STEPS_OF_LITTLE_NOISE
  spent = mu_squared_of(sums.releases)
  assert spent <= Fraction(1000.0)
  assert float(spent) == pytest.approx(1000.0, rel=1e-9)


@pytest.mark.parametrize("counts_units", [False, True])
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("whitened", [False, True])
def test_split_budget_shares_add_up_to_one(
  counts_units, balanced, centered, whitened
):
  split = split_budget(
    counts_units=counts_units,
    balanced=balanced,
    centered=centered,
    whitened=whitened,
  )
  once = (split.unit_count, split.class_counts, split.mean, split.second_moment)
  chosen = (counts_units, balanced, centered, whitened)
  assert [share > 0 for share in once] == list(chosen)
  assert sum(once) + split.steps == pytest.approx(1)


@pytest.mark.slow
def test_units_are_counted_and_decide_whether_to_whiten():
  """60 units have too few rows for it, though 3,000 rows would be enough."""
  sums, _ = observe_head(rows_of_clusters(3000, rows_per_unit=50), 25.0)
  noise = (UNIT_COUNT_SHARE * 25.0) ** -0.5
  assert abs(sums.only("units").estimate.item() - 60) < 5 * noise
  assert not sums.all_of("second moment")


# Balanced.


@pytest.fixture
def balanced_sums():
  """The mechanism after a balanced head; one class is large, three small."""
  x, y = clusters(1000)
  y = np.where(np.random.default_rng(0).random(1000) < 0.8, 0, y)
  rows = rows_of(dataset_from_arrays(x, y, num_classes=K), keep=True)
  sums, _ = observe_head(rows, 4.0, balanced=True)
  return sums, np.bincount(y, minlength=K)


def test_balanced_counts_classes_with_noise(balanced_sums):
  sums, exact = balanced_sums
  errors = np.abs(sums.only("class counts").estimate.ravel() - exact)
  assert 0 < errors.max() < 5 * (CLASS_COUNTS_SHARE * 4.0) ** -0.5


def test_balanced_steps_add_the_log_of_noisy_shares_to_the_logits(
  balanced_sums,
):
  sums, _ = balanced_sums
  counts = sums.only("class counts").estimate
  expected = log_class_shares(counts, (CLASS_COUNTS_SHARE * 4.0) ** -0.5)
  for gradient in sums.all_of("gradient"):
    _, _, clip_norm, log_prior = gradient.public
    assert clip_norm == BALANCED_CLIP_NORM
    np.testing.assert_array_equal(log_prior, expected)


def test_log_class_shares_takes_counts_to_be_their_noise_at_least():
  counts = np.array([[-70.0], [5.0], [75.0]])
  shares = np.exp(log_class_shares(counts, 20.0))
  np.testing.assert_allclose(shares, np.array([20, 20, 75]) / 115)


def test_log_class_shares_takes_counts_to_be_one_at_least():
  shares = np.exp(log_class_shares(np.array([[0.0], [3.0]]), 0.0))
  np.testing.assert_allclose(shares, [0.25, 0.75])


# Where steps begin.


def whitening_pair(covariance, ridge):
  matrix, inverse = inverse_square_root(covariance, ridge)
  assert matrix is not None
  assert inverse is not None
  return matrix, inverse


def mean_length(kernel):
  return np.linalg.norm(kernel, axis=0).mean()


@pytest.mark.parametrize("mu_squared", [0.1, 9.0])
def test_public_start_is_where_steps_begin(mu_squared):
  sums, _ = observe_head(rows_of_clusters(), mu_squared, start=START)
  first = sums.all_of("gradient")[0].kernel
  too_few = ROWS_TO_LEAVE_START * K * mu_squared**-0.5 / 1000
  expected_length = START_LENGTH * max(1, too_few) ** 0.5
  assert mean_length(first) == pytest.approx(expected_length, rel=1e-3)
  if sums.all_of("second moment"):
    moment = sums.only("second moment").estimate
    ridge = RIDGE * (K * D / mu_squared) ** 0.5
    first = whitening_pair((moment + moment.T) / 2, ridge)[0] @ first
  expected = START.kernel()
  scale = np.linalg.norm(expected) / np.linalg.norm(first)
  np.testing.assert_allclose(first * scale, expected, atol=5e-3)


@pytest.mark.parametrize("mu_squared", [0.1, 9.0])
def test_public_start_needs_no_mean_and_no_bias(mu_squared):
  sums, head = observe_head(rows_of_clusters(), mu_squared, start=START)
  assert not sums.all_of("mean")
  assert not head.unit_norm
  assert not head.bias.any()


@pytest.mark.slow
@pytest.mark.parametrize("new_mu_squared", [0.2, 8.9])
@pytest.mark.parametrize("start", [None, START])
def test_larger_epsilon_begins_at_its_start_and_part_of_the_head_before(
  new_mu_squared, start
):
  rows = rows_of_clusters()
  sums = ObservedSums(NoiseSource(3), 0.1 + new_mu_squared)
  state = make_head(sums, rows, 0.1, start=start).state
  assert state is not None
  sums.observations.clear()
  make_head(sums, rows, new_mu_squared, spent=0.1, state=state)
  first = sums.all_of("gradient")[0].kernel
  # At σ ≥ 1 the head before counts for its share of μ² and of the rate.
  sigma = (0.1 + new_mu_squared) ** -0.5
  earlier = (sigma / 0.1**-0.5) ** 2 * 0.1**-0.5 / max(sigma, 1.0)
  too_few = ROWS_TO_LEAVE_START * K * sigma / 1000
  start_length = START_LENGTH * max(1, too_few) ** 0.5
  whitening = observed_whitening(sums, state, 0.1, new_mu_squared)
  expected = earlier * moved_before(state, whitening)
  if start is not None:
    begin = whitening.to_whitened(state.begin)
    expected = expected + begin * (start_length / mean_length(begin))
  tolerance = 0.01 * np.abs(expected).max()
  np.testing.assert_allclose(first, expected, atol=tolerance)


def observed_whitening(sums, state, spent, new_mu_squared):
  """Computes the map of the rows again, from what was released for it."""
  if not sums.all_of("second moment"):
    return Whitening()
  moment = sums.only("second moment").estimate
  covariance = (moment + moment.T) / 2
  if state.centered:
    mean_noise = (MEAN_SHARE * (spent + new_mu_squared)) ** -0.5
    total = sums.only("mean").estimate[0]
    mean = shrink_mean(total / 1000, mean_noise / 1000)
    covariance = covariance - 1000 * np.outer(mean, mean)
  # Only the new part of the budget bought the second moment.
  ridge = RIDGE * (K * D / new_mu_squared) ** 0.5
  matrix, inverse = inverse_square_root(covariance, ridge)
  return Whitening(matrix=matrix, inverse=inverse)


@pytest.mark.parametrize("new_mu_squared", [0.2, 8.9])
def test_larger_epsilon_costs_the_difference_alone(new_mu_squared):
  rows = rows_of_clusters()
  sums = ObservedSums(NoiseSource(3), 0.1 + new_mu_squared)
  state = make_head(sums, rows, 0.1).state
  assert state is not None
  make_head(sums, rows, new_mu_squared, spent=0.1, state=state)
  spent = mu_squared_of(sums.releases)
  assert spent <= Fraction(0.1 + new_mu_squared)
  assert float(spent) == pytest.approx(0.1 + new_mu_squared, rel=1e-9)


@pytest.mark.slow
def test_rows_stay_unwhitened_where_lapack_does_not_converge(monkeypatch):
  def fail_to_converge(_):
    raise np.linalg.LinAlgError("Eigenvalues did not converge")

  monkeypatch.setattr(np.linalg, "eigh", fail_to_converge)
  sums, head = observe_head(rows_of_clusters(400), 9.0)
  assert sums.all_of("second moment")
  assert np.isfinite(head.kernel).all()
