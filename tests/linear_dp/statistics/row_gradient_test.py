"""Gradients of one row, of both losses, against 50 digits."""

import math
from fractions import Fraction

import hypothesis
import jax
import jax_privacy
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.gradient_sum import clipped_gradient
from oneshot_dp.linear_dp.statistics.row_gradient import (
  SOFTMAX,
  Loss,
  gamma,
  row_error,
)
from tests.linear_dp.blocks import (
  integers_of,
  make_block,
  random_block,
  rows_of,
)
from tests.linear_dp.statistics.real_gradients import distance, real_gradient

K, D = 5, 7
PAPER = Loss(name="sigmoid", bias=-10.0)


@pytest.fixture(autouse=True)
def _small_chunks(small_chunks):
  pass


def kernel_of(p: int, num_classes: int, length: float, seed=0) -> np.ndarray:
  kernel = np.random.default_rng(seed).standard_normal((p, num_classes))
  return kernel * (length / np.linalg.norm(kernel, axis=0).max())


# Against other implementations.

WAYS = {
  "mapped": (
    ReleasedMap.of(np.random.default_rng(8).normal(size=(D, 4))),
    None,
  ),
  "directions": (None, None),
  "R=4": (None, 4.0),
  "R=0.3": (None, 0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("way", "loss", "clip_norm"),
  [
    ("mapped", SOFTMAX, 0.1),
    ("mapped", SOFTMAX, 100.0),
    ("mapped", PAPER, 0.1),
    ("directions", Loss(name="sigmoid", bias=0.5), 100.0),
    ("R=4", PAPER, 100.0),
    ("R=0.3", Loss(name="sigmoid", bias=0.5), 0.1),
  ],
)
def test_equals_the_clipped_gradient_of_jax_privacy(clip_norm, way, loss):
  """jax-privacy differentiates the loss; nothing here knows its gradient."""
  a_map, max_norm = WAYS[way]
  block = random_block(200, D, K, seed=3)
  z = integers_of(block, max_norm) * 1.0
  if max_norm is not None:
    z *= max_norm / GRID_RADIUS
    lengths = np.linalg.norm(z, axis=1)
    assert lengths.max() <= max_norm
    shortened = block.embedding_norm > max_norm
    assert 0 < shortened.sum() < 200
    np.testing.assert_allclose(lengths[shortened], max_norm, rtol=1e-5)
    # Others stay where they are, to half a step.
    kept = z[~shortened] - block.embedding[~shortened]
    assert np.abs(kept).max() <= max_norm / GRID_RADIUS * 0.6
  else:
    if a_map is not None and a_map.matrix is not None:
      z = z @ a_map.matrix
    z /= np.linalg.norm(z, axis=1, keepdims=True)
  kernel = kernel_of(z.shape[1], K, 3.0)

  def objective(params, z, y):
    target = jax.nn.one_hot(y, K, dtype=z.dtype)
    logits = z @ params + loss.bias
    if loss.name == "softmax":
      return optax.softmax_cross_entropy(logits, target)
    return optax.sigmoid_binary_cross_entropy(logits, target).sum()

  with jax.enable_x64(True):
    clipped = jax_privacy.clipped_grad(
      objective,
      l2_clip_norm=clip_norm,
      batch_argnums=(1, 2),
      keep_batch_dim=False,
      return_grad_norms=True,
    )
    expected, aux = clipped(kernel, z, block.label)
    expected = np.asarray(expected)
  share_clipped = np.mean(np.asarray(aux.grad_norms) > clip_norm)
  assert share_clipped > 0.2 if clip_norm == 0.1 else share_clipped == 0
  rows = rows_of(block, num_classes=K, max_norm=max_norm)
  secret = clipped_gradient(rows, a_map, kernel, clip_norm, loss=loss)
  # Its own errors are like ours.
  assert np.linalg.norm(secret.secret_sum - expected) <= 2 * secret.error
  assert secret.error < 1e-8 * len(block) * clip_norm


# Against 50 digits.

SHAPES = [
  (SOFTMAX, 2, 3, 4.0),
  (PAPER, 2, 7, None),
  (PAPER, 5, 7, 1024.0),
  (Loss(name="sigmoid", bias=1.5), 5, 1, 0.3),
]


@pytest.mark.parametrize(("loss", "num_classes", "p", "max_norm"), SHAPES)
@hypothesis.settings(
  max_examples=10,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  seed=st.integers(0, 2**32),
  length=st.one_of(st.just(0.0), st.floats(-3, 5).map(lambda e: 10.0**e)),
  apart=st.booleans(),
  clip_norm=st.floats(-3, 4).map(lambda e: 10.0**e),
)
def test_the_error_of_a_row_is_less_than_stated(
  loss, num_classes, p, max_norm, seed, length, apart, clip_norm
):
  """Also where logits cancel, and where rows are shortened to R."""
  kernel = kernel_of(p, num_classes, length, seed)
  block = random_block(2, p, num_classes, seed=seed, spread=3)
  u = integers_of(block, max_norm)
  if apart and u[0].any():  # the first row where a sigmoid is steepest
    z = u[0] / np.linalg.norm(u[0])
    norm = 1 if max_norm is None else np.linalg.norm(u[0]) * max_norm / 2**20
    kernel[:, 0] += z * (-loss.bias / norm - z @ kernel[:, 0])
  error = row_error(kernel, clip_norm, loss, max_norm or 1.0)
  for i in range(2):
    rows = rows_of(block[i : i + 1], num_classes=num_classes, max_norm=max_norm)
    secret = clipped_gradient(rows, None, kernel, clip_norm, loss=loss)
    real = real_gradient(
      u[i].tolist(), block.label[i], kernel, clip_norm, loss, max_norm
    )
    assert distance(secret.secret_sum, real) <= error
    assert np.linalg.norm(secret.secret_sum) <= clip_norm + error


@pytest.mark.parametrize(
  ("loss", "max_norm"), [(SOFTMAX, None), (PAPER, 1.0), (SOFTMAX, 1024.0)]
)
def test_the_error_that_is_stated_is_needed(loss, max_norm):
  """Long weights that nearly cancel: the worst of 15 rows is near the bound."""
  longest = max_norm or 1.0
  worst = 0.0
  for seed in range(15):
    rng = np.random.default_rng(seed)
    block = make_block(
      rng.standard_normal((1, D)).astype(np.float32) * 9999, [1]
    )
    u = integers_of(block, max_norm)[0]
    kernel = kernel_of(D, K, 1e4 / longest, seed)
    # Every logit is −b but for the rounding.
    z = u * (longest / GRID_RADIUS)
    if max_norm is None:
      z = u / np.linalg.norm(u)
    kernel -= np.outer(z, (z @ kernel + loss.bias) / (z @ z))
    rows = rows_of(block, num_classes=K, max_norm=max_norm)
    secret = clipped_gradient(rows, None, kernel, 1e9, loss=loss)
    real = real_gradient(u.tolist(), 1, kernel, 1e9, loss, max_norm)
    bound = row_error(kernel, 1e9, loss, longest)
    worst = max(worst, distance(secret.secret_sum, real) / bound)
  assert 1e-3 < worst <= 1


def test_rows_that_keep_their_norms_are_not_mapped():
  rows = rows_of(random_block(3, D, K), max_norm=1.0)
  a_map, _ = WAYS["mapped"]
  with pytest.raises(InputError, match="keep their norms are not mapped"):
    clipped_gradient(rows, a_map, kernel_of(4, K, 1.0), 1.0)


# The bounds, as the text says.


@pytest.mark.parametrize("loss", [SOFTMAX, Loss(name="sigmoid"), PAPER])
@pytest.mark.parametrize(
  ("p", "num_classes", "w", "clip_norm", "max_norm"),
  [
    (1, 2, 0.0, 0.1, 1.0),
    (4, 5, 1.0, 1e9, 0.3),
    (4, 5, 1.0, 0.1, 1024.0),
    (1280, 1000, 1e4, 1e9, 1.0),
    (1280, 1000, 1e4, 0.1, 0.3),
  ],
)
def test_error_of_a_row_is_that_of_the_text(
  p, num_classes, w, clip_norm, max_norm, loss
):
  """In rationals; W is p × K of its longest column w."""
  kernel = np.zeros((p, num_classes))
  kernel[0, num_classes // 2] = w
  u, r = Fraction(1, 2**53), Fraction(max_norm)
  largest = Fraction(w) * r
  of_z = (p + 8) * u
  of_logit = (p * u / (1 - p * u) + of_z) * largest
  if loss.name == "softmax":
    longest = Fraction(math.sqrt(2))
    of_residual, slope = 2 * of_logit, Fraction(1)
    of_function = (num_classes + 16) * u
  else:
    longest = Fraction(math.sqrt(num_classes))
    of_residual = of_logit + (largest + Fraction(abs(loss.bias))) * u
    slope = longest / 4
    of_function = longest * 16 * u
  twice = 2 * Fraction(clip_norm)
  least = min(twice, slope * r) * of_residual
  least += min(twice, longest * r) * (of_z + (num_classes + p + 16) * u)
  least = 2 * (least + r * of_function)
  assert row_error(kernel, clip_norm, loss, max_norm) == pytest.approx(
    float(least), rel=1e-12, abs=0
  )


def test_directions_and_softmax_are_the_default():
  kernel = kernel_of(D, K, 30.0)
  assert row_error(kernel, 1.0) == row_error(kernel, 1.0, SOFTMAX, 1.0)
  plain = row_error(kernel, 1.0, Loss(name="sigmoid"))
  assert row_error(kernel, 1.0, PAPER) > plain


@pytest.mark.parametrize("terms", [1, 1280, 2**30])
def test_gamma(terms):
  exact = Fraction(terms, 2**53) / (1 - Fraction(terms, 2**53))
  assert gamma(terms) == pytest.approx(float(exact), rel=1e-15, abs=0)


def residuals(loss: Loss, logits: np.ndarray, label: np.ndarray) -> np.ndarray:
  with jax.enable_x64(True):
    found = loss.residual(jax.numpy.asarray(logits), jax.numpy.asarray(label))
  assert found.dtype == np.float64
  return np.asarray(found)


@pytest.mark.parametrize("num_classes", [2, 3, 10, 1000])
def test_the_largest_residual_is_as_long_as_it_can_be(num_classes):
  """A confident mistake of a softmax; of sigmoids, a mistake in every class."""
  softmax = SOFTMAX.residual_norm(num_classes)
  sigmoid = PAPER.residual_norm(num_classes)
  logits = np.full((3, num_classes), 1e3)
  logits[1] *= -1
  logits[2, 1:] = 0
  label = np.array([0, 0, 1], np.int32)
  longest = [
    np.linalg.norm(residuals(loss, logits, label), axis=1).max()
    for loss in (SOFTMAX, PAPER)
  ]
  assert longest[0] == pytest.approx(math.sqrt(2), rel=1e-15)
  assert Fraction(softmax) ** 2 > 2
  assert Fraction(sigmoid) ** 2 > num_classes
  assert max(longest[0] / softmax, longest[1] / sigmoid) <= 1
  assert softmax <= math.sqrt(2) * (1 + 2**-48)
  assert sigmoid <= math.sqrt(num_classes) * (1 + 2**-48)
  # All wrong but the right one, which is right.
  assert longest[1] >= math.sqrt(num_classes - 1) * (1 - 1e-15)


@pytest.mark.parametrize("loss", [SOFTMAX, PAPER])
def test_no_residual_is_longer(loss):
  label = np.arange(500, dtype=np.int32) % K
  logits = np.random.default_rng(0).standard_normal((500, K)) * 30
  lengths = np.linalg.norm(residuals(loss, logits, label), axis=1)
  assert lengths.max() <= loss.residual_norm(K)
  assert lengths.max() > 0.8 * math.sqrt(2)
