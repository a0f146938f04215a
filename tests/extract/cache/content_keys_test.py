import hashlib

import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.extract.cache.content_keys import (
  embedding_keys,
  image_key,
  image_keys,
  is_among,
  percentile_of,
  row_keys,
  shares_a_key,
)


def rows(n: int = 50, d: int = 20, seed: int = 0) -> np.ndarray:
  rng = np.random.default_rng(seed)
  return rng.standard_normal((n, d)).astype(np.float32)


def same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
  return (embedding_keys(one) == embedding_keys(other)).all(axis=1)


class TestEmbeddings:
  def test_the_same_values_have_one_key(self):
    embedding = rows()
    for dtype in (np.float16, np.float64, ">f4"):
      assert same(embedding, embedding.astype(dtype)).all()
    assert same(embedding, np.asfortranarray(embedding)).all()
    # As the limits say: it keeps too little to tell.
    assert not same(embedding, embedding.astype(ml_dtypes.bfloat16)).any()

  def test_rounding_twice_changes_few(self):
    """float64 → float16 at once, and by way of float32."""
    exact = np.random.default_rng(1).standard_normal((2000, 100))
    assert same(exact, exact.astype(np.float32)).mean() > 0.98

  def test_another_row_has_another_key(self):
    embedding = rows()
    changed = embedding.copy()
    changed[:, 7] *= 1.01
    assert not same(embedding, changed).any()
    assert len(np.unique(embedding_keys(embedding), axis=0)) == 50

  def test_a_key_is_of_its_row_alone(self):
    embedding = rows()
    keys = embedding_keys(embedding)
    np.testing.assert_array_equal(embedding_keys(embedding[17:20]), keys[17:20])
    np.testing.assert_array_equal(embedding_keys(embedding[::-1]), keys[::-1])

  @pytest.mark.parametrize("factor", [1e-12, 1e12])
  def test_what_float16_does_not_hold(self, factor):
    embedding = rows() * np.float32(factor)
    assert len(np.unique(embedding_keys(embedding), axis=0)) == 50
    assert same(embedding, embedding.astype(np.float64)).all()

  def test_a_row_of_zeros_is_nobody_s(self):
    zeros = np.array([[0.0, 0.0], [-0.0, 0.0], [1.0, 0.0]], np.float16)
    keys = embedding_keys(zeros)
    np.testing.assert_array_equal(keys.any(axis=1), [False, False, True])
    assert shares_a_key(keys[:, None], keys[:, None]).tolist() == [0, 0, 1]


class TestImages:
  def test_words_are_those_of_the_number(self):
    key = image_key(b"a file")
    ((low, high),) = image_keys([key]).tolist()
    assert low + (high << 64) == key
    digest = hashlib.blake2b(b"a file", digest_size=16).digest()
    assert key == int.from_bytes(digest, "little")

  def test_of_none(self):
    assert image_keys([]).shape == (0, 2)
    assert row_keys(rows(0), image_keys([])).shape == (0, 2, 2)


class TestSharing:
  def test_any_kind_of_key_is_enough(self):
    image = [image_keys([image_key(bytes([i])) for i in ids]) for ids in
             (range(10), (3, 4, 50))]  # fmt: skip
    one = row_keys(rows(10), image[0])
    other = row_keys(rows(3, seed=5), image[1])
    assert shares_a_key(other, one).tolist() == [True, True, False]
    assert np.flatnonzero(shares_a_key(one, other)).tolist() == [3, 4]
    # Without the image's keys only embeddings can tell.
    assert not shares_a_key(other, one[:, :1]).any()
    again = row_keys(rows(10)[[8, 2]], None)
    assert shares_a_key(again, one).all()

  def test_all_128_bits_count(self):
    one = np.array([[[7, 1]], [[8, 2]]], np.uint64)
    other = np.array([[[7, 2]], [[8, 2]]], np.uint64)
    assert shares_a_key(one, other).tolist() == [False, True]


class TestPercentile:
  def test_all_are_about_equally_often(self):
    keys = embedding_keys(rows(20_000, 3))
    counts = np.bincount(percentile_of(keys), minlength=100)
    assert len(counts) == 100
    assert np.abs(counts - 200).max() < 5 * 200**0.5

  def test_the_ends(self):
    top = np.uint64(2**64 - 1)
    keys = np.array([[top, 0], [0, top]], np.uint64)
    assert percentile_of(keys).tolist() == [0, 99]

  def test_it_says_nothing_of_the_low_word(self):
    """Else a sketch, of the smallest, would be of one part."""
    keys = embedding_keys(rows(20_000, 3))
    smallest = keys[np.argsort(keys[:, 0])[:2000]]
    counts = np.bincount(percentile_of(smallest) // 10, minlength=10)
    assert np.abs(counts - 200).max() < 5 * 200**0.5


def test_words_are_looked_up_among_sorted_ones():
  rng = np.random.default_rng(0)
  known = np.unique(rng.integers(0, 500, 200, np.uint64))
  words = np.append(
    rng.integers(0, 600, (90, 3), np.uint64), known[[[0, -1, -1]]], 0
  )
  np.testing.assert_array_equal(is_among(known, words), np.isin(words, known))
  assert not is_among(known[:0], words).any()
