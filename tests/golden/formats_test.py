"""Caches, heads, receipts and a ledger of another day are read as they were."""

import json
import pathlib

import pytest

from tests.golden import formats

golden = json.loads(
  pathlib.Path(__file__).with_name("formats.json").read_text()
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
  """What today's commands say of the golden files."""
  folder = tmp_path_factory.mktemp("formats")
  formats.unpack(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    return formats.results()


def assert_equal(found, expected, place):
  """Equal keys, texts and integers; floats that are equal to 9 digits."""
  if isinstance(expected, dict):
    assert isinstance(found, dict), place
    assert found.keys() == expected.keys(), place
    for key, value in expected.items():
      assert_equal(found[key], value, f"{place}.{key}")
  elif isinstance(expected, list):
    assert isinstance(found, list), place
    assert len(found) == len(expected), place
    for i, value in enumerate(expected):
      assert_equal(found[i], value, f"{place}[{i}]")
  elif isinstance(expected, float):
    assert found == pytest.approx(expected, rel=1e-9), place
  else:
    assert found == expected, place


@pytest.mark.slow
@pytest.mark.parametrize("what", golden)
def test_golden_files_are_read_as_they_were(what, results):
  assert_equal(results[what], golden[what], what)


@pytest.mark.slow
def test_golden_results_are_all_compared(results):
  assert results.keys() == golden.keys()
