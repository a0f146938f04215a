"""How accurate `auto` is, by rows of a class or people, and by epsilon.

    python tests/benchmarks/accuracy.py FEATURES.npz
    python tests/benchmarks/accuracy.py FEATURES.npz --people 30
    python tests/benchmarks/accuracy.py FEATURES.npz --unlabeled FEATURES.npz

FEATURES.npz has train_embedding [n, d], train_label, test_embedding and
test_label. For each size it trains nested heads on a random part of the
training rows, with new rows and new noise in each draw, and prints the mean
top-1 accuracy on all test rows in percent as a Markdown table, with the
standard deviation over draws where it is a point or more. With `--people R`
each person has R rows of any classes, and epsilon is about all of them.

With `--unlabeled FILE`, a random half of the test rows of FILE are public
unlabeled images, and the other half of FEATURES.npz's are scored. Behind each
mean is then in how many draws the head that learned from them was chosen.
"""

import argparse
from typing import NamedTuple

import numpy as np

import oneshot_dp

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
ROWS_OF_A_CLASS = (10, 20, 50, 100, 200, 500, 1000, 5000)
PEOPLE = (50, 100, 200, 500, 1000)

Arrays = dict[str, np.ndarray]


class Draw(NamedTuple):
  """What one draw of rows and noise found.

  Attributes:
    accuracy: top-1 of each epsilon, in percent.
    self_trained: whether what learned from public rows was chosen, of each.
  """

  accuracy: list[float]
  self_trained: list[bool]


def run_draw(
  arrays: Arrays,
  unlabeled_arrays: Arrays | None,
  rows: int,
  seed: int,
  flags: argparse.Namespace,
) -> Draw:
  """Trains heads of all epsilons once, and scores them."""
  rng = np.random.default_rng(seed)
  chosen = rng.permutation(len(arrays["train_label"]))[:rows]
  unit_ids = None
  if flags.people > 1:
    unit_ids = np.arange(rows) // flags.people
  unlabeled = None
  scored = np.arange(len(arrays["test_label"]))
  if unlabeled_arrays is not None:
    # Of one file, public rows and those that are scored are two halves.
    half_rng = np.random.default_rng(1000 + seed)
    scored = half_rng.permutation(len(arrays["test_label"]))
    scored = scored[len(scored) // 2 :]
    half_rng = np.random.default_rng(1000 + seed)
    public = half_rng.permutation(len(unlabeled_arrays["test_label"]))
    public = public[: min(len(public) // 2, flags.public_rows)]
    unlabeled = unlabeled_arrays["test_embedding"][public]
  heads = oneshot_dp.train_heads(
    arrays["train_embedding"][chosen],
    arrays["train_label"][chosen],
    num_classes=int(arrays["train_label"].max()) + 1,
    epsilons=flags.epsilons,
    delta=flags.delta,
    unit_ids=unit_ids,
    unlabeled=unlabeled,
    weak_privacy=True,
  )
  test = {
    "embedding": arrays["test_embedding"][scored],
    "label": arrays["test_label"][scored],
  }
  scores = oneshot_dp.evaluate_heads(heads, [test])
  return Draw(
    accuracy=[100 * score.top1 for score in scores],
    self_trained=[
      bool(head.trained.options.get("self_trained")) for head in heads
    ],
  )


def cell(values: np.ndarray, times_chosen: int | None) -> str:
  """One cell of the table: a mean, its deviation, how often it was chosen."""
  text = f"{values.mean():.1f}"
  spread = values.std()
  if spread >= 1:
    text += f" ± {spread:.0f}"
  if times_chosen is not None:
    text += f" ({times_chosen}/{len(values)})"
  return text


def parse_flags() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("features")
  parser.add_argument("--people", type=int, default=1, metavar="ROWS")
  parser.add_argument("--unlabeled", metavar="FILE")
  parser.add_argument("--public-rows", type=int, default=10**9, metavar="N")
  parser.add_argument("--sizes", type=int, nargs="+")
  parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
  parser.add_argument("--draws", type=int, default=5)
  parser.add_argument("--delta", type=float, default=1e-5)
  return parser.parse_args()


def main() -> None:
  flags = parse_flags()
  arrays = dict(np.load(flags.features))
  unlabeled_arrays = None
  if flags.unlabeled:
    unlabeled_arrays = dict(np.load(flags.unlabeled))
  num_classes = int(arrays["train_label"].max()) + 1
  what = "rows of a class"
  sizes = flags.sizes or ROWS_OF_A_CLASS
  rows_of_size = num_classes
  if flags.people > 1:
    what = f"people of {flags.people} rows"
    sizes = flags.sizes or PEOPLE
    rows_of_size = flags.people
  header = " | ".join(f"ε = {epsilon:g}" for epsilon in flags.epsilons)
  print(f"| {what} | {header} |")
  rules = ["---", *("---" for _ in flags.epsilons)]
  print(f"|{'|'.join(rules)}|")
  for size in sizes:
    rows = size * rows_of_size
    if rows > len(arrays["train_label"]):
      continue
    draws = [
      run_draw(arrays, unlabeled_arrays, rows, seed, flags)
      for seed in range(flags.draws)
    ]
    accuracy = np.array([draw.accuracy for draw in draws])
    chosen = np.array([draw.self_trained for draw in draws]).sum(axis=0)
    cells = []
    for i in range(len(flags.epsilons)):
      times_chosen = int(chosen[i]) if flags.unlabeled else None
      cells.append(cell(accuracy[:, i], times_chosen))
    print(f"| {size:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
  main()
