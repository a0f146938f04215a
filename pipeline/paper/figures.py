"""Figures: accuracy against ε, and against the number of batches.

python -m oneshot_dp.pipeline.paper.figures FEATURES.npz --picture PNG
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
  print(f"\n{what:30}" + "".join(f"{place:>8g}" for place in places))


def _line(
  axes: Axes, name: str, places: Sequence[float | int], top1: Sequence[float]
) -> None:
  axes.plot(places, top1, label=name, marker="o")
  print(f"{name:30}" + "".join(f"{a:>8.2f}" for a in top1), flush=True)


if __name__ == "__main__":
  tyro.cli(main)
