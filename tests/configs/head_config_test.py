import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HEAD_NAMES, HeadOptions, PublicStart


def start(vectors, **options):
  return PublicStart.of(
    vectors, **{"num_classes": 3, "feature_dim": 4, **options}
  )


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


def test_settings_are_those_of_auto():
  public = start(np.eye(3, 4))
  for name in HEAD_NAMES:
    HeadOptions().check(name)
  for options in (HeadOptions(balanced=True), HeadOptions(start=public)):
    options.check("auto")
    with pytest.raises(InputError, match=r"is a setting of head 'auto', not"):
      options.check("lamb")
  with pytest.raises(InputError, match=r"head='svm' must be one of auto, lamb"):
    HeadOptions().check("svm")
  assert HeadOptions(balanced=True, start=public).as_json() == {
    "balanced": True,
    "start_sha256": public.sha256,
  }
