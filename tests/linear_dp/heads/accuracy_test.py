"""Accuracies on real features that no change may lose; δ = 1e-5."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from oneshot_dp.configs.head_config import (
  HeadName,
  HeadOptions,
  UnlabeledRows,
)
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.evaluate import evaluate_heads
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.train import cost, train

DELTA = 1e-5
ROWS_PER_USER = 30

Pick = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def all_rows(labels, rng):
  return rng.permutation(len(labels))


def first_rows(n):
  return lambda labels, rng: rng.permutation(len(labels))[:n]


def long_tail(labels, rng):
  """From 1,600 rows of a class down to 16."""
  sizes = np.rint(1600 * 100.0 ** (-np.arange(10) / 9)).astype(int)
  chosen = []
  for c, size in enumerate(sizes):
    rows_of_class = np.flatnonzero(labels == c)
    chosen.append(rng.choice(rows_of_class, size, replace=False))
  return np.concatenate(chosen)


class AccuracyCase(NamedTuple):
  dataset: str
  head: HeadName
  epsilons: tuple[float, ...]
  draws: int
  bars: tuple[float, ...]
  pick: Pick = all_rows
  users: bool = False
  unlabeled: bool = False


def mean_accuracies(folder, case, *, balanced=False):
  """Top-1 [ε] and balanced accuracy [ε] in percent, each a mean over draws."""
  with np.load(folder / f"{case.dataset}_vit_ti16_features.npz") as file:
    arrays = dict(file)
  test = {
    "embedding": arrays["test_embedding"],
    "label": arrays["test_label"],
  }
  unlabeled = None
  if case.unlabeled:
    # One half of the test rows is public, and the other half is scored.
    order = np.random.default_rng(99).permutation(len(arrays["test_label"]))
    public, scored = np.array_split(order, 2)
    unlabeled = UnlabeledRows.of(
      test["embedding"][public], feature_dim=test["embedding"].shape[1]
    )
    test = {name: column[scored] for name, column in test.items()}
  top1 = []
  balanced_accuracy = []
  for seed in range(case.draws):
    labels = arrays["train_label"]
    picked = case.pick(labels, np.random.default_rng(seed))
    unit_ids = None
    if case.users:
      order = np.random.default_rng(seed).permutation(len(picked))
      unit_ids = order // ROWS_PER_USER
    data = dataset_from_arrays(
      arrays["train_embedding"][picked],
      labels[picked],
      num_classes=10,
      unit_ids=unit_ids,
    )
    heads = train(
      HEADS[case.head].prepare_rows(data),
      head=case.head,
      epsilons=case.epsilons,
      delta=DELTA,
      mu_squared_budget=cost(case.epsilons, DELTA),
      source=NoiseSource(seed),
      options=HeadOptions(balanced=balanced, unlabeled=unlabeled),
    )
    scores = evaluate_heads([trained.head for trained in heads], [test])
    top1.append([score.top1 for score in scores])
    balanced_accuracy.append([score.balanced or 0 for score in scores])
  return 100 * np.mean(top1, axis=0), 100 * np.mean(balanced_accuracy, axis=0)


def long(*case: Any, **more: Any):
  return pytest.param(AccuracyCase(*case, **more), marks=pytest.mark.long)


@pytest.mark.slow
@pytest.mark.parametrize(
  "case",
  [
    # The paper's step. With its noise on the gradient itself, 85.5 to 85.8 and
    # 76.3 to 76.5.
    AccuracyCase("cifar10", "lamb", (0.25, 8.0), 2, (84.5, 84.5)),
    AccuracyCase("eurosat", "lamb", (0.25, 8.0), 2, (75.0, 75.0)),
    # Few rows.
    AccuracyCase("eurosat", "auto", (1.0,), 1, (57.0,), first_rows(500)),
    long("eurosat", "auto", (1.0,), 4, (61.0,), first_rows(500)),
    long("cifar10", "auto", (0.25,), 4, (70.0,), first_rows(2000)),
    # Nested and alone.
    long("cifar10", "auto", (0.25, 1.0, 8.0), 2, (91.0, 92.1, 92.6)),
    # Nested heads of few rows are as good as heads made alone. When a larger ε
    # went on from whole weights, they were at 86.1, 87.7, 89.2 and 61.6, 77.6,
    # 84.3.
    long(
      "cifar10",
      "auto",
      (0.25, 0.5, 1.0, 2.0, 8.0),
      4,
      (70.6, 84.3, 87.1, 88.7, 90.0),
      first_rows(2000),
    ),
    long(
      "cifar10",
      "auto",
      (0.25, 0.5, 1.0, 2.0, 8.0),
      4,
      (22.8, 42.3, 65.6, 81.8, 87.5),
      first_rows(500),
    ),
    long("eurosat", "auto", (0.5, 1.0, 8.0), 2, (92.4, 93.6, 95.0)),
    long("eurosat", "auto", (1.0,), 2, (93.6,)),
    # 720 and 700 users of 30 mixed rows. When only their weights bounded what
    # they add, they were at 50.3 to 85.2 and 48.1 to 82.5.
    long(
      "cifar10",
      "auto",
      (0.25, 0.5, 1.0, 2.0, 8.0),
      3,
      (82.6, 86.5, 88.1, 89.3, 90.0),
      first_rows(21_600),
      users=True,
    ),
    long(
      "eurosat",
      "auto",
      (0.25, 0.5, 1.0, 2.0, 8.0),
      3,
      (74.0, 81.5, 85.9, 88.2, 90.9),
      first_rows(21_000),
      users=True,
    ),
    # Few private rows and 5,000 or 2,700 public unlabeled ones. Without these,
    # they are at 42, 65 and 72, and 61.
    long(
      "cifar10",
      "auto",
      (0.5, 1.0),
      3,
      (75.0, 86.0),
      first_rows(500),
      unlabeled=True,
    ),
    long(
      "cifar10",
      "auto",
      (0.25,),
      3,
      (87.5,),
      first_rows(2000),
      unlabeled=True,
    ),
    long(
      "eurosat", "auto", (1.0,), 3, (77.5,), first_rows(500), unlabeled=True
    ),
  ],
)
def test_head_on_real_features_reaches_its_top1(shared_data, case):
  top1, _ = mean_accuracies(shared_data, case)
  assert (top1 >= case.bars).all()


@pytest.mark.long
@pytest.mark.parametrize(("balanced", "bar"), [(False, 56.0), (True, 67.0)])
def test_head_on_a_long_tail_reaches_its_balanced_accuracy(
  shared_data, balanced, bar
):
  case = AccuracyCase("eurosat", "auto", (1.0,), 4, (), pick=long_tail)
  _, balanced_accuracy = mean_accuracies(shared_data, case, balanced=balanced)
  assert (balanced_accuracy >= bar).all()
