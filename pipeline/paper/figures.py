"""Figures: accuracy against ε, and against the number of batches.

    python -m oneshot_dp.pipeline.paper.figures FEATURES.npz --picture PNG

On all CIFAR-10 features of ViT-Ti/16 (100 s of one core):

    ε (δ=1e-06)                      0.05    0.1   0.25      1      4      8
    one step, lamb                  82.23  85.24  85.81  85.58  85.40  85.46
    auto                            88.59  89.48  90.71  92.16  92.88  92.83
    10 × 1 batches, momentum        87.19  88.82  89.42  89.57  89.55  89.52
    10 × 10 batches, momentum       78.94  85.28  89.81  91.59  91.66  91.75
    10 × 100 batches, momentum      76.82  82.19  86.92  91.13  92.08  92.23

    batches in an epoch, 2 epochs       1     10    100
    lamb, ε=0.1                     85.18  87.72  82.28
    adam, ε=0.1                     86.74  87.20  87.51
    momentum, ε=0.1                 84.60  87.86  83.93
    lamb, ε=1                       85.86  86.95  88.06
    adam, ε=1                       87.37  90.13  91.05
    momentum, ε=1                   85.16  89.41  91.17
    lamb, no noise                  85.46  86.45  91.29
    adam, no noise                  87.48  90.28  92.45
    momentum, no noise              85.26  89.50  92.06

The paper's trends: a single step is as good at ε = 0.25 as at 8, and what many
small batches gain without noise is lost at small ε. LAMB does not lead, as it
does there. Its figure 4 needs ImageNet's ReaL labels, which this does not do.
"""

from collections.abc import Sequence
from pathlib import Path

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oneshot_dp.pipeline.paper.dp_sgd import OPTIMIZERS, Features, Steps

_EPSILONS = 0.05, 0.1, 0.25, 1.0, 4.0, 8.0
_BATCHES = 1, 10, 100


def main(
  features: tyro.conf.Positional[Path], *, picture: Path | None = None
) -> None:
  """Prints top-1 in % on PUBLIC features, of `dp_sgd.Features`; draws a PNG."""
  found = Features.of(features)
  figure = Figure(figsize=(12, 5), dpi=120, layout="constrained")
  left, right = figure.subplots(1, 2)
  _start(left, "ε (δ=1e-06)", _EPSILONS)
  _line(left, "one step, lamb", _EPSILONS, found.product("lamb", _EPSILONS))
  _line(left, "auto", _EPSILONS, found.product("auto", _EPSILONS))
  for batches in 1, 10, 100:
    steps = Steps(optimizer="momentum", epochs=10, batches=batches)
    name = f"10 × {batches} batches, momentum"
    _line(left, name, _EPSILONS, found.many_steps(steps, _EPSILONS))
  _start(right, "batches in an epoch, 2 epochs", _BATCHES)
  for epsilon in 0.1, 1.0, None:
    for optimizer in OPTIMIZERS:
      accuracies = []
      for batches in _BATCHES:
        steps = Steps(optimizer=optimizer, epochs=2, batches=batches)
        accuracies += found.many_steps(steps, [epsilon])
      name = f"{optimizer}, {f'ε={epsilon:g}' if epsilon else 'no noise'}"
      _line(right, name, _BATCHES, accuracies)
  if picture:
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.savefig(picture, format="png")


def _start(axes: Axes, what: str, places: Sequence[float | int]) -> None:
  axes.set(xlabel=what, ylabel="top-1, %", xscale="log")
  print(f"\n{what:30}" + "".join(f"{place:>7g}" for place in places))


def _line(
  axes: Axes, name: str, places: Sequence[float | int], top1: Sequence[float]
) -> None:
  axes.plot(places, top1, label=name, marker="o")
  print(f"{name:30}" + "".join(f"{a:>7.2f}" for a in top1), flush=True)


if __name__ == "__main__":
  tyro.cli(main)
