"""Whether the time of a release tells anything of the private sum.

    python tests/benchmarks/release_timing.py

Times `release` in turns, at the same noise: on sums of random signs up to 2^40,
on the same with one row less (neighbours), and on all zeros (which could not
differ more). Prints the median ratios to the first and the p-values of
Wilcoxon's signed-rank test on the pairs. The noise is drawn from random bits
alone, before it is added; p0*T is rounded in rationals, and Python's integers
take longer the longer they are.
"""

import argparse
import itertools
import statistics
import time

import numpy as np
import scipy.stats

from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum
from oneshot_dp.linear_dp.one_step.release import release

CLASSES, WIDTH = 100, 768


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--pairs", type=int, default=300, help="turns")
  args = parser.parse_args()
  grid = ClippedGradientGrid(num_classes=CLASSES, feature_dim=WIDTH)
  rng = np.random.default_rng(0)
  shape = (CLASSES, grid.row_dim)
  large = rng.integers(-(2**40), 2**40, shape, dtype=np.int64)
  neighbour = large.copy()
  neighbour[3] -= rng.integers(-(2**15), 2**15, WIDTH)
  sums = {
    "sums": large,
    "one row less": neighbour,
    "all zeros": np.zeros_like(large),
  }
  secrets = {
    name: SecretSum(grid=grid, num_examples=50_000, secret_class_sums=values)
    for name, values in sums.items()
  }
  seconds = {name: [] for name in secrets}
  for turn in range(args.pairs):
    # In every order, as often.
    names = list(itertools.permutations(secrets))[turn % 6]
    for name in names:
      seconds[name].append(timed(secrets[name]))
  base = seconds["sums"]
  print(
    f"d = {WIDTH}, K = {CLASSES}, {args.pairs} turns, sums:"
    f" {1e3 * statistics.median(base):.2f} ms"
  )
  for name in ("one row less", "all zeros"):
    ratios = [a / b for a, b in zip(seconds[name], base, strict=True)]
    p = scipy.stats.wilcoxon(seconds[name], base).pvalue
    print(f"{name}: {statistics.median(ratios):.4f} times, p = {p:.3f}")


def timed(secret: SecretSum) -> float:
  """Seconds of one release, head by head."""
  plan = ReleasePlan(epsilons=(1.0,), delta=1e-6)
  start = time.perf_counter()
  list(release(secret, plan, NoiseSource(), charge=lambda plan, source: None))
  return time.perf_counter() - start


if __name__ == "__main__":
  main()
