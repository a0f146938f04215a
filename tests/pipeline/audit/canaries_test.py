"""What canaries add to releases, and probes that share no noise."""

from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.statistics import class_sums
from oneshot_dp.pipeline.audit.attack import sample_canaries
from oneshot_dp.pipeline.audit.canaries import (
  Canaries,
  Contribution,
  make_probes,
  orthonormal_basis,
)


@pytest.fixture
def canaries():
  """Three of each of 64 directions; the last direction has two."""
  return Canaries(count=191, dim=64, num_classes=6)


def probes_of(added) -> Any:
  """The probes of a release to which canaries add this."""
  return make_probes(added, orthonormal_basis(added.row))


def probe_matrix(probes):
  """The probes as vectors, [m, q·p]."""
  rows = probes.row[probes.direction]
  outer = np.einsum("mq,mp->mqp", probes.left, rows)
  return outer.reshape(len(outer), -1)


def test_canaries_of_one_direction_have_different_classes(canaries):
  (block,) = canaries.alone().blocks()

  cells = set(zip(canaries.direction, block["label"], strict=True))
  assert len(cells) == canaries.count
  assert canaries.num_directions == 64


def test_canaries_of_more_directions_than_classes_are_refused():
  with pytest.raises(InputError, match="need 3 classes, and there are 2"):
    Canaries(count=191, dim=64, num_classes=2)


def test_a_canary_that_is_absent_is_a_row_of_zeros(canaries):
  coins = np.arange(canaries.count) % 2 == 0

  (block,) = canaries.with_coins(coins).blocks()

  np.testing.assert_array_equal(block["embedding"].any(axis=1), coins)
  np.testing.assert_array_equal(block["embedding_norm"] > 0, coins)


def test_rows_of_a_canary_share_a_unit():
  canaries = Canaries(count=10, dim=10, num_classes=2, rows_each=3)

  dataset = canaries.alone()

  (block,) = dataset.blocks()
  assert dataset.has_units
  assert len(block["unit_id"]) == 30
  assert len(set(block["unit_id"])) == 10


@pytest.mark.slow
@pytest.mark.parametrize("rows_each", [1, 2])
def test_contribution_is_that_of_the_right_canary(rows_each):
  canaries = Canaries(count=300, dim=100, num_classes=3, rows_each=rows_each)
  rows, _ = sample_canaries(canaries, "lamb")

  added = rows.contribution(class_sums, ())

  assert (added.left.argmax(axis=1) == np.arange(300) % 3).all()
  (block,) = canaries.alone().blocks()
  embedding = block["embedding"][::rows_each]
  along = (added.row[added.direction] * embedding).sum(axis=1)
  assert (along > 99).all()  # of a norm of 100


def test_total_is_the_sum_of_contributions():
  rng = np.random.default_rng(0)
  direction = np.array([0, 0, 1])
  added = Contribution(
    rng.normal(size=(3, 4)), rng.normal(size=(2, 5)), direction
  )
  shares = np.array([1.0, 0.0, 0.5])

  total = added.total(shares)

  each = np.einsum("mq,mp->mqp", added.left, added.row[direction])
  np.testing.assert_allclose(total, np.tensordot(shares, each, 1))


@pytest.mark.parametrize("count", [12, 11])
def test_probes_are_orthonormal_whatever_canaries_add(count):
  rng = np.random.default_rng(0)
  direction = np.arange(count) // 3
  added = Contribution(
    rng.normal(size=(count, 5)), rng.normal(size=(4, 7)), direction
  )

  probes = probes_of(added)

  vectors = probe_matrix(probes)
  np.testing.assert_allclose(vectors @ vectors.T, np.eye(count), atol=1e-12)


def test_probes_of_equal_left_factors_are_orthonormal():
  """As of a second moment: canaries of one direction add the same."""
  rng = np.random.default_rng(0)
  left = np.repeat(rng.normal(size=(4, 7)), 3, axis=0)
  added = Contribution(left, rng.normal(size=(4, 7)), np.arange(12) // 3)

  probes = probes_of(added)

  vectors = probe_matrix(probes)
  np.testing.assert_allclose(vectors @ vectors.T, np.eye(12), atol=1e-12)
  assert (probes.strength[::3] > 0.1).all()


def test_strength_of_a_probe_is_what_its_canary_adds_along_it():
  rng = np.random.default_rng(0)
  direction = np.arange(12) // 3
  added = Contribution(
    rng.normal(size=(12, 5)), rng.normal(size=(4, 7)), direction
  )

  probes = probes_of(added)

  each = np.einsum("mq,mp->mqp", added.left, added.row[direction])
  along = (probe_matrix(probes) * each.reshape(12, -1)).sum(axis=1)
  np.testing.assert_allclose(probes.strength, along)
  for i in range(12):
    assert probes.coordinates(each[i])[i] == pytest.approx(probes.strength[i])


@pytest.mark.parametrize(("q", "p"), [(5, 3), (2, 7)])
def test_a_release_of_fewer_numbers_than_canaries_has_no_probes(q, p):
  added = Contribution(np.ones((12, q)), np.ones((4, p)), np.arange(12) // 3)

  assert probes_of(added) is None
