import dataclasses

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp import evaluate
from oneshot_dp.linear_dp.evaluate import LabelLists, count_hits
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.private_head import evaluate_heads
from tests.linear_dp.blocks import (
  in_blocks,
  make_block,
  random_block,
)


def make_head(d, num_classes, seed=0):
  """Small integers, so that logits are exact and there are ties."""
  rng = np.random.default_rng(seed)
  return LinearHead(
    kernel=rng.integers(-2, 3, (d, num_classes)).astype(np.float32),
    bias=rng.integers(-1, 2, num_classes).astype(np.float32) - 10,
  )


def integer_block(n, d, num_classes, seed=0, dtype=np.float16):
  rng = np.random.default_rng(seed)
  rows = rng.integers(-2, 3, (n, d)).astype(dtype)
  return make_block(rows, rng.integers(0, num_classes, n))


def expected_hits(head, block):
  """Top-1 and top-5 by numpy's stable sort: the smaller index wins a tie."""
  logits = block.embedding.astype(np.float64) @ head.kernel + head.bias
  ranked = np.argsort(-logits, axis=1, kind="stable")
  hit = ranked == block.label[:, None]
  return hit[:, 0].mean(), hit[:, :5].any(axis=1).mean()


@pytest.mark.parametrize(
  ("num_classes", "n"), [(2, 1023), (5, 1), (5, 1024), (6, 1025), (40, 2500)]
)
def test_equals_numpy_ties_included(num_classes, n):
  block = integer_block(n, 4, num_classes, seed=n)
  head = make_head(4, num_classes)
  (found,) = evaluate_heads([head], in_blocks(block, [256]))
  top1, top5 = expected_hits(head, block)
  assert found.top1 == pytest.approx(top1, abs=1e-12)
  assert found.top5 == pytest.approx(top5, abs=1e-12)
  assert found.num_examples == n
  logits = block.embedding.astype(np.float32) @ head.kernel + head.bias
  right = logits.argmax(axis=1) == block.label
  recall = [
    right[block.label == c].mean() if (block.label == c).any() else None
    for c in range(num_classes)
  ]
  assert found.recall == pytest.approx(tuple(recall), abs=1e-12)
  of_some = [share for share in recall if share is not None]
  assert found.balanced == pytest.approx(np.mean(of_some), abs=1e-12)
  if num_classes <= 5:
    assert found.top5 == 1
  if n > 1000:
    best = logits.max(axis=1, keepdims=True)
    assert ((logits == best).sum(axis=1) > 1).mean() > 0.05  # real ties


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_real_numbers_of_any_dtype(dtype):
  block = random_block(700, 24, 9, dtype=dtype)
  rng = np.random.default_rng(0)
  head = LinearHead(
    kernel=rng.standard_normal((24, 9)).astype(np.float32),
    bias=np.full(9, -10, np.float32),
  )
  (found,) = evaluate_heads([head], [block])
  assert (found.top1, found.top5) == pytest.approx(expected_hits(head, block))


def exact_hits(head, block):
  """As above, of the real numbers that the stored ones are."""
  rows = block.embedding.astype(np.float64)
  if head.unit_norm:
    rows = rows / np.abs(rows).max(axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return expected_hits(head, block.but(embedding=rows))


@pytest.mark.slow
def test_heads_of_either_kind_keep_their_places(monkeypatch):
  """Alternating kinds, runs of one, and one alone."""
  monkeypatch.setattr(evaluate, "_BATCH_ROWS", 64)
  block = random_block(300, 5, 7)
  rng = np.random.default_rng(1)
  kernels = rng.standard_normal((9, 5, 7)).astype(np.float32)
  biases = rng.standard_normal((9, 7)).astype(np.float32)
  kinds = [False, True, False, True, True, True, False, False, True]
  heads = [
    LinearHead(kernel=kernel, bias=bias, unit_norm=kind)
    for kernel, bias, kind in zip(kernels, biases, kinds, strict=True)
  ]
  found = count_hits(heads, in_blocks(block, [50])).secret_hits.T
  expected = [exact_hits(head, block) for head in heads]
  np.testing.assert_allclose(found / 300, expected, atol=1e-12)
  assert len(set(expected)) == 9
  # And the norm tells: none is as good as the same of the other kind.
  others = [dataclasses.replace(h, unit_norm=not h.unit_norm) for h in heads]
  swapped = count_hits(others, [block]).secret_hits.T
  assert (swapped != found).any(axis=1).sum() > 6


@pytest.mark.parametrize(("d", "k", "many"), [(8, 3, 20), (192, 10, 6)])
def test_what_is_evaluated_beside_a_head_changes_nothing(d, k, many):
  """Not even where classes all but tie, and the last bit of a logit decides."""
  block = random_block(2000, d, k)
  rng = np.random.default_rng(2)
  alike = rng.standard_normal((d, 1))
  kernels = alike + 1e-7 * rng.standard_normal((many, d, k))
  bias = np.zeros(k, np.float32)
  heads = [
    LinearHead(kernel=kernel, bias=bias)
    for kernel in kernels.astype(np.float32)
  ]
  together = count_hits(heads, [block]).secret_hits
  alone = [count_hits([head], [block]).secret_hits for head in heads]
  np.testing.assert_array_equal(together, np.concatenate(alone, axis=1))


@pytest.mark.parametrize("sizes", [[1], [7, 300, 31], [64]])
def test_order_and_blocks_do_not_matter(sizes, monkeypatch):
  monkeypatch.setattr(evaluate, "_BATCH_ROWS", 64)
  block = integer_block(333, 4, 7)
  heads = [make_head(4, 7, seed) for seed in range(2)]
  expected = evaluate_heads(heads, [block])
  shuffled = block[np.random.default_rng(0).permutation(333)]
  seen = []
  found = evaluate_heads(heads, in_blocks(shuffled, sizes), on_rows=seen.append)
  assert found == expected
  assert sum(seen) == 333


def test_not_a_number_is_never_a_hit():
  block = integer_block(50, 4, 9)
  head = make_head(4, 9)
  broken = LinearHead(
    kernel=np.full((4, 9), np.nan, np.float32), bias=head.bias
  )
  rows = block.embedding.copy()
  rows[:10] = np.nan
  spoilt = block.but(embedding=rows)
  expected = np.array(expected_hits(head, block[10:])) * 40 / 50
  with np.errstate(invalid="ignore"):
    of_nan, of_head = evaluate_heads([broken, head], [spoilt])
  assert (of_nan.top1, of_nan.top5) == (0, 0)
  assert (of_head.top1, of_head.top5) == pytest.approx(expected)


def test_no_heads_need_no_rows():
  assert evaluate_heads([], [integer_block(3, 4, 7)]) == []


def with_label(label):
  block = integer_block(10, 4, 7)
  block.label[6] = label
  return block


@pytest.mark.parametrize(
  ("heads", "blocks", "message"),
  [
    ([(4, 7)], [], "no rows"),
    ([(4, 7)], [integer_block(0, 4, 7)], "no rows"),
    ([(4, 7)], [integer_block(3, 5, 7)], r"feature_dim=5, the head\s+4"),
    ([(4, 7)], [with_label(-1)], r"example_id=1018: .*outside \[0, 7\)"),
    ([(4, 7)], [with_label(7)], r"example_id=1018: .*outside \[0, 7\)"),
    (
      [(4, 7), (4, 6)],
      [integer_block(10, 4, 6)],
      r"\[\(4, 6\), \(4, 7\)\]: score those",
    ),
  ],
)
def test_refusals(heads, blocks, message):
  with pytest.raises(InputError, match=message):
    evaluate_heads([make_head(*shape) for shape in heads], blocks)


def test_a_small_learning_rate_does_not_change_who_wins():
  rng = np.random.default_rng(3)
  block = integer_block(400, 6, 7)
  kernel = rng.standard_normal((6, 7)).astype(np.float32)
  bias = np.full(7, -10, np.float32)
  heads = [LinearHead(kernel=kernel * lr, bias=bias) for lr in (1, 2.0**-30)]
  large, small = evaluate_heads(heads, [block])
  assert small == large


# By lists of labels.


def lists_of(
  entries: list[list[int]], first_id: int = 1000, longest: int = 5
) -> LabelLists:
  labels = np.full((len(entries), longest), -1, np.int32)
  for row, entry in zip(labels, entries, strict=True):
    row[: len(entry)] = sorted(entry)
  return LabelLists(labels=labels, first_id=first_id)


def random_lists(n: int, num_classes: int) -> list[list[int]]:
  """Lists of up to four labels, a quarter of them empty."""
  rng = np.random.default_rng(n)
  return [
    rng.choice(num_classes, min(k, num_classes), replace=False).tolist()
    for k in rng.choice([0, 1, 2, 4], n)
  ]


def expected_of_lists(head, block, entries):
  """By numpy's stable sort, row by row: the smaller class wins a tie."""
  logits = block.embedding.astype(np.float64) @ head.kernel + head.bias
  ranked = np.argsort(-logits, axis=1, kind="stable")
  of_row = [
    (row[0] in entry, bool(set(row[:5].tolist()) & set(entry)))
    for row, entry in zip(ranked, entries, strict=True)
    if entry
  ]
  return [sum(hits) for hits in zip(*of_row, strict=True)], len(of_row)


@pytest.mark.parametrize(("num_classes", "n"), [(2, 20), (6, 333), (40, 333)])
def test_lists_equal_numpy_ties_included(num_classes, n, monkeypatch):
  monkeypatch.setattr(evaluate, "_BATCH_ROWS", 64)
  block = integer_block(n, 4, num_classes, seed=n)
  entries = random_lists(n, num_classes)
  # An id is three apart from the next: other lists are of other examples.
  everyone = [[0, 1]] * (3 * n)
  everyone[::3] = entries
  heads = [make_head(4, num_classes, seed) for seed in range(3)]
  order = np.random.default_rng(0).permutation(n)
  found = count_hits(
    heads, in_blocks(block[order], [50]), lists=lists_of(everyone)
  )
  for i, head in enumerate(heads):
    hits, rows = expected_of_lists(head, block, entries)
    assert found.num_examples == rows < n
    assert found.secret_hits[:, i].tolist() == hits


def test_not_a_number_is_no_hit_of_a_list():
  block = integer_block(6, 4, 9)
  rows = block.embedding.copy()
  rows[:3] = np.nan
  with np.errstate(invalid="ignore"):
    found = count_hits(
      [make_head(4, 9)],
      [block.but(embedding=rows)],
      lists=lists_of([list(range(9))] * 18, longest=9),
    )
  assert found.secret_hits.tolist() == [[3], [3]]


@pytest.mark.parametrize("first_id", [1001, 985])
def test_an_example_without_a_list(first_id):
  block = make_block(np.ones((6, 2), np.float32), [0] * 6)  # ids 1000 … 1015
  with pytest.raises(InputError, match=r"example_id=\d+ has no list of labels"):
    lists_of([[0]] * 16, first_id=first_id).of(block.example_id)
  lists_of([[0]] * 16).of(block.example_id)


def test_nothing_but_empty_lists():
  with pytest.raises(InputError, match="no rows with a label in their lists"):
    count_hits(
      [make_head(4, 3)], [integer_block(3, 4, 3)], lists=lists_of([[]] * 9)
    )
