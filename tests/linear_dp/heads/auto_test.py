"""auto: against itself in NumPy, what leaves for it, and where it begins."""

import math
from fractions import Fraction

import numpy as np
import pytest

from oneshot_dp.configs.head_config import HeadOptions, PublicStart
from oneshot_dp.linear_dp.api import dataset_from_arrays
from oneshot_dp.linear_dp.heads.auto import (
  COUNTS,
  MEAN,
  MOMENT,
  STEPS,
  UNITS,
  auto,
  inverse_square_root,
  log_prior,
  shrunk,
)
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import rows_of

K, D = 4, 10
CENTRES = np.random.default_rng(0).standard_normal((K, D))


def clusters(n, seed=1, spread=1.0):
  rng = np.random.default_rng(seed)
  label = rng.integers(0, K, n)
  x = CENTRES[label] + spread * rng.standard_normal((n, D)) + 1.0
  return x.astype(np.float32), label


class Watched(PrivateSums):
  """Remembers what was asked, and what came out."""

  def release(
    self, name, rows, statistic, *, mu_squared, public: tuple = (), cache=True
  ):
    found = super().release(
      name, rows, statistic, mu_squared=mu_squared, public=public, cache=cache
    )
    seen = name, mu_squared, public, found[0]
    self.seen = [*getattr(self, "seen", []), seen]
    return found

  def of(self, name):
    return [seen[1:] for seen in self.seen if seen[0] == name]


def rows_of_clusters(n=1000, units=None):
  data = dataset_from_arrays(*clusters(n), num_classes=K, unit_ids=units)
  return rows_of(data, keep=True)


def watched(rows, buys, **options):
  """The door after one head with noise, and the head."""
  sums = Watched(NoiseSource(3), buys)
  made, _ = auto(sums, rows, buys, options=HeadOptions(**options))
  return sums, made


def kernel_of(public):
  """The kernel that a gradient was asked at."""
  ints, step = public[:2]
  return ints * step * ROW_NORM


def in_numpy(x, y, steps=STEPS, clip=0.03):
  """The whole head without noise, in plain float64."""
  n = len(x)
  u = x / np.linalg.norm(x, axis=1, keepdims=True)
  mean = u.mean(axis=0)
  values, vectors = np.linalg.eigh((u - mean).T @ (u - mean))
  matrix = (vectors / np.sqrt(np.maximum(values, 0) + 1e-6 * n)) @ vectors.T
  v = (u - mean) @ matrix
  v /= np.linalg.norm(v, axis=1, keepdims=True)
  kernel, velocity = np.zeros((D, K)), 0.0
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


def test_without_noise_it_is_what_numpy_makes():
  made, _ = auto(PrivateSums(None, 0.0), rows_of_clusters(600), math.inf)
  kernel, bias = in_numpy(*clusters(600))
  np.testing.assert_allclose(made.kernel, kernel, atol=2e-3)
  np.testing.assert_allclose(made.bias, bias, atol=2e-3)
  assert made.unit_norm


OF_START = PublicStart.of(CENTRES, num_classes=K, feature_dim=D)


@pytest.mark.parametrize(
  ("options", "units", "buys", "shares"),
  [
    ({}, False, 0.1, {"mean": MEAN}),
    ({}, False, 9.0, {"mean": MEAN, "second moment": MOMENT}),
    ({"balanced": True}, False, 0.1, {"class counts": COUNTS, "mean": MEAN}),
    ({"start": OF_START}, False, 0.1, {}),
    ({"start": OF_START}, False, 9.0, {"second moment": MOMENT}),
    ({}, True, 0.1, {"units": UNITS, "mean": MEAN}),
    (
      {"balanced": True, "start": OF_START},
      True,
      40.0,
      {"units": UNITS, "class counts": COUNTS, "second moment": MOMENT},
    ),
  ],
)
def test_what_leaves_costs_what_was_paid_and_no_more(
  options, units, buys, shares
):
  rows = rows_of_clusters(units=np.arange(1000) // 2 if units else None)
  sums, _ = watched(rows, buys, **options)
  names = [release.name for release in sums.releases]
  assert names == [*shares, *["gradient"] * STEPS]
  spent = sum(Fraction(r.noise_multiplier) ** -2 for r in sums.releases)
  assert spent <= Fraction(buys)
  assert float(spent) == pytest.approx(buys, rel=1e-9)
  for release in sums.releases[: len(shares)]:
    paid = shares[release.name] * buys
    assert release.noise_multiplier**-2 == pytest.approx(paid)
  steps = {release.noise_multiplier for release in sums.releases[len(shares) :]}
  assert len(steps) == 1


def test_units_are_counted_and_n_is_their_number():
  """Rows of few units: what follows from n follows from the noisy count."""
  sums, _ = watched(rows_of_clusters(3000, np.arange(3000) // 50), 25.0)
  ((_, _, counted),) = sums.of("units")
  assert abs(counted.item() - 60) < 5 * (UNITS * 25.0) ** -0.5
  assert not sums.of("second moment")  # 60 < 80·K/5; of rows, there are enough


def test_balanced_steps_have_the_log_of_noisy_counts_added():
  x, y = clusters(1000)
  y = np.where(np.random.default_rng(0).random(1000) < 0.8, 0, y)
  rows = rows_of(dataset_from_arrays(x, y, num_classes=K), keep=True)
  sums, _ = watched(rows, 4.0, balanced=True)
  ((_, _, counts),) = sums.of("class counts")
  sigma = (COUNTS * 4.0) ** -0.5
  off = counts.ravel() - np.bincount(y, minlength=K)
  assert 0 < np.abs(off).max() < 5 * sigma
  prior = log_prior(counts, sigma)
  np.testing.assert_allclose(np.exp(prior).sum(), 1)
  for _, public, _ in sums.of("gradient"):
    _, _, clip, log_prior_used = public
    assert clip == 0.3
    np.testing.assert_array_equal(log_prior_used, prior)


def test_a_count_is_its_noise_at_least():
  found = np.exp(log_prior(np.array([[-70.0], [5.0], [75.0]]), 20.0))
  np.testing.assert_allclose(found, np.array([20, 20, 75]) / 115)
  found = np.exp(log_prior(np.array([[0.0], [3.0]]), 0.0))
  np.testing.assert_allclose(found, [0.25, 0.75])


@pytest.mark.parametrize("buys", [0.1, 9.0])
def test_from_a_start_steps_begin_there_and_no_mean_leaves(buys):
  sums, made = watched(rows_of_clusters(), buys, start=OF_START)
  first = kernel_of(sums.of("gradient")[0][1])
  expected = 10 * max(1, 50 * K * buys**-0.5 / 1000) ** 0.5
  length = np.linalg.norm(first, axis=0).mean()
  assert length == pytest.approx(expected, rel=1e-3)
  assert not made.unit_norm
  assert not made.bias.any()
  if whitened := sums.of("second moment"):
    ((_, _, moment),) = whitened
    ridge = 2.5 * (K * D / buys) ** 0.5
    first = pair((moment + moment.T) / 2, ridge)[0] @ first
  start = OF_START.kernel()
  scale = np.linalg.norm(start) / np.linalg.norm(first)
  np.testing.assert_allclose(first * scale, start, atol=5e-3)


@pytest.mark.parametrize("more", [0.2, 8.9])
def test_a_larger_epsilon_goes_on_from_the_head_before(more):
  rows, sums = rows_of_clusters(), Watched(NoiseSource(3), 0.1 + more)
  _, before = auto(sums, rows, 0.1)
  sums.seen = []
  auto(sums, rows, more, 0.1, before)
  ((_, _, mean),), ((_, first, _), *_) = sums.of("mean"), sums.of("gradient")
  kernel = kernel_of(first)
  length = np.linalg.norm(kernel, axis=0).mean()
  assert length == pytest.approx(float(before["length"]), rel=1e-3)
  if whitened := sums.of("second moment"):
    ((_, _, moment),) = whitened
    m = shrunk(mean[0] / 1000, (MEAN * (0.1 + more)) ** -0.5 / 1000)
    covariance = (moment + moment.T) / 2 - 1000 * np.outer(m, m)
    ridge = 2.5 * (K * D / more) ** 0.5
    kernel = pair(covariance, ridge)[0] @ kernel
  kernel *= np.linalg.norm(before["kernel"]) / np.linalg.norm(kernel)
  near = 0.02 * np.abs(kernel).max()
  np.testing.assert_allclose(kernel, before["kernel"], atol=near)
  spent = sum(Fraction(r.noise_multiplier) ** -2 for r in sums.releases)
  assert spent <= Fraction(0.1 + more)


def test_a_shrunk_mean_is_nearer_to_the_mean():
  """James and Stein: whatever the mean, and the more so the less it is."""
  rng = np.random.default_rng(0)
  for length in (0.0, 1.0, 5.0, 100.0):
    true = np.zeros(50)
    true[0] = length
    noisy = true + rng.standard_normal((400, 50))
    better = np.array([shrunk(each, 1.0) for each in noisy])
    risk = ((better - true) ** 2).sum(axis=1).mean()
    assert risk < 50.5
    assert length > 5 or risk < 35
  for d in (1, 2):
    np.testing.assert_array_equal(shrunk(np.ones(d), 10.0), np.ones(d))
  assert not shrunk(np.zeros(9), 0.0).any()


def pair(covariance, ridge):
  a, back = inverse_square_root(covariance, ridge)
  assert a is not None
  assert back is not None
  return a, back


def test_the_inverse_square_root_and_its_inverse():
  rng = np.random.default_rng(0)
  half = rng.standard_normal((D, D))
  covariance = half @ half.T
  a, back = pair(covariance, 0.5)
  np.testing.assert_allclose(
    a @ (covariance + 0.5 * np.eye(D)) @ a, np.eye(D), atol=1e-9
  )
  np.testing.assert_allclose(a @ back, np.eye(D), atol=1e-9)
  a, back = pair(-covariance, 0.5)  # of noise alone
  np.testing.assert_allclose(a, np.eye(D) * 0.5**-0.5, atol=1e-12)
  a, back = pair(np.diag([1e9, 0.0]), 1e-3)
  assert back[0, 0] == 0  # A is nothing in that direction
  assert a[0, 0] > 0


def test_rows_stay_unwhitened_should_lapack_give_up(monkeypatch):
  def gives_up(_):
    raise np.linalg.LinAlgError("Eigenvalues did not converge")

  monkeypatch.setattr(np.linalg, "eigh", gives_up)
  sums, made = watched(rows_of_clusters(400), 9.0)
  assert any(r.name == "second moment" for r in sums.releases)
  assert np.isfinite(made.kernel).all()
