"""How many canaries an audit takes, for every number that the command takes."""

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.pipeline.audit.runs import canaries_among, synthetic_canaries


def dataset(num_classes):
  return PrivateDataset(
    blocks=list, n=5000, feature_dim=192, num_classes=num_classes
  )


@pytest.mark.parametrize("count", [100, 511, 512, 513, 2000, 19_999, 20_000])
def test_synthetic_canaries_of_every_number_have_classes_enough(count):
  canaries = synthetic_canaries(count)

  assert canaries.count == count
  assert 2 * canaries.per_direction <= canaries.num_classes


@pytest.mark.parametrize("num_classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("mu_squared", [1e-9, 0.07, 0.8, 12.0, 1e6])
def test_default_canaries_among_rows_fit_their_directions(
  num_classes, mu_squared
):
  canaries = canaries_among(dataset(num_classes), mu_squared)

  assert 1000 <= canaries.count <= 20_000
  assert canaries.dim <= 2048
  assert canaries.num_directions <= canaries.dim


def test_fewer_guesses_do_for_a_larger_epsilon():
  small = canaries_among(dataset(10), mu_squared=0.07)
  large = canaries_among(dataset(10), mu_squared=12.0)

  assert large.count < small.count


def test_more_canaries_than_directions_and_classes_hold_are_refused():
  with pytest.raises(InputError, match="give fewer canaries"):
    canaries_among(dataset(2), mu_squared=1.0, count=20_000)
