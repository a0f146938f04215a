import json

import numpy as np
import pytest

from oneshot_dp.pipeline.ledger import row_sketch
from oneshot_dp.pipeline.ledger.row_sketch import RowSketch


def keys(*numbers: int) -> np.ndarray:
  """As hashes are: far apart, in no order."""
  words = np.array(numbers, np.uint64)
  return words * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)


def of(first: int, stop: int) -> RowSketch:
  return RowSketch.of(keys(*range(first, stop)))


@pytest.fixture
def small(monkeypatch) -> int:
  monkeypatch.setattr(row_sketch, "MOST_KEYS", 50)
  return 50


@pytest.mark.parametrize(
  ("other", "common"),
  [
    ((0, 900), 900),
    ((0, 40), 40),  # a subset
    ((0, 5000), 900),  # a superset
    ((1, 900), 899),  # without one row
    ((899, 1800), 1),  # a single common one
    ((900, 1800), 0),
    ((0, 0), 0),
  ],
)
def test_every_common_row_is_seen(other, common):
  assert of(0, 900).common(of(*other)) == common
  assert of(*other).common(of(0, 900)) == common


def test_order_and_copies_make_no_difference():
  """And rows of zeros are nobody's."""
  rows = keys(*range(30))
  zeros = np.zeros(5, np.uint64)
  again = np.concatenate([rows[::-1], rows[:7], zeros]).reshape(-1, 1)
  np.testing.assert_array_equal(RowSketch.of(again).keys, of(0, 30).keys)
  assert len(RowSketch.of(zeros)) == 0


@pytest.mark.parametrize("common", [400, 2000])
def test_of_many_rows_a_sample_is_kept_and_it_is_the_same_of_all(small, common):
  """2,000 rows against 2,000: 50 keys see 400 of 3,600 for certain enough."""
  one, other = of(0, 2000), of(2000 - common, 4000 - common)
  assert len(one) == len(other) == small
  seen = one.common(other)
  union = 4000 - common
  assert (
    abs(seen - small * common / union) < 4 * (small * common / union) ** 0.5
  )
  assert seen > 0


def entries_of(*charged: RowSketch) -> list[dict]:
  """What a ledger keeps of charges for rows, one after another."""
  entries: list[dict] = []
  for rows in charged:
    facts = rows.facts_beyond(RowSketch.of_entries(entries))
    entries.append(json.loads(json.dumps(facts)))
  return entries


def test_entries_keep_what_is_new(small):
  parts = [of(0, 30), of(0, 30), of(20, 45), of(40, 3000), of(0, 3000)]
  entries = entries_of(*parts)
  kept = RowSketch.of_entries(entries)
  assert kept.common(of(0, 3000)) == small
  assert ["row_keys" in entry for entry in entries] == [1, 0, 1, 1, 0]


def test_many_more_rows_hide_no_row_of_another_charge(small):
  """Whichever was charged first."""
  few, many = of(0, 40), of(1000, 200_000)
  for charged in ((few, many), (many, few)):
    known = RowSketch.of_entries(entries_of(*charged))
    assert len(known) == len(few) + small
    assert all(known.common(of(i, i + 1)) for i in range(40))
    assert known.holds(np.stack([few.keys, few.keys], 1)[:, None]).all()


def test_it_says_nothing():
  assert str(int(of(7, 8).keys[0])) not in repr(of(7, 8))
