"""Scores by lists of labels."""

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp import evaluate
from oneshot_dp.linear_dp.evaluate import count_hits
from oneshot_dp.linear_dp.label_lists import LabelLists
from tests.linear_dp.blocks import in_blocks, make_block
from tests.linear_dp.evaluate_test import integer_block, make_head


def lists_of(
  entries: list[list[int]], first_id: int = 1000, longest: int = 5
) -> LabelLists:
  labels = np.full((len(entries), longest), -1, np.int32)
  for row, entry in zip(labels, entries, strict=True):
    row[: len(entry)] = sorted(entry)
  return LabelLists(labels=labels, first_id=first_id)


def random_lists(n: int, num_classes: int) -> list[list[int]]:
  """Of up to four labels, a quarter of them empty."""
  rng = np.random.default_rng(n)
  return [
    rng.choice(num_classes, min(k, num_classes), replace=False).tolist()
    for k in rng.choice([0, 1, 2, 4], n)
  ]


def expected(head, block, entries):
  """By numpy's stable sort, row by row: the smaller class wins a tie."""
  logits = block.embedding.astype(np.float64) @ head.kernel + head.bias
  ranked = np.argsort(-logits, axis=1, kind="stable")
  of_row = [
    (row[0] in entry, bool(set(row[:5].tolist()) & set(entry)))
    for row, entry in zip(ranked, entries, strict=True)
    if entry
  ]
  return [sum(hits) for hits in zip(*of_row, strict=True)], len(of_row)


@pytest.mark.parametrize("num_classes", [2, 6, 40])
@pytest.mark.parametrize("n", [20, 333])
def test_equals_numpy_ties_included(num_classes, n, monkeypatch):
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
    hits, rows = expected(head, block, entries)
    assert found.num_examples == rows < n
    assert found.secret_hits[:, i].tolist() == hits


def test_lists_of_one_are_labels():
  block = integer_block(300, 4, 9)
  entries = [[9]] * 900
  entries[::3] = [[int(label)] for label in block.label]
  heads = [make_head(4, 9, seed) for seed in range(3)]
  plain = count_hits(heads, [block])
  listed = count_hits(heads, [block], lists=lists_of(entries))
  np.testing.assert_array_equal(plain.secret_hits, listed.secret_hits)
  assert plain.num_examples == listed.num_examples


def test_not_a_number_is_never_a_hit():
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
