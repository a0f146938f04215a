"""How accurate `auto` is, by rows of a class or people, and by epsilon.

    python tests/benchmarks/accuracy.py FEATURES.npz
    python tests/benchmarks/accuracy.py FEATURES.npz --people 30

FEATURES.npz has train_embedding [n, d], train_label, test_embedding and
test_label. For each size it trains nested heads on a random part of the
training rows, with new rows and new noise in each draw, and prints the mean
top-1 accuracy on all test rows in percent as a Markdown table, with the
standard deviation over draws where it is a point or more. With `--people R`
each person has R rows of any classes, and epsilon is about all of them.
"""

import argparse

import numpy as np

import oneshot_dp

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
ROWS_OF_A_CLASS = (10, 20, 50, 100, 200, 500, 1000, 5000)
PEOPLE = (50, 100, 200, 500, 1000)


def accuracies(
  arrays: dict[str, np.ndarray],
  rows: int,
  rows_per_person: int,
  draw: int,
  delta: float,
) -> list[float]:
  """Returns the top-1 accuracy of a head for each epsilon, in percent."""
  rng = np.random.default_rng(draw)
  chosen = rng.permutation(len(arrays["train_label"]))[:rows]
  unit_ids = None
  if rows_per_person > 1:
    unit_ids = np.arange(rows) // rows_per_person
  heads = oneshot_dp.train_heads(
    arrays["train_embedding"][chosen],
    arrays["train_label"][chosen],
    num_classes=int(arrays["train_label"].max()) + 1,
    epsilons=EPSILONS,
    delta=delta,
    unit_ids=unit_ids,
    weak_privacy=True,
  )
  test = {
    "embedding": arrays["test_embedding"],
    "label": arrays["test_label"],
  }
  found = oneshot_dp.evaluate_heads(heads, [test])
  return [100 * accuracy.top1 for accuracy in found]


def cell(values: np.ndarray) -> str:
  spread = values.std()
  if spread >= 1:
    return f"{values.mean():.1f} ± {spread:.0f}"
  return f"{values.mean():.1f}"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("features")
  parser.add_argument("--people", type=int, default=1, metavar="ROWS")
  parser.add_argument("--draws", type=int, default=5)
  parser.add_argument("--delta", type=float, default=1e-5)
  flags = parser.parse_args()
  arrays = dict(np.load(flags.features))
  n = len(arrays["train_label"])
  num_classes = int(arrays["train_label"].max()) + 1
  what = "rows of a class"
  sizes = [(size, size * num_classes) for size in ROWS_OF_A_CLASS]
  if flags.people > 1:
    what = f"people of {flags.people} rows"
    sizes = [(size, size * flags.people) for size in PEOPLE]
  header = " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)
  print(f"| {what} | {header} |")
  print("|---" * (len(EPSILONS) + 1) + "|")
  for size, rows in sizes:
    if rows > n:
      continue
    found = np.array(
      [
        accuracies(arrays, rows, flags.people, draw, flags.delta)
        for draw in range(flags.draws)
      ]
    )
    cells = " | ".join(cell(column) for column in found.T)
    print(f"| {size:,} | {cells} |", flush=True)


if __name__ == "__main__":
  main()
