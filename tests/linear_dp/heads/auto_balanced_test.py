"""auto, balanced: classes are counted with noise, and their shares told."""

import numpy as np
import pytest

from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.heads.auto import (
  BALANCED_CLIP_NORM,
  CLASS_COUNTS_SHARE,
  log_class_shares,
)
from oneshot_dp.linear_dp.rows import rows_of
from tests.linear_dp.heads.observed_heads import K, clusters, observe_head

MU_SQUARED = 4.0


@pytest.fixture(scope="module")
def balanced_sums():
  """The mechanism after a balanced head; one class is large, three small."""
  x, y = clusters(1000)
  y = np.where(np.random.default_rng(0).random(1000) < 0.8, 0, y)
  rows = rows_of(dataset_from_arrays(x, y, num_classes=K), keep=True)
  sums, _ = observe_head(rows, MU_SQUARED, balanced=True)
  return sums, np.bincount(y, minlength=K)


def test_balanced_counts_classes_with_noise(balanced_sums):
  sums, exact = balanced_sums

  errors = np.abs(sums.only("class counts").estimate.ravel() - exact)

  # Zero would be counts without noise.
  assert 0 < errors.max() < 5 * (CLASS_COUNTS_SHARE * MU_SQUARED) ** -0.5


def test_balanced_steps_add_the_log_of_noisy_shares_to_the_logits(
  balanced_sums,
):
  sums, _ = balanced_sums

  counts = sums.only("class counts").estimate
  noise = (CLASS_COUNTS_SHARE * MU_SQUARED) ** -0.5
  expected = log_class_shares(counts, noise)
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
