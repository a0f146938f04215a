import functools

import jax
import pytest

from oneshot_dp.linear_dp import audit
from oneshot_dp.linear_dp.heads.whitened import training as whitened
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.rows import unit_norm_rows


@pytest.fixture(autouse=True)
def little_work(monkeypatch):
  """One device, small chunks, few steps of a whitened head, and losses coarse.

  Of as few steps as the tests have, the coarser grid of losses proves as much.
  """
  first = jax.local_devices()[:1]
  monkeypatch.setattr(jax, "local_devices", lambda: first)
  monkeypatch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", 512)
  few = functools.partial(WhiteningRule, num_steps=2)
  monkeypatch.setattr(whitened, "WhiteningRule", few)
  monkeypatch.setattr(audit, "_SAMPLED_GRID", 1e-2)
