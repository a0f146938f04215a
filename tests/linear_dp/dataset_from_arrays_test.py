"""Arrays that a caller gives: what is refused, and what is not copied."""

import jax
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"embeddings": np.ones((2, 3), int)}, "embeddings are int64"),
    ({"embeddings": np.array([["a"]], object)}, "embeddings are object"),
    ({"embeddings": np.ones(3)}, r"embeddings are float64 \(3,\)"),
    ({"embeddings": np.ones((0, 3))}, "at least one row"),
    ({"embeddings": np.ones((3, 0))}, "at least one row"),
    ({"embeddings": np.full((2, 3), np.nan)}, r"embeddings\[0\] is not finite"),
    ({"embeddings": np.full((2, 3), 3e38)}, "too long for float32"),
    ({"labels": np.ones(2)}, "labels are float64"),
    ({"labels": np.ones(3, int)}, r"labels are int64 \(3,\)"),
    ({"labels": np.ones((2, 1), int)}, "give 2 integers, one a row"),
    ({"labels": np.array([0, 4])}, r"labels\[1\] is not one of the num_"),
    ({"labels": np.array([-1, 0])}, r"labels\[0\] is not one"),
    ({"num_classes": 0}, "is not one of the num_classes=0"),
    ({"unit_ids": np.ones(2)}, "unit_ids are float64"),
    ({"unit_ids": np.array(["a", None])}, "unit_ids are object"),
    ({"unit_ids": np.zeros(1, int)}, "unit_ids are int64"),
  ],
)
def test_dataset_from_arrays_refuses_invalid_arrays(given, message):
  right = {"embeddings": np.ones((2, 3), np.float32), "num_classes": 4}
  with pytest.raises(InputError, match=message) as refused:
    dataset_from_arrays(**(right | {"labels": np.zeros(2, int)} | given))
  assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_dataset_from_arrays_takes_a_jax_array_and_labels_of_one_byte():
  embeddings = jax.numpy.ones((3, 2))
  labels = np.array([0, 1, 1], np.uint8)

  data = dataset_from_arrays(embeddings, labels, num_classes=2)

  assert (data.n, data.feature_dim, data.num_classes) == (3, 2, 2)
  assert not data.has_units


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
def test_dataset_from_arrays_takes_the_other_byte_order(dtype):
  embeddings = np.array([[1, 2], [3, 4]], dtype)

  data = dataset_from_arrays(embeddings, np.zeros(2, int), num_classes=2)

  (block,) = data.blocks()
  assert block["embedding"].dtype.isnative
  np.testing.assert_array_equal(block["embedding"], [[1, 2], [3, 4]])


def test_dataset_from_arrays_uses_float16_without_a_copy():
  half = np.ones((3, 2), np.float16)

  data = dataset_from_arrays(half, np.zeros(3, int), num_classes=1)

  (block,) = data.blocks()
  assert block["embedding"] is half
