import pytest

from oneshot_dp.linear_dp.rows import unit_norm_rows


@pytest.fixture
def small_chunks(monkeypatch):
  """Chunks of 32 rows a device: many for little work.

  Rows of 6 in 4 classes in most tests: they share what is compiled.
  """
  monkeypatch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", 32)
