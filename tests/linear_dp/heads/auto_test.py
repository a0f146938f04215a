"""auto: against itself in NumPy, what it releases, and what that costs."""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from oneshot_dp.linear_dp.heads.auto import (
  CLASS_COUNTS_SHARE,
  LITTLE_NOISE,
  MEAN_SHARE,
  SECOND_MOMENT_SHARE,
  STEPS,
  STEPS_OF_LITTLE_NOISE,
  UNIT_COUNT_SHARE,
  choose_num_steps,
  split_budget,
)
from oneshot_dp.linear_dp.private_sums import PrivateSums
from tests.linear_dp.heads.observed_heads import (
  START,
  D,
  K,
  clusters,
  make_head,
  mu_squared_of,
  observe_head,
  rows_of_clusters,
)

# Without noise.


def head_in_numpy(x, y, steps=STEPS_OF_LITTLE_NOISE, clip=0.03):
  """The whole head without noise, in plain float64."""
  n = len(x)
  # Rows at norm 1 are centered, multiplied by the inverse square root of their
  # covariance, and brought back to norm 1.
  u = x / np.linalg.norm(x, axis=1, keepdims=True)
  mean = u.mean(axis=0)
  values, vectors = np.linalg.eigh((u - mean).T @ (u - mean))
  matrix = (vectors / np.sqrt(np.maximum(values, 0) + 1e-6 * n)) @ vectors.T
  v = (u - mean) @ matrix
  v /= np.linalg.norm(v, axis=1, keepdims=True)
  # Full-batch steps with momentum, along clipped gradients of the softmax.
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
  # Back to rows as they are, with the longest column at norm 1.
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
  """A head's options, and the shares of its μ² that are not for the steps."""

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


@pytest.fixture(scope="module", params=RELEASE_CASES)
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

  # Not one bit more; and hardly less, since less would be noise for nothing.
  assert spent <= Fraction(case.mu_squared)
  assert float(spent) == pytest.approx(case.mu_squared, rel=1e-9)


@pytest.mark.slow
def test_each_release_before_the_steps_costs_its_share(released):
  case, releases = released

  for release in releases[: len(case.shares)]:
    expected = case.shares[release.name] * case.mu_squared
    assert release.noise_multiplier**-2 == pytest.approx(expected)


@pytest.mark.slow
def test_steps_cost_alike(released):
  case, releases = released
  first, *others = releases[len(case.shares) :]

  for step in others:
    assert step.noise_multiplier == first.noise_multiplier


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

  assert (split.unit_count > 0) == counts_units
  assert (split.class_counts > 0) == balanced
  assert (split.mean > 0) == centered
  assert (split.second_moment > 0) == whitened
  shares_before_steps = (
    split.unit_count + split.class_counts + split.mean + split.second_moment
  )
  assert shares_before_steps + split.steps == pytest.approx(1)


@pytest.fixture(scope="module")
def sums_of_60_units():
  """The mechanism after a head of 60 units that have 50 rows each."""
  sums, _ = observe_head(rows_of_clusters(3000, rows_per_unit=50), 25.0)
  return sums


@pytest.mark.slow
def test_units_are_counted_with_noise(sums_of_60_units):
  noise = (UNIT_COUNT_SHARE * 25.0) ** -0.5

  estimate = sums_of_60_units.only("units").estimate.item()

  assert abs(estimate - 60) < 5 * noise


@pytest.mark.slow
def test_units_and_not_rows_decide_whether_to_whiten(sums_of_60_units):
  """3,000 rows would be enough for it; 60 units are too few."""
  assert not sums_of_60_units.all_of("second moment")


@pytest.mark.slow
def test_rows_stay_unwhitened_where_lapack_does_not_converge(monkeypatch):
  def fail_to_converge(_):
    raise np.linalg.LinAlgError("Eigenvalues did not converge")

  monkeypatch.setattr(np.linalg, "eigh", fail_to_converge)

  sums, head = observe_head(rows_of_clusters(400), 9.0)

  assert sums.all_of("second moment")
  assert np.isfinite(head.kernel).all()
