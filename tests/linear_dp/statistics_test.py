"""Every statistic against NumPy: integers in int64, softmax in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp import statistics
from oneshot_dp.linear_dp.dataset import UNIT_WEIGHT
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import rows_of
from tests.linear_dp.statistic_catalogue import (
  BIASES,
  HEADS,
  PRIOR,
  STATISTICS,
  D,
  K,
  columns_of,
  data_of,
  hostile_rows,
  kernel,
)


def left_of(left, z, label, w, *public):
  with jax.enable_x64(True):
    columns = z.astype(np.int16), label.astype(np.int32), w.astype(np.int32)
    given = [None if p is None else jnp.asarray(p) for p in (*columns, *public)]
    return np.asarray(jax.jit(left)(*given))


def lefts_of(name, z, label, w):
  """left of every row, in int64."""
  match name:
    case "class sums" | "class sums of weights that add up" | "class counts":
      return np.eye(K, dtype=np.int64)[label] * w[:, None]
    case "mean" | "units":
      return w[:, None]
    case "moment" | "moment of a map":
      weighed = z * w[:, None]
      return np.sign(weighed) * (np.abs(weighed) // ROW_NORM)
    case "gain":
      kernels, biases = statistics.integer_heads(HEADS[:2], BIASES[:2])
      first = (z @ kernels[0] + biases[0]).argmax(axis=1) == label
      second = (z @ kernels[1] + biases[1]).argmax(axis=1) == label
      gain = second.astype(np.int64) - first.astype(np.int64)
      return (gain * w)[:, None]
  raise ValueError(name)


OF_INTEGERS = [
  name for name in STATISTICS if name[:5] not in ("resid", "right")
]


@pytest.mark.parametrize("name", OF_INTEGERS)
@pytest.mark.parametrize("units", [False, True])
def test_a_sum_is_that_of_numpy(name, units):
  rng = np.random.default_rng(6)
  x, label = hostile_rows(rng, n=80)
  unit = None
  if units:
    unit = rng.integers(0, 11, 80)
  data = data_of(x, label, unit)
  statistic = STATISTICS[name]
  z, labels, w = columns_of(statistic.rows(data))
  left = lefts_of(name, z, labels, w)
  if statistic.left.one_column:
    z = np.full((len(z), 1), ROW_NORM)
  np.testing.assert_array_equal(statistic.exact(data), left.T @ z)
  if statistic.left is statistics.class_sums:  # what its scatter is to give
    of_classes = left_of(statistic.left, z, labels, w, np.arange(K))
    np.testing.assert_array_equal(of_classes, left)
  if statistic.power == 1:
    assert (np.square(left).sum(axis=1) <= w**2).all()


def softmax_residual(z, label, w, integers, step, clip, prior=0.0):
  """Of real numbers."""
  p = scipy.special.softmax(z @ integers * step + prior, axis=1)
  r = p - np.eye(p.shape[1])[label]
  norm = np.linalg.norm(r, axis=1, keepdims=True)
  factor = np.minimum(1 / clip, 1 / np.maximum(norm, 1e-12))
  return r * factor * w[:, None]


@pytest.mark.parametrize("clip", [0.03, 0.5, 1.5])
@pytest.mark.parametrize("scale", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("prior", [None, PRIOR])
def test_a_residual_is_that_of_float64(clip, scale, prior):
  x, label = hostile_rows(np.random.default_rng(7), n=200)
  z, label, w = columns_of(rows_of(data_of(x, label)))
  integers, step = kernel(5, scale)
  public = integers, step, clip, prior
  found = left_of(statistics.residual, z, label, w, *public)
  if prior is None:
    prior = 0.0
  expected = softmax_residual(z, label, w, integers, step, clip, prior)
  # Logits are in steps of 2⁻¹², and r is shortened from its rounded norm.
  np.testing.assert_allclose(
    found, expected, atol=UNIT_WEIGHT / min(clip, 1) / 4000
  )
  norm = np.linalg.norm(np.trunc(found), axis=1)
  assert (norm <= w).all()
  clipped = np.linalg.norm(expected, axis=1) > 0.999 * w
  assert (norm[clipped] >= 0.9989 * w[clipped] - 2).all()


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 2, 1000])
def test_a_residual_of_few_classes_and_of_many(classes):
  rng = np.random.default_rng(8)
  x = rng.standard_normal((64, D)).astype(np.float32)
  label = rng.integers(0, classes, 64)
  z, label, w = columns_of(rows_of(data_of(x, label, num_classes=classes)))
  integers, step = statistics.integer_kernel(rng.standard_normal((D, classes)))
  found = left_of(statistics.residual, z, label, w, integers, step, 0.5)
  expected = softmax_residual(z, label, w, integers, step, 0.5)
  np.testing.assert_allclose(found, expected, atol=UNIT_WEIGHT / 1000)
  assert np.abs(found.sum(axis=1)).max() < UNIT_WEIGHT / 1000
  if classes == 1:
    assert not found.any()


@pytest.mark.parametrize("longest", [1e-30, 1e-3, 1.0, 777.0, 1e30])
def test_weights_are_rounded_to_integers_that_float32_multiplies(longest):
  rng = np.random.default_rng(9)
  weights = rng.standard_normal((40, 7))
  weights *= longest / np.linalg.norm(weights, axis=0).max()
  integers, step = statistics.integer_kernel(weights)
  assert (integers % 1 == 0).all()
  assert np.linalg.norm(integers, axis=0).max() * ROW_NORM <= 2**24
  assert np.linalg.norm(integers, axis=0).max() > statistics.KERNEL_NORM / 2 - 5
  np.testing.assert_allclose(
    integers * step * ROW_NORM,
    weights,
    atol=longest / statistics.KERNEL_NORM * 1.1,
  )
  zeros, _ = statistics.integer_kernel(np.zeros((3, 2)))
  assert not zeros.any()
  for value in (np.nan, np.inf):
    with pytest.raises(InputError, match="weights whose longest column has"):
      statistics.integer_kernel(np.full((3, 2), value))


def test_right_answers_are_counted():
  x, label = hostile_rows(np.random.default_rng(10), n=300)
  data = data_of(x, label)
  statistic = STATISTICS["right"]
  found = (
    statistic.exact(data).ravel() / (UNIT_WEIGHT * ROW_NORM) * math.sqrt(3)
  )
  z, labels, w = columns_of(rows_of(data))
  z = z[w > 0]
  labels = labels[w > 0]
  for count, head, bias in zip(found, HEADS, BIASES, strict=True):
    unit_norm = z / np.linalg.norm(z, axis=1, keepdims=True)
    best = (unit_norm @ head + bias).argmax(axis=1)
    assert count == pytest.approx((best == labels).sum(), abs=1e-3)
  assert 0 < found.min() < found.max() < len(z)


def test_of_equal_logits_the_first_class_is_right():
  """As elsewhere: a head of zeros is right where the first class is."""
  x = np.ones((5, D), np.float32)
  heads = statistics.integer_heads(
    [np.zeros((D, K)), np.ones((D, K))], [np.zeros(K), np.full(K, -10.0)]
  )
  columns = columns_of(rows_of(data_of(x, [0, 0, 1, 3, 2])))
  found = left_of(statistics.correct_predictions, *columns, *heads)[:5]
  assert (found > 0).tolist() == [[True] * 2] * 2 + [[False] * 2] * 3
  assert (np.square(found).sum(axis=1) <= float(UNIT_WEIGHT) ** 2).all()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_heads_of_integers_rank_as_they_do(scale):
  rng = np.random.default_rng(11)
  head = scale * rng.standard_normal((D, K))
  bias = rng.standard_normal(K)
  (integers,), (biases,) = statistics.integer_heads([head], [bias * scale])
  z = rng.standard_normal((500, D))
  z *= ROW_NORM / np.linalg.norm(z, axis=1, keepdims=True)
  theirs = (z / ROW_NORM) @ head + bias * scale
  sure = np.diff(np.sort(theirs, axis=1)[:, -2:])[:, 0] > 1e-2 * scale
  ours = np.rint(z) @ integers + biases
  assert sure.sum() > 400
  assert (ours.argmax(axis=1) == theirs.argmax(axis=1))[sure].all()
  assert np.abs(np.rint(z) @ integers).max() + np.abs(biases).max() < 2**53
