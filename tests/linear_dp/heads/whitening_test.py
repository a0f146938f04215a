"""The map of rows: it whitens, and is undone where it can be."""

import numpy as np

from oneshot_dp.linear_dp.heads.whitening import inverse_square_root

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
