"""The paper's script runs on rows of a moment, and prints what it says."""

import numpy as np
import pytest

from oneshot_dp.linear_dp.accounting import noise_multiplier
from oneshot_dp.pipeline.paper import dp_sgd, experiments


@pytest.fixture
def features(tmp_path, monkeypatch):
  # Each of the accountant's takes a second; one is tested below.
  monkeypatch.setattr(dp_sgd, "_noise_multiplier", lambda *_: 2.0)
  rng = np.random.default_rng(0)
  label = np.arange(600) % 3
  rows = np.eye(3, 6)[label] + 0.3 * rng.normal(size=(600, 6))
  path = tmp_path / "features.npz"
  np.savez(
    path,
    train_embedding=rows[:500].astype(np.float16),
    train_label=label[:500],
    test_embedding=rows[500:],
    test_label=label[500:],
  )
  return path


@pytest.mark.slow
def test_tables_and_figures(features, tmp_path, monkeypatch, capsys):
  for name in "_CHANGED", "_EPSILONS":
    monkeypatch.setattr(experiments, name, (2.0,))
  monkeypatch.setattr(experiments, "_BATCHES", (1, 3))
  experiments.main(features, picture=tmp_path / "picture.png")
  first, _, *lines = capsys.readouterr().out.splitlines()
  assert first.startswith("NOT PRIVATE")
  assert lines[2].startswith("one step, momentum")
  assert float(lines[2].split()[-1]) > 90
  assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_one_step_costs_what_the_single_step_does():
  found = dp_sgd._noise_multiplier(1.0, 500, 1, 500)
  assert found == pytest.approx(noise_multiplier(1.0, dp_sgd.DELTA), rel=0.05)
