import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.arrays import ArrayRows
from oneshot_dp.linear_dp.rows.block import RowBlock

N, D, K = 6, 3, 4
SECRET_LABEL = 7_654_321


def embeddings(dtype=np.float32):
  rng = np.random.default_rng(0)
  return rng.standard_normal((N, D)).astype(dtype)


def labels():
  return np.arange(N) % K


def with_value(value):
  array = embeddings()
  array[4, 1] = value
  return array


def with_label(label):
  array = labels()
  array[3] = label
  return array


@pytest.mark.parametrize(
  ("given", "stored"),
  [
    (np.float16, np.float16),
    (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    (np.float32, np.float32),
    (np.float64, np.float32),
  ],
)
def test_is_a_block_in_the_precision_of_a_cache(given, stored):
  rows = ArrayRows.of(embeddings(given), labels(), num_classes=K)
  assert isinstance(rows, RowBlock)
  assert rows.embedding.dtype == stored
  assert rows.label.dtype == np.int32
  assert rows.example_id.tolist() == list(range(N))
  norm = np.linalg.norm(rows.embedding.astype(np.float64), axis=1)
  np.testing.assert_array_equal(rows.embedding_norm, norm.astype(np.float32))


def test_takes_arrays_of_jax_and_keeps_units():
  rows = ArrayRows.of(
    jnp.asarray(embeddings()),
    jnp.asarray(labels()),
    num_classes=K,
    unit_ids=np.array([5, 5, 6, 6, 7, 7], np.uint8),
  )
  np.testing.assert_array_equal(rows.embedding, embeddings())
  assert rows.unit_id is not None
  assert rows.unit_id.tolist() == [5, 5, 6, 6, 7, 7]


def test_norms_do_not_depend_on_the_parts_they_are_measured_in(monkeypatch):
  one = ArrayRows.of(embeddings(), labels(), num_classes=K)
  monkeypatch.setattr("oneshot_dp.linear_dp.rows.arrays._ROWS_AT_ONCE", 4)
  parts = ArrayRows.of(embeddings(), labels(), num_classes=K)
  np.testing.assert_array_equal(one.embedding_norm, parts.embedding_norm)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_classes": 1}, r"num_classes=1: .*at least 2"),
    ({"embeddings": embeddings()[0]}, r"shape \(3,\): give \[n, d\]"),
    ({"embeddings": embeddings()[:0]}, r"shape \(0, 3\)"),
    ({"embeddings": embeddings()[:, :0]}, r"shape \(6, 0\)"),
    ({"embeddings": np.ones((N, D), int)}, r"embeddings are int64"),
    ({"embeddings": with_value(np.nan)}, r"embeddings\[4\] is not finite"),
    ({"embeddings": with_value(-np.inf)}, r"embeddings\[4\] is not finite"),
    (
      {"embeddings": with_value(3e38)[:, [1, 1]]},
      r"embeddings\[4\] .*too long",
    ),
    (
      {"embeddings": with_value(1.0).astype(float) * 1e300},
      r"embeddings\[0\] .*too long for float32",
    ),
    ({"labels": labels()[:5]}, r"labels have shape \(5,\): .*of the 6"),
    ({"labels": labels()[:, None]}, r"labels have shape \(6, 1\)"),
    ({"labels": labels() / 1}, r"labels are float64: give integers"),
    ({"labels": labels() > 0}, r"labels are bool"),
    ({"labels": with_label(SECRET_LABEL)}, r"labels\[3\] .*from 0 to 3"),
    ({"labels": with_label(-SECRET_LABEL)}, r"labels\[3\] .*num_classes=4"),
    ({"unit_ids": np.zeros(N)}, r"unit_ids are float64"),
    ({"unit_ids": np.zeros(2, int)}, r"unit_ids have shape \(2,\)"),
  ],
)
def test_refuses_by_row_and_never_by_value(changes, message):
  given = {"embeddings": embeddings(), "labels": labels(), "num_classes": K}
  with pytest.raises(InputError, match=message) as error:
    ArrayRows.of(**given | changes)
  assert "\n" not in str(error.value)
  assert str(SECRET_LABEL) not in str(error.value)
