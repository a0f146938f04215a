"""The experiments of the paper run on rows of a moment, and print tables."""

import numpy as np
import pytest

from oneshot_dp.linear_dp.accounting import noise_multiplier
from oneshot_dp.pipeline.paper import dp_sgd, experiments


@pytest.fixture
def features(tmp_path):
  """An npz of 500 rows to train on and 100 to test on, of three classes."""
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


@pytest.fixture
def few_settings(monkeypatch):
  """One ε and two numbers of batches, with the noise of none of them."""
  # The accountant takes a second for each setting; it is tested by itself.
  monkeypatch.setattr(dp_sgd, "_noise_multiplier", lambda *_: 2.0)
  for name in "_CHANGED_EPSILONS", "_EPSILONS":
    monkeypatch.setattr(experiments, name, (2.0,))
  monkeypatch.setattr(experiments, "_BATCHES", (1, 3))


@pytest.mark.long
def test_experiments_print_tables_and_draw_a_picture(
  features, few_settings, tmp_path, capsys
):
  experiments.main(features, picture=tmp_path / "picture.png")

  first, _, *lines = capsys.readouterr().out.splitlines()
  assert first.startswith("NOT PRIVATE")
  assert lines[2].startswith("one step, momentum")
  assert float(lines[2].split()[-1]) > 90
  assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_features_of_no_npz_are_one_line(tmp_path):
  (tmp_path / "features.npz").write_bytes(b"no npz")

  with pytest.raises(SystemExit, match="give an npz with the arrays"):
    dp_sgd.Features.load(tmp_path / "features.npz")


@pytest.mark.slow
def test_noise_of_one_full_step_is_that_of_the_single_step():
  sigma = dp_sgd._noise_multiplier(1.0, 500, 1, 500)

  assert sigma == pytest.approx(noise_multiplier(1.0, dp_sgd.DELTA), rel=0.05)
