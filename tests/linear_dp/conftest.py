import pytest

from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.linear_dp.statistics import gradient_sum


@pytest.fixture
def small_chunks(monkeypatch):
  """Chunks of 16 rows a device: many for little work."""
  for module in (unit_norm_rows, gradient_sum):
    monkeypatch.setattr(module, "ROWS_PER_DEVICE", 16)
