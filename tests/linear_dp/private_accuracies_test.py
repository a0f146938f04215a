"""Accuracies of heads on private rows: their noise, budget and units."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.evaluate import evaluate_heads, private_accuracies
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import rows_of


def test_private_accuracies_without_noise_are_the_exact_ones():
  rng = np.random.default_rng(0)
  x = rng.integers(-2, 3, (900, 6)).astype(np.float32) + 0.3
  label = rng.integers(0, 7, 900)
  heads = []
  for seed in range(3):
    kernel = np.random.default_rng(seed).integers(-2, 3, (6, 7))
    bias = np.full(7, -10, np.float32)
    heads.append(LinearHead(kernel=kernel.astype(np.float32), bias=bias))
  data = dataset_from_arrays(x, label, num_classes=7)

  accuracies = private_accuracies(
    PrivateSums(None, 0.0),
    rows_of(data, per_row=True),
    heads,
    mu_squared=np.inf,
  )

  exact = evaluate_heads(heads, [{"embedding": x, "label": label}])
  for accuracy, of_rows in zip(accuracies, exact, strict=True):
    # Of integers: a tie may go to another class.
    assert accuracy.top1 == pytest.approx(of_rows.top1, abs=0.01)
    # Nothing else leaves the rows.
    assert accuracy.top5 is None
    assert accuracy.recall is None
    assert accuracy.balanced is None


def clear_rows(n):
  """Rows that a head of an eye has right, every second one."""
  label = np.arange(n) % 4
  x = np.eye(4, dtype=np.float32)[label] + 0.01
  wrong = np.arange(n) // 4 % 2 == 1
  return x, np.where(wrong, (label + 1) % 4, label)


EYE = LinearHead(kernel=np.eye(4, dtype=np.float32), bias=np.zeros(4, "f"))


@pytest.fixture
def clear_data():
  """4,000 rows, of which `EYE` has every second one right."""
  x, label = clear_rows(4000)
  return dataset_from_arrays(x, label, num_classes=4)


@pytest.mark.slow
def test_private_accuracies_have_the_noise_of_the_budget(clear_data):
  """800 accuracies of one head: their spread is that of the noise."""
  rows = rows_of(clear_data, per_row=True)
  mu_squared = mu_squared_from_epsilon(1.0, 1e-5)
  source = NoiseSource(0)
  errors = []

  for _ in range(200):
    sums = PrivateSums(source, mu_squared)
    heads = private_accuracies(sums, rows, [EYE] * 4, mu_squared=mu_squared)
    for accuracy in heads:
      errors.append(accuracy.top1 - 0.5)

  # A row may be among the right answers of all four heads: the noise of each
  # count is √4 times that of a release of one.
  sd = mu_squared**-0.5 * 4**0.5 / 4000
  assert np.std(errors) == pytest.approx(sd, rel=0.1)
  assert abs(np.mean(errors)) < 5 * sd / 800**0.5


def test_private_accuracies_cannot_exceed_the_budget(clear_data):
  rows = rows_of(clear_data, per_row=True)
  mu_squared = mu_squared_from_epsilon(1.0, 1e-5)
  sums = PrivateSums(NoiseSource(0), mu_squared)
  private_accuracies(sums, rows, [EYE] * 4, mu_squared=mu_squared)

  (release,) = sums.releases
  assert release.noise_multiplier**-2 <= mu_squared
  with pytest.raises(RunError, match="would exceed the charged budget"):
    private_accuracies(sums, rows, [EYE], mu_squared=mu_squared)


class UnitsCase(NamedTuple):
  """Rows of classes that `EYE` answers with, and whose each row is."""

  classes: np.ndarray
  labels: np.ndarray
  unit: np.ndarray
  num_units: int
  top1: float


def one_large_unit():
  """The rows of one large unit are all right, the other units' wrong."""
  classes = np.arange(4000) % 4
  unit = np.maximum(np.arange(4000) // 2 - 999, 0)
  labels = (classes + (unit > 0)) % 4
  return UnitsCase(classes, labels, unit, 1001, 1 / 1001)


def one_of_three_right():
  """The mean of a unit's rows would be wrong."""
  classes = np.tile([0, 1, 1], 1000)
  unit = np.arange(3000) // 3
  return UnitsCase(classes, np.zeros(3000, int), unit, 1000, 1 / 3)


@pytest.mark.parametrize("case", [one_large_unit(), one_of_three_right()])
def test_private_accuracies_count_a_unit_for_one_and_its_rows_one_by_one(case):
  data = dataset_from_arrays(
    np.eye(4, dtype=np.float32)[case.classes],
    case.labels,
    num_classes=4,
    unit_ids=case.unit,
  )
  sums = PrivateSums(NoiseSource(0), 1e9)

  (accuracy,) = private_accuracies(
    sums, rows_of(data, per_row=True), [EYE], mu_squared=1e9
  )

  assert accuracy.num_examples == case.num_units
  assert accuracy.top1 == pytest.approx(case.top1, rel=0.01)
  units, right_answers = sums.releases
  assert units.name == "units"
  assert right_answers.name == "right answers"
  spent = units.noise_multiplier**-2 + right_answers.noise_multiplier**-2
  assert spent <= 1e9


@pytest.fixture
def part_of_data(clear_data):
  """4,000 rows of a part of a cache, of which 5,000 are expected."""
  return dataclasses.replace(clear_data, n=5000)


def test_private_accuracies_count_rows_where_their_number_is_private(
  part_of_data,
):
  sums = PrivateSums(NoiseSource(0), 1e6)
  rows = rows_of(part_of_data, per_row=True)

  (accuracy,) = private_accuracies(
    sums, rows, [EYE], mu_squared=5e5, count_units=True
  )

  assert accuracy.num_examples == 4000
  assert accuracy.top1 == pytest.approx(0.5, rel=0.01)


def test_private_accuracies_without_a_count_are_of_the_expected_number(
  part_of_data,
):
  sums = PrivateSums(NoiseSource(0), 1e6)
  rows = rows_of(part_of_data, per_row=True)

  (accuracy,) = private_accuracies(sums, rows, [EYE], mu_squared=1.0)

  assert accuracy.num_examples == 5000
