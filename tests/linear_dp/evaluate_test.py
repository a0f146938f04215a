"""Accuracies of heads, against a stable sort in NumPy."""

import dataclasses

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp import evaluate
from oneshot_dp.linear_dp.evaluate import evaluate_heads
from oneshot_dp.linear_dp.heads.linear_head import LinearHead


def make_head(d, num_classes, seed=0):
  """Small integers, so that logits are exact and there are ties."""
  rng = np.random.default_rng(seed)
  return LinearHead(
    kernel=rng.integers(-2, 3, (d, num_classes)).astype(np.float32),
    bias=rng.integers(-1, 2, num_classes).astype(np.float32) - 10,
  )


def block(n, d, num_classes, seed=0, dtype=np.float16):
  rng = np.random.default_rng(seed)
  rows = rng.integers(-2, 3, (n, d)).astype(dtype)
  return {"embedding": rows, "label": rng.integers(0, num_classes, n)}


def in_blocks(rows, size):
  for start in range(0, len(rows["label"]), size):
    part = slice(start, start + size)
    yield {"embedding": rows["embedding"][part], "label": rows["label"][part]}


def logits_of(head, rows):
  """In float64; a row of a head of unit norm is brought to norm 1 first."""
  x = rows["embedding"].astype(np.float64)
  if head.unit_norm:
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
  return x @ head.kernel + head.bias


def expected_hits(head, rows):
  """Top-1 and top-5 by NumPy's stable sort: the smaller index wins a tie."""
  ranked = np.argsort(-logits_of(head, rows), axis=1, kind="stable")
  hit = ranked == rows["label"][:, None]
  return hit[:, 0].mean(), hit[:, :5].any(axis=1).mean()


# Logits.


@pytest.fixture
def unit_norm_head():
  return dataclasses.replace(make_head(3, 4), unit_norm=True)


@pytest.mark.parametrize("length", [1e-36, 1e-30, 1e-20, 1.0, 1e20, 5e37])
def test_unit_norm_logits_do_not_depend_on_the_length_of_a_row(
  unit_norm_head, length
):
  rows = np.random.default_rng(1).standard_normal((5, 3))
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  kernel = unit_norm_head.kernel
  expected = np.einsum("nd,dk->nk", rows, kernel) + unit_norm_head.bias

  logits = unit_norm_head.logits(jnp.asarray(rows * length, jnp.float32))

  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_unit_norm_logits_of_a_row_of_zeros_are_the_bias(unit_norm_head):
  """It has no direction."""
  logits = unit_norm_head.logits(jnp.zeros((2, 3)))

  np.testing.assert_array_equal(logits, [unit_norm_head.bias] * 2)


@pytest.mark.parametrize("entry", [np.inf, np.nan])
def test_unit_norm_logits_of_a_row_that_is_not_finite_are_nan(
  unit_norm_head, entry
):
  """As for rows as they are: it is no hit of any class."""
  rows = jnp.asarray([[entry, 1.0, 2.0], [1.0, 2.0, 3.0]])

  logits = np.asarray(unit_norm_head.logits(rows))

  assert np.isnan(logits[0]).all()
  assert np.isfinite(logits[1]).all()


def test_ranking_keeps_logits_that_a_common_bias_would_swallow():
  kernel = 1e-9 * np.eye(3, dtype=np.float32)
  head = LinearHead(kernel=kernel, bias=np.full(3, -10, np.float32))
  rows = jnp.eye(3)
  # Rounded to float32, 1e-9 and -10 add up to -10.
  assert np.ptp(np.asarray(head.logits(rows))) == 0

  ranking = np.asarray(head.ranking().logits(rows))

  assert ranking.argmax(axis=1).tolist() == [0, 1, 2]


# Without noise.


@pytest.fixture(params=[(1, 3), (2, 1023), (5, 1), (5, 1024), (40, 2500)])
def evaluated(request):
  """A head, rows in which classes tie, and the accuracy of the head on them."""
  num_classes, n = request.param
  rows = block(n, 4, num_classes, seed=n)
  head = make_head(4, num_classes)
  (accuracy,) = evaluate_heads([head], in_blocks(rows, 256))
  return head, rows, accuracy


def test_evaluate_heads_equals_a_stable_sort_ties_included(evaluated):
  head, rows, accuracy = evaluated

  expected = expected_hits(head, rows)

  assert (accuracy.top1, accuracy.top5) == pytest.approx(expected)
  assert accuracy.num_examples == len(rows["label"])


def test_evaluate_heads_recall_is_the_share_of_each_class(evaluated):
  head, rows, accuracy = evaluated
  is_right = logits_of(head, rows).argmax(axis=1) == rows["label"]

  for c, recall in enumerate(accuracy.recall):
    is_of_class = rows["label"] == c
    if is_of_class.any():
      assert recall == pytest.approx(is_right[is_of_class].mean(), abs=1e-12)
    else:
      assert recall is None


def test_evaluate_heads_balanced_is_the_mean_recall_of_classes_with_rows(
  evaluated,
):
  _, rows, accuracy = evaluated
  num_rows = np.bincount(rows["label"], minlength=len(accuracy.recall))

  recall_of_some = np.array(accuracy.recall, float)[num_rows > 0]

  assert accuracy.balanced == pytest.approx(recall_of_some.mean(), abs=1e-12)
  assert accuracy.class_rows == tuple(num_rows)


@pytest.mark.parametrize("dtype", ["float16", "float32", ml_dtypes.bfloat16])
@pytest.mark.parametrize("unit_norm", [False, True])
def test_evaluate_heads_equals_numpy_for_every_dtype(dtype, unit_norm):
  rng = np.random.default_rng(0)
  x = rng.standard_normal((700, 24)) * np.exp(rng.standard_normal((700, 1)))
  rows = {"embedding": x.astype(dtype), "label": rng.integers(0, 9, 700)}
  head = LinearHead(
    kernel=rng.standard_normal((24, 9)).astype(np.float32),
    bias=rng.standard_normal(9).astype(np.float32),
    unit_norm=unit_norm,
  )

  (accuracy,) = evaluate_heads([head], [rows])

  expected = expected_hits(head, rows)
  assert (accuracy.top1, accuracy.top5) == pytest.approx(expected)


@pytest.fixture
def heads_of_both_kinds():
  """Five heads, of which some bring rows to norm 1."""
  heads = []
  for seed, unit_norm in enumerate([False, True, False, True, True]):
    head = make_head(5, 7, seed)
    heads.append(dataclasses.replace(head, unit_norm=unit_norm))
  return heads


def test_evaluate_heads_together_equals_each_head_alone(
  monkeypatch, heads_of_both_kinds
):
  monkeypatch.setattr(evaluate, "_BATCH_ROWS", 64)
  rows = block(300, 5, 7, dtype=np.float32)
  rows["embedding"] += 0.25  # no row of zeros

  together = evaluate_heads(heads_of_both_kinds, in_blocks(rows, 50))

  different = set()
  for head, accuracy in zip(heads_of_both_kinds, together, strict=True):
    assert evaluate_heads([head], [rows]) == [accuracy]
    different.add(accuracy.top1)
  assert len(different) > 3  # or any head could stand for any other


def test_evaluate_heads_tells_of_its_progress(heads_of_both_kinds):
  rows = block(300, 5, 7, dtype=np.float32)

  for head in heads_of_both_kinds[:2]:
    progress = []
    evaluate_heads([head], [rows], progress.append)
    assert progress == [300]


def test_evaluate_heads_never_counts_nan_as_correct():
  rows = block(50, 4, 9, dtype=np.float32)
  head = make_head(4, 9)
  broken = dataclasses.replace(head, kernel=np.full((4, 9), np.nan, np.float32))
  others = {"embedding": rows["embedding"][10:], "label": rows["label"][10:]}
  expected = np.array(expected_hits(head, others)) * 40 / 50
  rows["embedding"][:10] = np.nan

  of_nan, of_head = evaluate_heads([broken, head], [rows])

  assert (of_nan.top1, of_nan.top5) == (0, 0)
  assert (of_head.top1, of_head.top5) == pytest.approx(tuple(expected))


@pytest.mark.parametrize(
  ("shapes", "blocks", "message"),
  [
    ([(4, 7)], [], "no rows"),
    ([(4, 7)], [block(0, 4, 7)], "no rows"),
    ([(4, 7)], [block(3, 5, 7)], r"feature_dim=5, the head 4"),
    ([(4, 7)], [block(90, 4, 8)], r"a label is outside 0 to 6"),
    (
      [(4, 7), (4, 6)],
      [block(9, 4, 6)],
      r"\[\(4, 6\), \(4, 7\)\]: score those",
    ),
  ],
)
def test_evaluate_heads_refuses_rows_that_do_not_fit(shapes, blocks, message):
  heads = [make_head(*shape) for shape in shapes]

  with pytest.raises(InputError, match=message):
    evaluate_heads(heads, blocks)


def test_evaluate_heads_of_no_heads_needs_no_rows():
  assert evaluate_heads([], []) == []


# Confusion.


def test_confusion_counts_the_class_that_each_row_is_answered_with():
  head = make_head(5, 4)
  rows = block(200, 5, 4)

  (accuracy,) = evaluate_heads([head], in_blocks(rows, 60))

  logits = logits_of(head, rows)
  expected = np.zeros((4, 4), int)
  np.add.at(expected, (rows["label"], logits.argmax(axis=1)), 1)
  np.testing.assert_array_equal(accuracy.confusion, expected)
  assert np.trace(expected) / 200 == accuracy.top1


def test_confusion_leaves_out_rows_without_an_answer():
  head = make_head(5, 4)
  rows = block(10, 5, 4)
  rows["embedding"][3] = np.nan

  (accuracy,) = evaluate_heads([head], [rows])

  assert accuracy.confusion is not None
  assert np.array(accuracy.confusion).sum() == 9


def test_confusion_is_not_counted_of_many_classes():
  many = evaluate.MAX_CONFUSION_CLASSES + 1

  (accuracy,) = evaluate_heads([make_head(5, many)], [block(10, 5, many)])

  assert accuracy.confusion is None
