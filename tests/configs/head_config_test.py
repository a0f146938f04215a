import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadOptions, PublicStart


def start(vectors, **options):
  return PublicStart.of(vectors, num_classes=3, feature_dim=4, **options)


@pytest.mark.parametrize(
  ("vectors", "message"),
  [
    (np.ones((4, 3)), r"start is float64 \(4, 3\): give numbers of shape"),
    (np.full((3, 4), "a"), r"start is <U1"),
    (np.full((3, 4), 1j), r"start is complex128"),
    ([[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]], "of class 'b' is zeros only"),
    ([[1, 0, 0, 0], [0, np.nan, 0, 0], [0, 1, 0, 0]], "'b' is not finite"),
    (np.ones((3, 4)), "one vector for all classes"),
    (1e300 * np.ones((3, 4)), "one vector for all classes"),
  ],
)
def test_a_start_that_ranks_nothing_is_refused(vectors, message):
  with pytest.raises(InputError, match=message) as error:
    start(vectors, names=["a", "b", "c"])
  assert "\n" not in str(error.value)


def test_a_start_ranks_by_what_differs_between_classes():
  vectors = np.random.default_rng(0).standard_normal((3, 4))
  kernel = start(vectors).kernel()
  x = np.random.default_rng(1).standard_normal((50, 4))
  np.testing.assert_array_equal(
    (x @ kernel).argmax(axis=1), (x @ vectors.T).argmax(axis=1)
  )
  np.testing.assert_allclose(kernel.sum(axis=1), 0, atol=1e-12)
  assert np.isfinite(start(1e300 * vectors).kernel()).all()
  assert start(vectors).sha256 != start(2 * vectors).sha256
  assert start(vectors, sha256="ab").sha256 == "ab"
  assert HeadOptions().as_json() == {"balanced": False}
  said = HeadOptions(balanced=True, start=start(vectors)).as_json()
  assert said == {"balanced": True, "start_sha256": start(vectors).sha256}
