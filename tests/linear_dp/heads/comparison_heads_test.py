"""`prototypes` and `least_squares`: against NumPy, and what they can do."""

import math

import numpy as np
import pytest

from oneshot_dp.configs.head_config import HeadOptions
from oneshot_dp.linear_dp.api import train_head
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.evaluate import evaluate_heads
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from tests.sample_caches import clusters

D, K = 8, 4


@pytest.fixture(scope="module")
def rows():
  """Embeddings [n, d] and labels [n] of clusters of different sizes."""
  return clusters((40, 90, 200, 300), D, scatter=1.0)


def noiseless_kernel(name, embeddings, labels):
  """The weights that a head has without noise, [d, K]."""
  data = dataset_from_arrays(embeddings, labels, num_classes=K)
  result = HEADS[name].make(
    PrivateSums(None, 0.0),
    HEADS[name].prepare_rows(data),
    new_mu_squared=math.inf,
    spent_mu_squared=0.0,
    state=None,
    options=HeadOptions(),
  )
  assert result.head.unit_norm
  assert not np.asarray(result.head.bias).any()
  return np.asarray(result.head.kernel)


def at_norm_one(embeddings):
  wide = embeddings.astype(np.float64)
  return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def test_prototypes_without_noise_are_the_directions_of_class_means(rows):
  embeddings, labels = rows

  kernel = noiseless_kernel("prototypes", embeddings, labels)

  one_hot = np.eye(K)[labels]
  means = one_hot.T @ at_norm_one(embeddings) / one_hot.sum(axis=0)[:, None]
  expected = means / np.linalg.norm(means, axis=1, keepdims=True)
  np.testing.assert_allclose(kernel, expected.T, atol=1e-3)


def test_least_squares_without_noise_are_those_of_numpy(rows):
  embeddings, labels = rows

  kernel = noiseless_kernel("least_squares", embeddings, labels)

  expected, *_ = np.linalg.lstsq(
    at_norm_one(embeddings), np.eye(K)[labels], rcond=None
  )
  np.testing.assert_allclose(kernel, expected, rtol=0.01, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("has_units", [False, True])
@pytest.mark.parametrize("name", ["prototypes", "least_squares"])
def test_head_with_noise_is_far_better_than_chance(name, has_units, rows):
  embeddings, labels = rows
  unit_ids = np.arange(len(labels)) // 2 if has_units else None

  head = train_head(
    embeddings,
    labels,
    num_classes=K,
    epsilon=4.0,
    delta=1e-5,
    head=name,
    unit_ids=unit_ids,
    source=NoiseSource(1),
  )

  test, test_labels = clusters((100,) * K, D, seed=1, scatter=1.0)
  columns = {"embedding": test, "label": test_labels}
  (score,) = evaluate_heads([head], [columns])
  assert score.top1 > 0.6
