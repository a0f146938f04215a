"""Accuracy per way to bound a unit: its sum, at most m rows of it, mean rows.

    python tests/benchmarks/unit_bounds.py cifar10_features.npz

The file has train_embedding, train_label, test_embedding and test_label, as
for `oneshot-dp import`. Rows are put into units of k that are drawn at
random, of one class each, the same in every other class only ("uneven": other
rows are units of their own), of near neighbours of one class ("tracks"), or k
nearly equal copies of one row. The paper's step clips their sums or bounds
their rows; "auto" takes their means. Prints the mean top-1 on the test rows, in
percent, and its spread over the draws of the noise, which are from a seed: NOT
PRIVATE.
"""

import argparse
import pathlib
from collections.abc import Iterable

import numpy as np

from oneshot_dp.extract.cache.block import Block
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum, exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import release
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer, one_step
from oneshot_dp.linear_dp.rows.units import choose_rows
from oneshot_dp.linear_dp.rows.whole_units import count_rows
from oneshot_dp.linear_dp.train_arrays import train_head

KINDS = ("random", "one class", "uneven", "tracks", "copies")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("features", type=pathlib.Path)
  parser.add_argument("--rows-of-a-unit", type=int, nargs="+", default=[10, 30])
  parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1, 4])
  parser.add_argument("--draws", type=int, default=10)
  args = parser.parse_args()
  with np.load(args.features) as file:
    data = dict(file)
  plan = ReleasePlan(
    epsilons=tuple(args.epsilons), delta=1e-5, num_draws=args.draws
  )
  print(
    "units of      bound  " + "  ".join(f"eps={e:<6g}" for e in plan.epsilons)
  )
  for k in args.rows_of_a_unit:
    for kind in KINDS:
      block = in_units(data["train_embedding"], data["train_label"], k, kind)
      for m in (None, 1, 4, k):
        cells = scores(block, data, m, plan)
        name = "sum" if m is None else f"m={m}"
        print(f"{k:2} {kind:10} {name:>5}  " + "  ".join(cells))
      cells = scores_of_auto(block, data, plan)
      print(f"{k:2} {kind:10} {'auto':>5}  " + "  ".join(cells), flush=True)


def in_units(rows: np.ndarray, label: np.ndarray, k: int, kind: str) -> Block:
  """The rows in units of k; as many rows, whatever the kind."""
  rng = np.random.default_rng(0)
  order = rng.permutation(len(rows))
  if kind in ("one class", "uneven", "tracks"):
    order = order[np.argsort(label[order], kind="stable")]
  if kind == "tracks":
    order = np.concatenate(
      [near_ones(rows, order[label[order] == c], k) for c in np.unique(label)]
    )
  unit = np.arange(len(rows)) // k
  if kind == "copies":
    order = order[unit]
    noise = 1e-2 * rng.standard_normal(rows.shape)
    rows = rows[order] * (1 + noise).astype(rows.dtype)
  else:
    rows = rows[order]
  if kind == "uneven":
    alone = label[order] % 2 == 1
    unit = np.where(alone, len(rows) + np.arange(len(rows)), unit)
  return Block(
    embedding=rows,
    embedding_norm=np.linalg.norm(rows.astype(np.float32), axis=1),
    label=label[order],
    example_id=np.arange(len(rows)),
    unit_id=unit,
  )


def near_ones(rows: np.ndarray, order: np.ndarray, k: int) -> np.ndarray:
  """The rows of one class so that k that follow each other are alike."""
  found = []
  way = rows[order].astype(np.float32)
  way /= np.linalg.norm(way, axis=1, keepdims=True)
  while order.size:
    near = np.argsort(-(way @ way[0]), kind="stable")[:k]
    found.append(order[near])
    order, way = np.delete(order, near), np.delete(way, near, axis=0)
  return np.concatenate(found)


def scores_of_auto(
  block: Block, data: dict[str, np.ndarray], plan: ReleasePlan
) -> list[str]:
  """Top-1 per epsilon, of heads of mean rows."""
  return [
    cell(
      train_head(
        block.embedding,
        block.label,
        num_classes=int(data["train_label"].max()) + 1,
        epsilon=epsilon,
        delta=plan.delta,
        unit_ids=block.unit_id,
        source=NoiseSource(seed),
      ).predict(data["test_embedding"])
      == data["test_label"]
      for seed in range(plan.num_draws)
    )
    for epsilon in plan.epsilons
  ]


def scores(
  block: Block, data: dict[str, np.ndarray], m: int | None, plan: ReleasePlan
) -> list[str]:
  """Top-1 per epsilon."""
  found: dict[float, list[np.ndarray]] = {e: [] for e in plan.epsilons}
  secret = summed(block, int(data["train_label"].max()) + 1, m)
  for out in release(secret, plan, NoiseSource(0), charge=lambda *_: None):
    head = one_step(out, OneStepOptimizer())
    logits = data["test_embedding"] @ head.kernel + head.bias
    found[out.statement.epsilon].append(
      logits.argmax(axis=1) == data["test_label"]
    )
  return [cell(rights) for rights in found.values()]


def cell(rights: Iterable[np.ndarray]) -> str:
  """Mean and spread of the shares of right answers, in percent."""
  top1 = [100 * right.mean() for right in rights]
  return f"{np.mean(top1):4.1f}±{np.std(top1):3.1f}"


def summed(block: Block, num_classes: int, m: int | None) -> SecretSum:
  grid = ClippedGradientGrid(
    num_classes=num_classes,
    feature_dim=block.embedding.shape[1],
    rows_per_unit=m or 1,
    clipped="row" if m else "unit",
  )
  return exact_clipped_sum(
    [block],
    grid,
    num_examples=len(block),
    chosen=choose_rows([block], m) if m else None,
    sizes=None if m else count_rows([block]),
  )


if __name__ == "__main__":
  main()
