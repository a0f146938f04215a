"""Least-squares heads, from the charge to what an attacker can tell."""

import functools
import itertools
import math
from typing import Any

import hypothesis
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from dp_accounting import (
  NeighboringRelation,
  gaussian_mechanism,
)
from hypothesis import strategies as st

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.least_squares import training as least_squares
from oneshot_dp.linear_dp.heads.least_squares.rule import LeastSquaresRule
from oneshot_dp.linear_dp.heads.least_squares.training import (
  LeastSquaresTrainer,
  denoised,
  discriminant,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import (
  SecretClassMoments,
  class_moments,
)
from oneshot_dp.linear_dp.statistics.joint_release import (
  ClassMoments,
  Shares,
  joint_sensitivity,
  without_noise,
)
from oneshot_dp.linear_dp.trainer import TrainingRows
from tests.linear_dp.blocks import Block, make_block, rows_of

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
K, D = 4, 6
# Seeds are fixed, so that a test passes always or never.
P_VALUE = 1e-4


@functools.cache
def clusters(n=400, imbalanced=False, seed=4) -> Block:
  """Rows whose classes lie apart, in few of the directions."""
  rng = np.random.default_rng(seed)
  share = [0.7, 0.15, 0.1, 0.05] if imbalanced else [1 / K] * K
  label = rng.choice(K, n, p=share)
  centres = np.random.default_rng(4).standard_normal((K, D))
  rows = centres[label] + 0.7 * rng.standard_normal((n, D)) + 2
  return make_block(rows.astype(np.float32), label)


def secret_of(block: Block, num_classes=K, **changes: Any):
  return class_moments(rows_of(block, num_classes=num_classes, **changes))


def zeros() -> SecretClassMoments:
  """Nothing but noise comes of them."""
  return secret_of(make_block(np.zeros((50, D), np.float32), [0] * 50))


def plan_of(*epsilons: float, **changes: Any) -> ReleasePlan:
  options: dict[str, Any] = {"delta": 1e-5}
  return ReleasePlan(epsilons=epsilons or (1.0,), **options | changes)


def uncharged(plan: ReleasePlan, source: NoiseSource) -> None:
  del plan, source


def released(
  secret: SecretClassMoments, plan: ReleasePlan, seed: int | None = 0
) -> list[Any]:
  source = NoiseSource(seed)
  return list(trainer_of(secret).release(plan, source, uncharged))


def trainer_of(secret: SecretClassMoments) -> LeastSquaresTrainer:
  """A trainer that has read rows of these moments."""
  num_classes, d = secret.secret_class_sums.shape
  rows = TrainingRows(
    blocks=list,
    feature_dim=d,
    num_classes=num_classes,
    num_examples=secret.num_examples,
  )
  trainer = LeastSquaresTrainer(rows, [HeadConfig(head="least-squares")])
  trainer._moments = secret
  return trainer


def rule_of(sd: float, n=400, d=D, num_classes=K) -> LeastSquaresRule:
  return LeastSquaresRule(
    num_examples=n, feature_dim=d, num_classes=num_classes, noise_sd_steps=sd
  )


@pytest.fixture
def seen(monkeypatch) -> list[ClassMoments]:
  """All moments that heads are made of, in order."""
  found: list[ClassMoments] = []

  def watched(moments: ClassMoments):
    found.append(moments)
    return discriminant(moments)

  monkeypatch.setattr(least_squares, "discriminant", watched)
  return found


# What is charged, and what is added.


@pytest.mark.parametrize(
  ("relation", "epsilon"),
  [(REPLACE, 0.5), (REPLACE_SPECIAL, 8.0)],
)
def test_the_noise_is_that_of_the_statement(seen, relation, epsilon):
  """Moments of rows of zeros are noise: of σΔ, doubled for REPLACE_ONE."""
  plan = plan_of(epsilon, neighboring_relation=relation, num_draws=60)
  heads = released(zeros(), plan)
  removals = 2 if relation is REPLACE else 1
  sigma = gaussian_mechanism.get_sigma_gaussian(epsilon, 1e-5)
  sd = sigma * removals  # in rows, but for the rounding of M
  shares = Shares.of(K)
  for values, expected in [
    ([np.diag(m.moment) for m in seen], sd / shares.moment**0.5),
    ([m.moment[np.triu_indices(D, 1)] for m in seen],
     sd / (2 * shares.moment) ** 0.5),
    ([m.class_sums for m in seen], sd / shares.class_sums**0.5),
    ([m.total for m in seen], sd / shares.total**0.5),
    ([m.class_counts for m in seen], sd / shares.class_counts**0.5),
  ]:  # fmt: skip
    values = np.concatenate([np.ravel(v) for v in values])
    law = scipy.stats.chi2(values.size)
    total = (values**2).sum() / expected**2
    assert P_VALUE < law.cdf(total) < 1 - P_VALUE
  for head in heads:
    found = head.statement
    sensitivity = joint_sensitivity(relation, D, K)
    assert found.sensitivity == sensitivity
    assert found.noise_multiplier == noise_multiplier(epsilon, 1e-5)
    assert found.noise_sd == math.nextafter(
      found.noise_multiplier * sensitivity, math.inf
    )
    assert head.mechanism.noise_sd_steps == found.noise_sd
    assert found.neighboring_relation is relation


@pytest.mark.parametrize("order", ["nested", "independent"])
def test_noise_of_heads(seen, order):
  """Nested ones share theirs within a draw; others and draws share nothing."""
  heads = released(zeros(), plan_of(1.0, 2.0, num_draws=40, order=order))
  assert [(h.draw, h.statement.epsilon) for h in heads] == [
    *itertools.product(range(40), (2.0, 1.0))
  ]
  noises = [np.append(m.class_sums, m.moment[np.triu_indices(D)]) for m in seen]
  large, small = np.array(noises[::2]), np.array(noises[1::2])
  factor = heads[0].statement.noise_sd / heads[1].statement.noise_sd
  size = large.size
  related = (large * small).sum() / (large**2).sum()
  expected = 1.0 if order == "nested" else 0.0
  assert abs(related - expected) < 6 / factor / math.sqrt(size)
  for one in (large, small):
    lagged = (one[1:] * one[:-1]).sum() / (one[1:] ** 2).sum()
    assert abs(lagged) < 6 / math.sqrt(size)
  assert len({h.head.kernel.tobytes() for h in heads}) == len(heads)


# The rule.


def test_rule():
  sd = 3.0 * GRID_RADIUS
  rule = rule_of(sd, num_classes=10)
  assert rule.shares.moment == 0.3
  assert rule.moment_noise_sd == pytest.approx(3 / 0.3**0.5)
  assert rule.class_sum_noise_sd == pytest.approx(3 / 0.6**0.5)
  assert rule.ridge == pytest.approx(0.3 * 3 / 0.3**0.5 * D**0.5)
  assert rule.least_count == pytest.approx(2 * 3 / 0.05**0.5)
  assert rule_of(0.0, n=10**6).ridge == 1
  assert rule_of(0.0).least_count == 1
  assert Shares.of(2).moment == 0.3
  assert Shares.of(80).moment == pytest.approx(0.15)


# The solution, by other means.


def unit_rows(rows: np.ndarray) -> np.ndarray:
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def textbook(block: Block) -> np.ndarray:
  """LDA with a shared covariance from the rows themselves, by scipy's solve."""
  x, n = unit_rows(block.embedding.astype(np.float64)), len(block)
  ridge = 1e-6 * n * np.eye(x.shape[1])
  means = np.array([x[block.label == c].mean(axis=0) for c in range(K)])
  apart = x - means[block.label]
  covariance = (apart.T @ apart + ridge) / n
  priors = np.bincount(block.label, minlength=K) / n
  centred = means - x.mean(axis=0)
  weights = scipy.linalg.solve(covariance, centred.T, assume_a="pos")
  bias = np.log(priors) - x.mean(axis=0) @ weights
  bias -= np.einsum("cd,dc->c", centred, weights) / 2
  one = scipy.linalg.solve(x.T @ x + ridge, x.sum(axis=0), assume_a="pos")
  return weights + np.outer(one, bias)


@pytest.mark.parametrize("imbalanced", [False, True])
@pytest.mark.parametrize("devices", [1, 8])
def test_without_noise_it_is_the_discriminant(imbalanced, devices):
  block = clusters(imbalanced=imbalanced)
  secret = secret_of(block, devices=devices)
  head = trainer_of(secret).baseline(plan_of()).head
  expected = textbook(block)
  scale = np.abs(expected).max()
  np.testing.assert_allclose(head.kernel, expected, atol=1e-4 * scale, rtol=0)
  assert not np.asarray(head.bias).any()


@pytest.mark.parametrize("imbalanced", [False, True])
def test_it_learns_and_is_right_for_rare_classes(imbalanced):
  """Nearly as good as the best rule that knows what the rows were made of."""
  train = clusters(20_000, imbalanced)
  test = clusters(20_000, imbalanced, seed=9)
  (head,) = released(secret_of(train), plan_of(4.0), seed=3)
  found = np.argmax(test.embedding @ head.head.kernel, axis=1)
  best = np.argmax(test.embedding @ textbook(train), axis=1)
  hits, best_hits = (found == test.label).mean(), (best == test.label).mean()
  assert best_hits > 0.8
  assert hits > best_hits - 0.01
  # Shares of what is predicted are those of the classes.
  predicted = np.bincount(found, minlength=K) / len(test)
  np.testing.assert_allclose(
    predicted, np.bincount(test.label) / len(test), atol=0.04
  )


def moments_with(sd: float = 0.0, **changes: Any) -> ClassMoments:
  exact = without_noise(secret_of(clusters()))
  fields = {f: getattr(exact, f) for f in exact.__dataclass_fields__}
  return ClassMoments(**fields | {"noise_sd": sd} | changes)


def test_noise_shrinks_means_towards_nothing():
  """The more noise is declared, the less is believed of the same numbers."""
  sizes = []
  for sd in (0.0, 0.1, 1.0, 10.0):
    kernel = np.asarray(discriminant(moments_with(sd * GRID_RADIUS)).kernel)
    # Common to all classes is only the prior.
    sizes.append(np.linalg.norm(kernel - kernel.mean(axis=1, keepdims=True)))
  assert sizes == sorted(sizes, reverse=True)
  assert sizes[-1] < 0.1 * sizes[0]


def test_counts_below_the_noise_are_not_believed():
  counts = np.array([-500.0, 130.0, 120.0, 150.0])
  head = discriminant(moments_with(GRID_RADIUS * 1.0, class_counts=counts))
  assert np.isfinite(head.kernel).all()
  empty = moments_with(class_counts=np.zeros(K), class_sums=np.zeros((K, D)))
  assert np.isfinite(discriminant(empty).kernel).all()


@pytest.mark.parametrize(
  ("epsilon", "relation", "d"),
  [(1e-5, REPLACE, D), (1e5, REPLACE_SPECIAL, 1)],
)
def test_extremes_are_finite(epsilon, relation, d):
  plan = plan_of(epsilon, neighboring_relation=relation)
  rng = np.random.default_rng(0)
  block = make_block(rng.standard_normal((50, d)), rng.integers(0, K, 50))
  for rows in (block, block[:1], block.but(embedding=block.embedding * 0)):
    (head,) = released(secret_of(make_block(rows.embedding, rows.label)), plan)
    assert np.isfinite(head.head.kernel).all()


# The spectrum.


def symmetric_noise(d: int, seed: int) -> np.ndarray:
  rng = np.random.default_rng(seed)
  above = np.triu(rng.standard_normal((d, d)), 1) / math.sqrt(2)
  return above + above.T + np.diag(rng.standard_normal(d))


def test_noise_alone_has_no_spectrum():
  d = 300
  values = np.linalg.eigvalsh(5 * symmetric_noise(d, 0))
  assert values.max() > 6 * math.sqrt(d)
  found = denoised(values, 5.0)
  assert found.max() < 0.3 * values.max()
  assert found.mean() < 0.1 * values.max()


def test_it_is_what_lies_along_the_eigenvectors():
  """⟨v, Mv⟩ for the eigenvectors v of M with noise, which need M."""
  d, sd = 400, 1.0
  spectrum = 400 / (1 + np.arange(d))
  turn = scipy.stats.ortho_group.rvs(d, random_state=1)
  matrix = (turn * spectrum) @ turn.T
  values, vectors = np.linalg.eigh(matrix + sd * symmetric_noise(d, 1))
  along = np.einsum("ik,ij,jk->k", vectors, matrix, vectors)
  found = denoised(values, sd)
  naive = np.maximum(values, 0)
  error, naive_error = (np.abs(f - along).mean() for f in (found, naive))
  assert error < 0.2 * naive_error
  np.testing.assert_allclose(found[-12:], along[-12:], rtol=0.15)


@hypothesis.given(
  values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
  sd=st.one_of(st.just(0.0), st.floats(1e-3, 1e6)),
)
def test_the_spectrum_is_ordered_and_not_negative(values, sd):
  found = denoised(np.sort(values), sd)
  assert (found >= 0).all()
  assert (np.diff(found) >= 0).all()
  if sd == 0:
    np.testing.assert_array_equal(found, np.maximum(np.sort(values), 0))
