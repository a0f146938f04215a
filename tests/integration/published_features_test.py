"""Private heads on real features: the numbers that the method is known for."""

import csv
import pathlib
import statistics
from collections import defaultdict

import numpy as np
import pytest

from tests.pipeline.command_line import succeeds

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "rows", "low", "high"),
  [
    ("cifar10_vit_ti16_features", (50_000, 10_000), 0.850, 0.865),
    ("eurosat_vit_ti16_features", (21_600, 5_400), 0.755, 0.775),
  ],
)
def test_one_step_heads_at_every_epsilon(
  shared_data, tmp_path, capsys, name, rows, low, high
):
  """Seeded, so that the test passes always or never."""
  file = shared_data / f"{name}.npz"
  for split, n in zip(("train", "test"), rows, strict=True):
    out, _ = succeeds(
      capsys,
      *("import-features", file, "--split", split),
      *("--num-classes", 10, "--out", tmp_path / split),
    )
    assert f"{n:,} of {n:,} (0 skipped)" in out
  out, _ = succeeds(
    capsys,
    *("sweep", "--cache", tmp_path / "train"),
    *("--eval-cache", tmp_path / "test"),
    *("--epsilons", *EPSILONS, "--delta", 1e-5, "--num-draws", 5),
    *("--noise-seed", 0, "--out", tmp_path / "results"),
  )
  means = top1_by_epsilon(tmp_path / "results")
  assert tuple(sorted(means)) == EPSILONS
  assert all(low <= top1 <= high for top1 in means.values()), means


@pytest.mark.slow
def test_photographs_by_an_independent_reference(shared_data, tmp_path, capsys):
  """Stage 2 on the reference embeddings of 10,000 CIFAR-10 photographs.

  That the job makes the same embeddings is the business of
  embedding_parity_test. Seeded, so that the test passes always or never.
  """
  images = np.load(shared_data / "cifar10_images.npz")
  embeddings = np.load(shared_data / "cifar10_images_vit_ti16_embedding.npz")
  names = ("train_label", "test_label")
  np.savez(
    tmp_path / "photographs.npz",
    class_names=images["class_names"],
    **{name: embeddings[name] for name in embeddings.files},
    **{name: images[name] for name in names},
  )
  for split in ("train", "test"):
    succeeds(
      capsys,
      *("import-features", tmp_path / "photographs.npz", "--split", split),
      *("--backbone-name", "vit_ti16", "--out", tmp_path / split),
    )
  succeeds(
    capsys,
    *("sweep", "--cache", tmp_path / "train"),
    *("--eval-cache", tmp_path / "test"),
    *("--epsilons", *EPSILONS, "--delta", 1e-5, "--num-draws", 5),
    *("--noise-seed", 0, "--out", tmp_path / "results"),
  )
  means = top1_by_epsilon(tmp_path / "results")
  expected = (0.838, 0.853, 0.857, 0.861, 0.861, 0.862)
  for epsilon, reference in zip(EPSILONS, expected, strict=True):
    assert means[epsilon] == pytest.approx(reference, abs=0.007)


def top1_by_epsilon(results: pathlib.Path) -> dict[float, float]:
  groups = defaultdict(list)
  with (results / "results.csv").open(newline="") as file:
    for row in csv.DictReader(file):
      groups[float(row["epsilon"])].append(float(row["top1"]))
  assert {len(group) for group in groups.values()} == {5}
  return {epsilon: statistics.mean(group) for epsilon, group in groups.items()}
