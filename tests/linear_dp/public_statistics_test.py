"""Rows behind a public map: each a function of itself, bit for bit."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.block import stored_norm
from oneshot_dp.linear_dp import public_statistics
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.public_statistics import (
  PublicMatrix,
  PublicStatistics,
  exact_integers,
)
from tests.linear_dp.blocks import DTYPES, Block, make_block


def public_rows(n: int, d: int) -> Block:
  """Far from zero, and unlike each other in every direction."""
  rng = np.random.default_rng(d)
  mixing = rng.standard_normal((d, d)) * np.geomspace(1, 100, d)
  embedding = 50 + rng.standard_normal((n, d)) @ mixing
  return make_block(embedding.astype(np.float32), np.zeros(n, np.int32))


def statistics(
  block: Block, whiten: bool, block_rows: int = 64
) -> PublicStatistics:
  return PublicStatistics.of_blocks(
    lambda: (
      block[i : i + block_rows] for i in range(0, len(block), block_rows)
    ),
    feature_dim=block.embedding.shape[1],
    num_classes=1,
    num_examples=len(block),
    whiten=whiten,
  )


def far_rows(n: int, d: int, seed: int, dtype: np.dtype) -> np.ndarray:
  """Rows of very different sizes, where a sum's order shows."""
  rng = np.random.default_rng(seed)
  sizes = rng.choice([1e-3, 1.0, 60.0], (n, 1))
  rows = rng.standard_normal((n, d)) * sizes * np.geomspace(1, 50, d)
  return (50 + rows).astype(dtype)


def bits(rows: np.ndarray) -> np.ndarray:
  assert rows.dtype == np.float32
  return np.ascontiguousarray(rows).view(np.uint32)


class TestRowAlone:
  """The same row in any place of any block is the same bits."""

  @settings(max_examples=15)
  @given(
    st.integers(1, 70),
    st.sampled_from([1, 2, 3, 17, 64, 193]),
    st.sampled_from(sorted(DTYPES)),
    st.booleans(),
    st.integers(0, 5),
    st.data(),
  )
  def test_whatever_is_beside_it(self, n, d, dtype, whiten, seed, data):
    known = statistics(public_rows(max(2 * d, 8), d), whiten)
    rows = far_rows(n, d, seed, DTYPES[dtype])
    together = bits(known.mapped(rows))
    order = np.array(data.draw(st.permutations(range(n))))
    np.testing.assert_array_equal(
      bits(known.mapped(rows[order])), together[order]
    )
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    np.testing.assert_array_equal(
      bits(known.mapped(rows[start:stop])), together[start:stop]
    )

  def test_where_nearly_all_of_a_row_cancels(self):
    """Only the last bits are left, and a product of floats has others."""
    d = 192
    along = np.random.default_rng(0).standard_normal(d)
    along /= np.linalg.norm(along)
    away = np.eye(d) - np.outer(along, along)
    known = PublicStatistics(
      mean=np.zeros(d, np.float32), whitening=PublicMatrix.of(away)
    )
    lengths = np.geomspace(1e-3, 1e3, 512)[:, None]
    rows = (lengths * along).astype(np.float32)
    together = known.mapped(rows)
    assert np.linalg.norm(together) > 0
    for size in (1, 2, 3, 31):
      for i in range(0, 20 * size, size):
        part = slice(i, i + size)
        np.testing.assert_array_equal(
          bits(known.mapped(rows[part])), bits(together[part])
        )

  @pytest.mark.parametrize("layout", ["fortran", "strided", "read-only"])
  def test_however_it_lies_in_memory(self, layout):
    known = statistics(public_rows(300, 65), True)
    rows = far_rows(40, 65, 2, np.dtype(np.float32))
    other = {
      "fortran": np.asfortranarray(rows),
      "strided": np.repeat(rows, 2, axis=1)[:, ::2],
      "read-only": np.frombuffer(rows.tobytes(), np.float32).reshape(40, 65),
    }[layout]
    np.testing.assert_array_equal(
      bits(known.mapped(other)), bits(known.mapped(rows))
    )

  def test_a_row_that_is_not_finite_spoils_no_other(self):
    known = statistics(public_rows(300, 20), True)
    rows = far_rows(9, 20, 2, np.dtype(np.float32))
    spoilt = rows.copy()
    spoilt[4, 3], spoilt[6, 0], spoilt[7, :] = np.nan, np.inf, 3e38
    found = known.mapped(spoilt)
    assert not np.isfinite(found[[4, 6]]).any()
    keep = [0, 1, 2, 3, 5, 8]
    np.testing.assert_array_equal(
      bits(found)[keep], bits(known.mapped(rows))[keep]
    )


class TestValues:
  @pytest.mark.parametrize("dtype", sorted(DTYPES))
  def test_the_mean_is_taken_off(self, dtype):
    public = public_rows(500, 12)
    known = statistics(public, False)
    assert known.whitening is None
    mean = public.embedding.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(known.mean, mean, rtol=1e-6)
    rows = far_rows(30, 12, 1, DTYPES[dtype])
    expected = rows.astype(np.float32) - known.mean
    np.testing.assert_array_equal(known.mapped(rows), expected)

  def test_public_rows_become_white(self):
    public = public_rows(4000, 8)
    z = statistics(public, True).mapped(public.embedding).astype(np.float64)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-4)
    values = np.linalg.eigvalsh(z.T @ z / len(z))
    # A² λ of each eigenvalue λ of the covariance.
    raw = np.cov(public.embedding.T.astype(np.float64), bias=True)
    spectrum = np.linalg.eigvalsh(raw)
    ridge = public_statistics.RIDGE
    damped = (spectrum / spectrum.mean() + ridge) / (1 + ridge)
    expected = np.sort(spectrum / damped)
    np.testing.assert_allclose(values, expected, rtol=1e-3)
    # So most of what differs between them is left, and the largest is damped.
    assert values[-1] / values[0] < spectrum[-1] / spectrum[0] / 1.5

  def test_the_map_is_what_it_says(self):
    """Against float64, on rows of all sizes."""
    known = statistics(public_rows(2000, 50), True)
    assert known.whitening is not None
    rows = far_rows(200, 50, 4, np.dtype(np.float32))
    centred = (rows - known.mean).astype(np.float64)
    expected = centred @ known.whitening.matrix
    size = np.linalg.norm(centred, axis=1, keepdims=True)
    longest = np.linalg.norm(known.whitening.matrix, axis=0).max()
    error = np.abs(known.mapped(rows) - expected) / (size * longest)
    assert error.max() < 1e-6

  @pytest.mark.parametrize("d", [1, 2, 4, 5, 16, 17, 192])
  def test_no_partial_sum_leaves_float64(self, d):
    """A row whose numbers are all as large as can be."""
    known = statistics(public_rows(3 * d + 5, d), True)
    assert known.whitening is not None
    matrix = known.whitening.integers
    assert np.linalg.norm(matrix, axis=0).max() <= 2**26
    for value in (1.0, 1.99999, 2.0, 3.4e38, 1e-44):
      row = np.full((1, d), value, np.float32)
      own = PublicStatistics(
        mean=np.zeros(d, np.float32), whitening=known.whitening
      )
      found = own.mapped(row)
      scaled, power = exact_integers(row)
      u = [int(v) for v in scaled[0]]
      assert 2**46 < sum(v * v for v in u) <= 2**52
      exact = [
        sum(a * int(b) for a, b in zip(u, column, strict=True))
        for column in matrix.T
      ]
      with np.errstate(over="ignore"):
        expected = np.ldexp(
          np.array(exact, float), -int(power[0, 0]) - known.whitening.exponent
        ).astype(np.float32)
      np.testing.assert_array_equal(found[0], expected)

  def test_constant_features_and_few_rows(self):
    block = public_rows(5, 12)
    block.embedding[:, 3] = 7.0
    block = block.but(embedding_norm=stored_norm(block.embedding))
    z = statistics(block, True).mapped(block.embedding)
    assert np.isfinite(z).all()


class TestFolding:
  @pytest.mark.parametrize("whiten", [False, True])
  def test_logits_are_the_same(self, whiten):
    known = statistics(public_rows(800, 24), whiten)
    rng = np.random.default_rng(2)
    head = LinearHead(
      kernel=rng.standard_normal((24, 5)).astype(np.float32),
      bias=rng.standard_normal(5).astype(np.float32) - 10,
    )
    rows = far_rows(50, 24, 6, np.dtype(np.float16))
    inside = np.asarray(head.logits(jnp.asarray(known.mapped(rows))))
    folded = known.folded(head)
    outside = folded.logits(jnp.asarray(rows.astype(np.float32)))
    assert np.asarray(folded.kernel).dtype == np.float32
    scale = np.abs(rows.astype(np.float64)) @ np.abs(folded.kernel)
    assert (np.abs(outside - inside) <= 1e-5 * scale).all()
    assert np.abs(inside).max() > 3


class TestRefusals:
  def test_rows_that_are_all_alike(self):
    block = make_block(np.ones((9, 4), np.float32), np.zeros(9, np.int32))
    assert statistics(block, False).whitening is None
    with pytest.raises(InputError, match="are all alike"):
      statistics(block, True)

  @pytest.mark.parametrize("value", [np.nan, np.inf])
  @pytest.mark.parametrize("whiten", [False, True])
  def test_rows_that_are_not_finite(self, value, whiten):
    block = public_rows(20, 4)
    block.embedding[7, 2] = value
    with pytest.raises(InputError, match="not finite"):
      statistics(block, whiten)

  @pytest.mark.parametrize(
    "integers", [np.full((2, 2), 2.0**26), np.eye(2) * 1.5]
  )
  def test_a_matrix_that_is_not_exact(self, integers):
    with pytest.raises(InputError, match="must be of integers with columns"):
      PublicMatrix(integers=integers, exponent=0)
