import pytest

from oneshot_dp.linear_dp.rows import unit_norm_rows


@pytest.fixture
def small_chunks(monkeypatch):
  """Chunks of 16 rows a device: many for little work."""
  monkeypatch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", 16)
