import numpy as np
import pytest

from oneshot_dp.extract.storage import scratch
from oneshot_dp.extract.storage.scratch import Repeated


@pytest.mark.parametrize("at_once", [(8, 16), (1 << 23, 16), (64, 1 << 18)])
@pytest.mark.parametrize("step", [1, 64, -(1 << 40)])
def test_numbers_that_come_again(monkeypatch, at_once, step):
  """In one part or in many, in steps of a power of two, of either sign."""
  monkeypatch.setattr(scratch, "_SORTED_AT_ONCE", at_once[0])
  monkeypatch.setattr(scratch, "_WRITTEN_AT_ONCE", at_once[1])
  numbers = np.arange(1000) * step + 7
  again = numbers[[3, 500, 999]]
  numbers = np.concatenate([numbers[::-1], again, again[:1]])
  with Repeated(len(numbers)) as found:
    assert not len(found.found())
    for part in np.split(numbers, [1, 1, 40, 1000]):
      found.add(part)
    np.testing.assert_array_equal(found.found(), np.sort(again))


def test_parts_are_about_as_large(monkeypatch):
  """So that memory is bounded, whatever the numbers count."""
  monkeypatch.setattr(scratch, "_SORTED_AT_ONCE", 1000)
  for step in 1, 8, 1 << 20:
    with Repeated(9999) as found:
      found.add(np.arange(9999) * step)
      found.found()
      sizes = [file.seek(0, 2) // 8 for file in found._files]
      assert len(sizes) == 10
      assert max(sizes) < 1500
