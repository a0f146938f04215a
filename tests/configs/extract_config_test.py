import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  ArraysSource,
  BackboneConfig,
  ExtractConfig,
)

SOURCE = ArraysSource(path="-")


def test_a_hash_of_no_file_is_refused():
  with pytest.raises(InputError, match="weights_sha256=ab is of no file"):
    BackboneConfig(weights_sha256="ab")


def test_an_area_is_a_share_of_views():
  for area in (0.0, -0.1, 1.1, float("nan")):
    with pytest.raises(InputError, match=r"is not in \(0, 1\]"):
      ExtractConfig(source=SOURCE, views=2, view_min_area=area)
  with pytest.raises(InputError, match=r"view_min_area=0\.5 is for views"):
    ExtractConfig(source=SOURCE, view_min_area=0.5)
  assert ExtractConfig(source=SOURCE, views=2).min_area == 0.08
