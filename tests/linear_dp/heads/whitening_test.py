"""The map of rows: it whitens, and is undone where it can be."""

import numpy as np
import pytest

from oneshot_dp.linear_dp.heads.whitening import (
  inverse_square_root,
  shrink_mean,
)

D = 10


def whitening_pair(covariance, ridge):
  matrix, inverse = inverse_square_root(covariance, ridge)
  assert matrix is not None
  assert inverse is not None
  return matrix, inverse


def test_inverse_square_root_whitens_and_its_inverse_undoes_it():
  half = np.random.default_rng(0).standard_normal((D, D))
  covariance = half @ half.T
  matrix, inverse = whitening_pair(covariance, 0.5)
  whitened = matrix @ (covariance + 0.5 * np.eye(D)) @ matrix
  np.testing.assert_allclose(whitened, np.eye(D), atol=1e-9)
  np.testing.assert_allclose(matrix @ inverse, np.eye(D), atol=1e-9)


def test_inverse_square_root_takes_negative_eigenvalues_for_noise():
  half = np.random.default_rng(0).standard_normal((D, D))
  matrix, _ = whitening_pair(-half @ half.T, 0.5)
  np.testing.assert_allclose(matrix, np.eye(D) * 0.5**-0.5, atol=1e-12)


def test_inverse_square_root_has_no_inverse_where_it_is_next_to_nothing():
  matrix, inverse = whitening_pair(np.diag([1e9, 0.0]), 1e-3)
  assert inverse[0, 0] == 0
  assert matrix[0, 0] > 0


@pytest.mark.parametrize(
  ("length", "largest_risk"),
  [(0.0, 35.0), (1.0, 35.0), (5.0, 35.0), (100.0, 50.5)],
)
def test_shrunk_mean_is_nearer_to_the_true_mean(length, largest_risk):
  """James and Stein: whatever the mean is; 50 is the risk without shrinking."""
  rng = np.random.default_rng(0)
  true = np.zeros(50)
  true[0] = length
  noisy = true + rng.standard_normal((400, 50))
  shrunk = np.array([shrink_mean(mean, 1.0) for mean in noisy])
  risk = ((shrunk - true) ** 2).sum(axis=1).mean()
  assert risk < largest_risk


@pytest.mark.parametrize("dim", [1, 2])
def test_shrunk_mean_of_one_or_two_numbers_is_the_mean(dim):
  np.testing.assert_array_equal(shrink_mean(np.ones(dim), 10.0), np.ones(dim))


def test_shrunk_mean_of_zeros_is_zeros():
  assert not shrink_mean(np.zeros(9), 0.0).any()
