"""Self-training on public rows: the student, the choice, and what it costs."""

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadOptions, UnlabeledRows
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.heads.self_training import (
  CHOICE_SHARE,
  SelfTrainer,
  choose_head,
)
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.train import baseline, check_plan, cost, train
from tests.sample_caches import clusters

D, K = 8, 4
DELTA = 1e-4


def rows_of_seed(seed, scatter=0.5, rows_per_class=100):
  return clusters((rows_per_class,) * K, D, seed=seed, scatter=scatter)


def teacher_from(kernel):
  return LinearHead(
    kernel=kernel.astype(np.float32),
    bias=np.zeros(kernel.shape[1], np.float32),
    unit_norm=True,
  )


@pytest.fixture
def centers():
  """The direction of each class, [K, d]."""
  return np.random.default_rng(5).choice([-1.0, 1.0], (K, D))


@pytest.fixture
def noisy_teacher(centers):
  noise = np.random.default_rng(1).standard_normal((D, K))
  return teacher_from(centers.T + 1.3 * noise)


def accuracy(head, embeddings, labels):
  logits = np.asarray(head.ranking().logits(jnp.asarray(embeddings)))
  return (logits.argmax(axis=1) == labels).mean()


# The student.


def test_student_is_more_often_right_than_a_noisy_teacher(noisy_teacher):
  public, _ = rows_of_seed(1)
  test, labels = rows_of_seed(2)
  student = SelfTrainer(public).student_of(noisy_teacher)
  before = accuracy(noisy_teacher, test, labels)
  assert before < 0.9
  assert accuracy(student, test, labels) > before + 0.05


def test_student_never_predicts_a_class_that_no_row_was_named_for(centers):
  public, labels = rows_of_seed(1, scatter=0.1)
  teacher = teacher_from(centers.T)
  student = SelfTrainer(public[labels != 2]).student_of(teacher)
  anything = np.random.default_rng(0).standard_normal((1000, D))
  logits = np.asarray(student.logits(jnp.asarray(anything, jnp.float32)))
  assert not (logits.argmax(axis=1) == 2).any()
  # Not by a bias so low that it would take the bits of all others.
  assert np.abs(student.bias).max() < 10


@pytest.mark.slow
@pytest.mark.parametrize(
  "public",
  [
    np.zeros((5, D), np.float32),
    np.ones((5, D), np.float32),
    np.ones((1, D), np.float32),
    np.full((3, D), 1e38, np.float32),
  ],
)
def test_student_of_rows_without_variance_has_finite_weights(
  public, noisy_teacher
):
  student = SelfTrainer(public).student_of(noisy_teacher)
  assert np.isfinite(student.kernel).all()
  assert np.isfinite(student.bias).all()


# The choice.


def choose_between(teacher, student, units=False):
  embeddings, labels = rows_of_seed(0)
  unit_ids = None
  if units:
    unit_ids = np.arange(len(labels)) // 2
  data = dataset_from_arrays(
    embeddings, labels, num_classes=K, unit_ids=unit_ids
  )
  return choose_head(
    PrivateSums(None, 0.0),
    HEADS["auto"].prepare_rows(data),
    teacher=teacher,
    student=student,
    mu_squared=math.inf,
  )


@pytest.mark.slow
@pytest.mark.parametrize("units", [False, True])
def test_choice_is_the_head_that_is_more_often_right(
  centers, noisy_teacher, units
):
  good = teacher_from(centers.T)
  assert choose_between(noisy_teacher, good, units) == (good, True)
  assert choose_between(good, noisy_teacher, units) == (good, False)


def test_choice_between_equal_heads_is_the_teacher(noisy_teacher):
  same = teacher_from(np.asarray(noisy_teacher.kernel, np.float64))
  assert choose_between(noisy_teacher, same) == (noisy_teacher, False)


# Through `train`.


def unlabeled_rows(seed=1):
  return UnlabeledRows.of(rows_of_seed(seed)[0], feature_dim=D)


def train_with(
  unlabeled, epsilons, *, parent_head=None, source=None, scatter=0.5
):
  embeddings, labels = rows_of_seed(0, scatter, rows_per_class=30)
  data = dataset_from_arrays(embeddings, labels, num_classes=K)
  spent = 0.0
  if parent_head:
    spent = parent_head.mu_squared
  heads = train(
    HEADS["auto"].prepare_rows(data),
    head="auto",
    epsilons=epsilons,
    delta=DELTA,
    mu_squared_budget=cost(epsilons, DELTA, spent),
    source=source or NoiseSource(0),
    options=HeadOptions(unlabeled=unlabeled),
    parent_head=parent_head,
  )
  return list(heads)


def mu_squared_of(releases):
  costs = [Fraction(release.noise_multiplier) ** -2 for release in releases]
  return sum(costs, Fraction(0))


@pytest.mark.slow
def test_train_with_unlabeled_rows_releases_one_gain_for_each_epsilon():
  heads = train_with(unlabeled_rows(), (1.0, 4.0))
  for count, trained in enumerate(heads, start=1):
    gains = [r for r in trained.releases if r.name == "self-training gain"]
    assert [gain.shape for gain in gains] == [(1, 1)] * count


@pytest.mark.slow
def test_train_with_unlabeled_rows_costs_all_of_its_epsilon_and_no_more():
  for trained in train_with(unlabeled_rows(), (1.0, 4.0)):
    allowed = mu_squared_from_epsilon(trained.epsilon, DELTA)
    released = mu_squared_of(trained.releases)
    assert released <= Fraction(allowed)
    assert float(released) == pytest.approx(allowed, rel=1e-9)


def test_train_with_unlabeled_rows_buys_the_choice_for_two_percent():
  (trained,) = train_with(unlabeled_rows(), (4.0,))
  gains = [r for r in trained.releases if r.name == "self-training gain"]
  expected = CHOICE_SHARE * mu_squared_from_epsilon(4.0, DELTA)
  assert float(mu_squared_of(gains)) == pytest.approx(expected)


def test_train_without_unlabeled_rows_keeps_all_of_the_budget():
  (trained,) = train_with(None, (4.0,))
  names = {release.name for release in trained.releases}
  assert "self-training gain" not in names
  assert "self_trained" not in trained.options


def test_train_with_unlabeled_rows_states_them_and_the_choice():
  unlabeled = unlabeled_rows()
  (trained,) = train_with(unlabeled, (4.0,))
  assert trained.options["unlabeled_sha256"] == unlabeled.sha256
  assert trained.options["self_trained"] is True


@pytest.mark.slow
def test_train_with_public_rows_of_its_kind_is_more_often_right():
  test, labels = rows_of_seed(2, scatter=1.2)
  public, _ = rows_of_seed(1, scatter=1.2, rows_per_class=500)
  unlabeled = UnlabeledRows.of(public, feature_dim=D)
  (alone,) = train_with(None, (0.5,), scatter=1.2)
  (helped,) = train_with(unlabeled, (0.5,), scatter=1.2)
  assert helped.options["self_trained"]
  before = accuracy(alone.head, test, labels)
  assert accuracy(helped.head, test, labels) > before + 0.02


@pytest.mark.slow
def test_train_with_public_rows_of_another_kind_keeps_the_private_head():
  strange = np.random.default_rng(0).standard_normal((300, D)) ** 3
  unlabeled = UnlabeledRows.of(strange.astype(np.float32), feature_dim=D)
  (trained,) = train_with(unlabeled, (20.0,))
  assert not trained.options["self_trained"]
  assert trained.head.kernel.shape == (D, K)


@pytest.mark.slow
def test_train_from_a_head_with_unlabeled_rows_has_the_bits_of_one_run():
  unlabeled = unlabeled_rows()
  together = train_with(unlabeled, (1.0, 4.0), source=NoiseSource(7))
  source = NoiseSource(7)
  (first,) = train_with(unlabeled, (1.0,), source=source)
  (second,) = train_with(unlabeled, (4.0,), parent_head=first, source=source)
  np.testing.assert_array_equal(second.head.kernel, together[1].head.kernel)
  assert second.releases == together[1].releases
  assert second.options == together[1].options


def test_baseline_with_unlabeled_rows_is_not_private():
  data = dataset_from_arrays(*rows_of_seed(0), num_classes=K)
  trained = baseline(
    HEADS["auto"].prepare_rows(data),
    "auto",
    HeadOptions(unlabeled=unlabeled_rows()),
  )
  assert not trained.private
  assert not trained.releases


# What is refused.


def check(head="auto", parent_head=None, unlabeled=None):
  check_plan(
    head=head,
    n=120,
    feature_dim=D,
    num_classes=K,
    options=HeadOptions(unlabeled=unlabeled),
    parent_head=parent_head,
  )


def test_check_plan_refuses_unlabeled_rows_for_one_step():
  with pytest.raises(InputError, match="unlabeled is for head 'auto'"):
    check("lamb", unlabeled=unlabeled_rows())


@pytest.mark.slow
@pytest.mark.parametrize("has_others", [False, True])
def test_check_plan_refuses_to_go_on_with_other_unlabeled_rows(has_others):
  (parent_head,) = train_with(unlabeled_rows(), (1.0,))
  check(parent_head=parent_head, unlabeled=unlabeled_rows())
  other = None
  if has_others:
    other = unlabeled_rows(9)
  with pytest.raises(InputError, match="give the same ones again"):
    check(parent_head=parent_head, unlabeled=other)


def test_check_plan_refuses_to_go_on_with_unlabeled_rows_that_are_new():
  (parent_head,) = train_with(None, (1.0,))
  with pytest.raises(InputError, match="the head to continue has"):
    check(parent_head=parent_head, unlabeled=unlabeled_rows())


@pytest.mark.parametrize(
  ("embeddings", "message"),
  [
    (np.ones((3, D + 1), np.float32), "give floats of shape"),
    (np.ones(D, np.float32), "give floats of shape"),
    (np.ones((0, D), np.float32), "at least one row"),
    (np.ones((3, D), int), "give floats of shape"),
    (np.full((3, D), np.nan), r"unlabeled\[0\] is not finite"),
    (np.full((3, D), 1e300), r"unlabeled\[0\] is not finite"),
  ],
)
def test_unlabeled_rows_that_are_no_embeddings_are_refused(embeddings, message):
  with pytest.raises(InputError, match=message):
    UnlabeledRows.of(embeddings, feature_dim=D)
