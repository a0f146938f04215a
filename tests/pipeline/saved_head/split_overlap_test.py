import itertools

import pytest
import tensorflow_datasets as tfds

from oneshot_dp.pipeline.saved_head.feature_space import may_overlap

SLICES = [
  "[:10%]",
  "[10%:]",
  "[10%:60%]",
  "[60%:]",
  "[:50]",
  "[50:]",
  "[50:70]",
  "",
]


def rows_of(split: str) -> set[tuple[str, int]]:
  """As TFDS reads the name, of splits of 100 rows."""
  infos = {
    name: tfds.core.SplitInfo(name=name, shard_lengths=[100], num_bytes=1)
    for name in ("train", "test")
  }
  splits = tfds.core.SplitDict(list(infos.values()))
  instructions = tfds.core.ReadInstruction.from_spec(split).to_absolute(splits)
  return {
    (part.splitname, row)
    for part in instructions
    for row in range(part.from_ or 0, 100 if part.to is None else part.to)
  }


def test_never_apart_where_tfds_reads_a_row_twice():
  rows = {name: rows_of(name) for name in (f"train{s}" for s in SLICES)}
  for one, other in itertools.product(rows, repeat=2):
    assert may_overlap(one, other) or not rows[one] & rows[other]


@pytest.mark.parametrize(
  ("one", "other"),
  [
    ("train", "test"),
    ("train[:10%]", "test[:10%]"),
    ("train[:80%]", "train[80%:]"),
    ("train[100:200]", "train[200:]"),
    ("train[:20%]+train[30%:40%]", "train[20%:30%]+test"),
  ],
)
def test_apart(one, other):
  assert not may_overlap(one, other)
  assert not may_overlap(other, one)


@pytest.mark.parametrize(
  ("one", "other"),
  [
    ("train", "train"),
    ("train", "train[:10%]"),
    ("train", "train[5:7]"),
    ("train[:10%]", "train[5000:]"),
    ("train[-10%:]", "train[:10%]"),
    ("train+test", "test"),
    ("all", "test"),
    ("test[:50%]", "all"),
    ("train[even]", "train[:1]"),
    ("train[10%:20%](pct1_dropremainder)", "train[30%:]"),
    ("train ", " train"),
  ],
)
def test_may_overlap(one, other):
  assert may_overlap(one, other)
  assert may_overlap(other, one)
