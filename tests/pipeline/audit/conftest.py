import functools

import jax
import pytest

from oneshot_dp.linear_dp.heads.whitened import training as whitened
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.rows import unit_norm_rows


@pytest.fixture(autouse=True)
def little_work(monkeypatch):
  """One device, small chunks, few steps of a whitened head."""
  first = jax.local_devices()[:1]
  monkeypatch.setattr(jax, "local_devices", lambda: first)
  monkeypatch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", 512)
  few = functools.partial(WhiteningRule, num_steps=3)
  monkeypatch.setattr(whitened, "WhiteningRule", few)
