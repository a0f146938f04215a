import dataclasses

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp import evaluate
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.linear_dp.api import dataset_from_arrays
from oneshot_dp.linear_dp.evaluate import evaluate_heads, private_accuracies
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import rows_of


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
    yield {name: c[start : start + size] for name, c in rows.items()}


def expected_hits(head, rows):
  """Top-1 and top-5 by NumPy's stable sort: the smaller index wins a tie."""
  x = rows["embedding"].astype(np.float64)
  if head.unit_norm:
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
  logits = x @ head.kernel + head.bias
  ranked = np.argsort(-logits, axis=1, kind="stable")
  hit = ranked == rows["label"][:, None]
  return hit[:, 0].mean(), hit[:, :5].any(axis=1).mean()


def test_unit_norm_logits_do_not_depend_on_the_length_of_a_row():
  """Rows of every length, and one of zeros, which has no direction."""
  head = dataclasses.replace(make_head(3, 4), unit_norm=True)
  rows = np.random.default_rng(1).standard_normal((5, 3))
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  expected = np.einsum("nd,dk->nk", rows, head.kernel) + head.bias
  for length in (1e-36, 1e-30, 1e-20, 1.0, 1e20, 5e37):
    found = head.logits(jnp.asarray(rows * length, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  found = head.logits(jnp.zeros((2, 3)))
  np.testing.assert_array_equal(found, [head.bias] * 2)


@pytest.mark.parametrize("entry", [np.inf, np.nan])
def test_unit_norm_logits_of_a_row_that_is_not_finite_are_nan(entry):
  """As for rows as they are: it is no hit of any class."""
  head = dataclasses.replace(make_head(3, 4), unit_norm=True)
  rows = jnp.asarray([[entry, 1.0, 2.0], [1.0, 2.0, 3.0]])
  found = np.asarray(head.logits(rows))
  assert np.isnan(found[0]).all()
  assert np.isfinite(found[1]).all()


def test_ranking_keeps_logits_that_a_common_bias_would_swallow():
  kernel = 1e-9 * np.eye(3, dtype=np.float32)
  head = LinearHead(kernel=kernel, bias=np.full(3, -10, np.float32))
  rows = jnp.eye(3)
  assert np.ptp(np.asarray(head.logits(rows))) == 0
  found = np.asarray(head.ranking().logits(rows))
  assert found.argmax(axis=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
  ("num_classes", "n"), [(1, 3), (2, 1023), (5, 1), (5, 1024), (40, 2500)]
)
def test_evaluate_heads_equals_a_stable_sort_ties_included(num_classes, n):
  rows = block(n, 4, num_classes, seed=n)
  head = make_head(4, num_classes)
  (found,) = evaluate_heads([head], in_blocks(rows, 256))
  assert (found.top1, found.top5) == pytest.approx(expected_hits(head, rows))
  assert found.num_examples == n
  logits = rows["embedding"].astype(np.float32) @ head.kernel + head.bias
  right = logits.argmax(axis=1) == rows["label"]
  label = rows["label"]
  recall = [
    right[label == c].mean() if (label == c).any() else None
    for c in range(num_classes)
  ]
  assert found.recall == pytest.approx(tuple(recall), abs=1e-12)
  of_some = [share for share in recall if share is not None]
  assert found.balanced == pytest.approx(np.mean(of_some), abs=1e-12)
  assert found.class_rows == tuple(np.bincount(label, minlength=num_classes))


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("unit_norm", [False, True])
def test_evaluate_heads_equals_numpy_for_every_dtype(dtype, unit_norm):
  rng = np.random.default_rng(0)
  of = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
  x = rng.standard_normal((700, 24)) * np.exp(rng.standard_normal((700, 1)))
  rows = {"embedding": x.astype(of), "label": rng.integers(0, 9, 700)}
  head = LinearHead(
    kernel=rng.standard_normal((24, 9)).astype(np.float32),
    bias=rng.standard_normal(9).astype(np.float32),
    unit_norm=unit_norm,
  )
  (found,) = evaluate_heads([head], [rows])
  assert (found.top1, found.top5) == pytest.approx(expected_hits(head, rows))


def test_evaluate_heads_together_equals_each_head_alone(monkeypatch):
  monkeypatch.setattr(evaluate, "_BATCH_ROWS", 64)
  rows = block(300, 5, 7, dtype=np.float32)
  heads = [
    dataclasses.replace(make_head(5, 7, seed), unit_norm=kind)
    for seed, kind in enumerate([False, True, False, True, True])
  ]
  rows["embedding"] += 0.25  # no row of zeros
  together = evaluate_heads(heads, in_blocks(rows, 50))
  seen = []
  alone = [evaluate_heads([h], [rows], seen.append)[0] for h in heads]
  assert together == alone
  assert seen == [300] * 5
  assert len({accuracy.top1 for accuracy in alone}) > 3


def test_evaluate_heads_never_counts_nan_as_correct():
  rows = block(50, 4, 9, dtype=np.float32)
  head = make_head(4, 9)
  broken = dataclasses.replace(head, kernel=np.full((4, 9), np.nan, np.float32))
  kept = {name: column[10:] for name, column in rows.items()}
  expected = np.array(expected_hits(head, kept)) * 40 / 50
  rows["embedding"][:10] = np.nan
  of_nan, of_head = evaluate_heads([broken, head], [rows])
  assert (of_nan.top1, of_nan.top5) == (0, 0)
  assert (of_head.top1, of_head.top5) == pytest.approx(tuple(expected))


@pytest.mark.parametrize(
  ("shapes", "rows", "message"),
  [
    ([(4, 7)], None, "no rows"),
    ([(4, 7)], block(0, 4, 7), "no rows"),
    ([(4, 7)], block(3, 5, 7), r"feature_dim=5, the head 4"),
    ([(4, 7)], block(90, 4, 8), r"a label is outside 0 to 6"),
    ([(4, 7), (4, 6)], block(9, 4, 6), r"\[\(4, 6\), \(4, 7\)\]: score those"),
  ],
)
def test_evaluate_heads_refuses_rows_that_do_not_fit(shapes, rows, message):
  heads = [make_head(*shape) for shape in shapes]
  with pytest.raises(InputError, match=message):
    evaluate_heads(heads, [] if rows is None else [rows])
  assert evaluate_heads([], []) == []


# With noise.


def test_private_accuracies_without_noise_are_the_exact_ones():
  rows = block(900, 6, 7, dtype=np.float32)
  rows["embedding"] += 0.3
  heads = [
    dataclasses.replace(make_head(6, 7, seed), bias=np.full(7, -10, np.float32))
    for seed in range(3)
  ]
  data = dataset_from_arrays(rows["embedding"], rows["label"], num_classes=7)
  sums = PrivateSums(None, 0.0)
  found = private_accuracies(
    sums, rows_of(data, per_row=True), heads, mu_squared=np.inf
  )
  exact = evaluate_heads(heads, [rows])
  for of_door, of_rows in zip(found, exact, strict=True):
    # Of integers: a tie may go to another class.
    assert of_door.top1 == pytest.approx(of_rows.top1, abs=0.01)
    assert (of_door.top5, of_door.recall, of_door.balanced) == (None,) * 3


def clear_rows(n):
  """Rows that a head of an eye has right, every second one."""
  label = np.arange(n) % 4
  x = np.eye(4, dtype=np.float32)[label] + 0.01
  wrong = np.arange(n) // 4 % 2 == 1
  return x, np.where(wrong, (label + 1) % 4, label)


EYE = LinearHead(kernel=np.eye(4, dtype=np.float32), bias=np.zeros(4, "f"))


def test_private_accuracies_have_the_noise_of_the_budget_and_cannot_exceed_it():
  x, label = clear_rows(4000)
  rows = rows_of(dataset_from_arrays(x, label, num_classes=4), per_row=True)
  buys = mu_squared_from_epsilon(1.0, 1e-5)
  source = NoiseSource(0)
  found = []
  for _ in range(200):
    sums = PrivateSums(source, buys)
    heads = private_accuracies(sums, rows, [EYE] * 4, mu_squared=buys)
    found += [accuracy.top1 - 0.5 for accuracy in heads]
    (release,) = sums.releases
    assert release.noise_multiplier**-2 <= buys
    with pytest.raises(RunError, match="would exceed the charged budget"):
      private_accuracies(sums, rows, [EYE], mu_squared=buys)
  sd = buys**-0.5 * 4**0.5 / 4000
  assert np.std(found) == pytest.approx(sd, rel=0.1)
  assert abs(np.mean(found)) < 5 * sd / 800**0.5


ONE_LARGE = np.maximum(np.arange(4000) // 2 - 999, 0)


@pytest.mark.parametrize(
  ("classes", "label", "unit", "units", "top1"),
  [
    # Rows of one large unit are all right, the other units' wrong.
    (np.arange(4000) % 4, None, ONE_LARGE, 1001, 1 / 1001),
    # One of three is right; the mean of a unit's rows would be wrong.
    (np.tile([0, 1, 1], 1000), 0, np.arange(3000) // 3, 1000, 1 / 3),
  ],
)
def test_private_accuracies_count_a_unit_for_one_and_its_rows_one_by_one(
  classes, label, unit, units, top1
):
  x = np.eye(4, dtype=np.float32)[classes]
  labels = (classes + (unit > 0)) % 4 if label is None else 0 * unit
  data = dataset_from_arrays(x, labels, num_classes=4, unit_ids=unit)
  sums = PrivateSums(NoiseSource(0), 1e9)
  (found,) = private_accuracies(
    sums, rows_of(data, per_row=True), [EYE], mu_squared=1e9
  )
  assert found.num_examples == units
  assert found.top1 == pytest.approx(top1, rel=0.01)
  names = [release.name for release in sums.releases]
  assert names == ["units", "right answers"]
  assert sum(r.noise_multiplier**-2 for r in sums.releases) <= 1e9


def test_private_accuracies_count_rows_where_their_number_is_private():
  x, label = clear_rows(4000)
  data = dataset_from_arrays(x, label, num_classes=4)
  data = dataclasses.replace(data, n=5000)  # the mean of a part
  sums = PrivateSums(NoiseSource(0), 1e6)
  rows = rows_of(data, per_row=True)
  (found,) = private_accuracies(
    sums, rows, [EYE], mu_squared=5e5, count_units=True
  )
  assert (found.num_examples, found.top1) == (
    4000,
    pytest.approx(0.5, rel=0.01),
  )
  (found,) = private_accuracies(sums, rows, [EYE], mu_squared=1.0)
  assert found.num_examples == 5000


def test_confusion_counts_the_class_that_each_row_is_answered_with():
  head = make_head(5, 4)
  rows = block(200, 5, 4)

  (accuracy,) = evaluate_heads([head], in_blocks(rows, 60))

  logits = rows["embedding"].astype(np.float64) @ head.kernel + head.bias
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
