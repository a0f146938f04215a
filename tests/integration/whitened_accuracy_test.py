"""Whitened heads on real features: what they are worth, with no setting."""

import csv

import pytest

from tests.pipeline.command_line import succeeds


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "least"),
  [
    ("cifar10_vit_ti16_features", 0.918),
    ("eurosat_vit_ti16_features", 0.933),
  ],
)
def test_auto_at_epsilon_1(shared_data, tmp_path, capsys, name, least):
  """The one step gives 85.6 % and 76.4 %; seeded, to pass always or never."""
  for split in ("train", "test"):
    succeeds(
      capsys,
      *("import-features", shared_data / f"{name}.npz", "--split", split),
      *("--num-classes", 10, "--out", tmp_path / split),
    )
  succeeds(
    capsys,
    *("sweep", "--cache", tmp_path / "train"),
    *("--eval-cache", tmp_path / "test", "--head", "auto"),
    *("--epsilons", 1, "--delta", 1e-5, "--noise-seed", 0),
    *("--out", tmp_path / "results"),
  )
  with (tmp_path / "results/results.csv").open(newline="") as file:
    (row,) = csv.DictReader(file)
  assert row["head"] == "whitened"
  assert float(row["top1"]) >= least
