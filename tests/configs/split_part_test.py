import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.split_part import SplitPart
from oneshot_dp.extract.cache.content_keys import embedding_keys, in_part


def keys(n: int = 5000) -> np.ndarray:
  rng = np.random.default_rng(0)
  return embedding_keys(rng.standard_normal((n, 8)).astype(np.float32))


@pytest.mark.parametrize(
  ("split", "read"),
  [
    ("train", ("train", 0, 100)),
    ("train[:80%]", ("train", 0, 80)),
    ("train[80%:]", ("train", 80, 100)),
    ("all[10%:20%]", ("all", 10, 20)),
    ("train[:1000]", ("train[:1000]", 0, 100)),
    ("train+test", ("train+test", 0, 100)),
  ],
)
def test_names(split, read):
  part = SplitPart.of(split)
  assert (part.split, part.start, part.stop) == read


@pytest.mark.parametrize(
  "split",
  [
    *("train[80%]", "train[:101%]", "train[50%:50%]", "train[60%:40%]"),
    *("train[-20%:]", "train[:50%]+test", "train[:10%]+train[90%:]"),
    *("train[5%:100]", "[:10%]", "train[:1.5%]", "tr%ain", "train[0:10%]"),
    "train[10%:20%](pct1_dropremainder)",
  ],
)
def test_what_is_no_part(split):
  with pytest.raises(InputError, match="is not a part of a split: give one"):
    SplitPart.of(split)


def test_parts_are_apart_and_make_the_whole():
  rows = keys()
  names = ("all[:10%]", "all[10%:75%]", "all[75%:]")
  held = np.stack([in_part(SplitPart.of(name), rows) for name in names])
  np.testing.assert_array_equal(held.sum(axis=0), 1)
  np.testing.assert_allclose(held.mean(axis=1), [0.1, 0.65, 0.25], atol=0.03)
  assert in_part(SplitPart.of("all"), rows).all()


def test_one_row_more_moves_no_other():
  part, rows = SplitPart.of("train[:80%]"), keys()
  without = np.delete(rows, 40, axis=0)
  np.testing.assert_array_equal(
    in_part(part, without), np.delete(in_part(part, rows), 40)
  )


def test_a_unit_is_in_one_part_whatever_its_rows_are():
  rows, whose = keys(), np.arange(5000) // 5 - 500
  names = ("all[:10%]", "all[10%:75%]", "all[75%:]")
  held = np.stack([in_part(SplitPart.of(name), rows, whose) for name in names])
  np.testing.assert_array_equal(held.sum(axis=0), 1)
  np.testing.assert_allclose(held.mean(axis=1), [0.1, 0.65, 0.25], atol=0.05)
  np.testing.assert_array_equal(held, held[:, ::5].repeat(5, axis=1))
  part = SplitPart.of(names[1])
  np.testing.assert_array_equal(
    in_part(part, keys(40)[::-1], whose[40:80]), held[1, 40:80]
  )
