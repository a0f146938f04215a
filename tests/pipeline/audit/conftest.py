import jax
import pytest

from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.linear_dp.statistics import gradient_sum


@pytest.fixture(autouse=True)
def little_work(monkeypatch):
  """One device, small chunks, few steps of a whitened head."""
  first = jax.local_devices()[:1]
  monkeypatch.setattr(jax, "local_devices", lambda: first)
  for module in (gradient_sum, unit_norm_rows):
    monkeypatch.setattr(module, "ROWS_PER_DEVICE", 512)
  monkeypatch.setattr(WhiteningRule, "num_steps", 3)
