"""The paper's tables and figures, with other numbers of steps beside its one.

    python -m oneshot_dp.pipeline.paper.experiments FEATURES.npz --picture PNG

Top-1 in % at δ=1e-06, on all CIFAR-10 features of ViT-Ti/16 (200 s of a core):

    one thing changed                ε=0.1    ε=1    ε=8    ε=∞
    one step, lamb                   85.77  85.49  85.55  85.46
    one step, adam                   85.77  85.49  85.55  85.46
    one step, momentum               84.74  85.12  85.22  85.24
    lamb, weights of 0.0001          47.67  48.58  48.55  48.54
    lamb, weights of 1               47.69  48.58  48.55  48.54
    adam, weights of 0.0001          84.96  85.68  85.65  85.46
    adam, weights of 1               83.09  83.58  83.48  83.40
    1 × 100 batches, lamb            86.59  89.14  90.13  91.13
    1 × 100 batches, adam            87.24  90.59  91.45  92.09
    1 × 100 batches, momentum        84.54  90.91  91.40  91.68
    10 × 1 batches, lamb             87.22  86.38  85.73  85.48
    10 × 1 batches, adam             88.13  89.67  89.63  89.67
    10 × 1 batches, momentum         88.82  89.57  89.52  89.55
    10 × 1 batches, momentum, EMA    88.17  88.86  88.82  88.82
    10 × 10 batches, lamb            87.19  90.57  91.39  91.63
    10 × 10 batches, adam            87.53  91.56  92.29  92.34
    10 × 10 batches, momentum        85.28  91.59  91.75  91.79
    10 × 10 batches, momentum, EMA   85.17  91.47  91.59  91.64
    auto (of this package)           89.66  92.16  92.83

    ε                                 0.05    0.1   0.25      1      4      8
    one step, lamb                   82.23  85.24  85.81  85.58  85.40  85.46
    auto                             88.59  89.48  90.71  92.16  92.88  92.83
    10 × 1 batches, momentum         87.19  88.82  89.42  89.57  89.55  89.52
    10 × 10 batches, momentum        78.94  85.28  89.81  91.59  91.66  91.75
    10 × 100 batches, momentum       76.82  82.19  86.92  91.13  92.08  92.23

    batches in an epoch, 2 epochs        1     10    100
    lamb, ε=0.1                      85.18  87.72  82.28
    adam, ε=0.1                      86.74  87.20  87.51
    momentum, ε=0.1                  84.60  87.86  83.93
    lamb, ε=1                        85.86  86.95  88.06
    adam, ε=1                        87.37  90.13  91.05
    momentum, ε=1                    85.16  89.41  91.17
    lamb, no noise                   85.46  86.45  91.29
    adam, no noise                   87.48  90.28  92.45
    momentum, no noise               85.26  89.50  92.06

"10 × 10" is 10 epochs of 10 Poisson batches each, and ε = ∞ is no noise. The
paper's trends: a single step loses little to noise, is as good at ε = 0.25 as
at 8, and starts from zero (LAMB changes only a part of other weights); what
many small batches gain without noise is lost at small ε. Unlike there, LAMB
does not lead, and more epochs help. Figure 4 needs ImageNet's ReaL labels: it
is not here.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from oneshot_dp.linear_dp.heads.one_step import OPTIMIZERS
from oneshot_dp.pipeline.paper.dp_sgd import Features, Steps

_CHANGED_EPSILONS = (0.1, 1.0, 8.0)
_EPSILONS = (0.05, 0.1, 0.25, 1.0, 4.0, 8.0)
_BATCHES = (1, 10, 100)


class _Line(NamedTuple):
  """A line of a table: what was trained, and accuracies in %."""

  name: str
  accuracies: list[float]


class _Plot(NamedTuple):
  """A table that is also drawn.

  Attributes:
    label: of the horizontal axis.
    places: on it, of the accuracies of a line.
    lines: makes the lines.
  """

  label: str
  places: Sequence[float]
  lines: Callable[[Features], Iterator[_Line]]


def main(features: Path, picture: Path | None = None) -> None:
  """Prints top-1 accuracies in % on PUBLIC features, and draws a PNG.

  Args:
    features: an npz, as `dp_sgd.Features` describes it.
    picture: the PNG to write.
  """
  loaded = Features.load(features)
  _print_changes(loaded)
  plots = [
    _Plot("ε", _EPSILONS, _lines_by_epsilon),
    _Plot("batches in an epoch, 2 epochs", _BATCHES, _lines_by_batches),
  ]
  figure = Figure(figsize=(12, 5), dpi=120, layout="constrained")
  for axes, plot in zip(figure.subplots(1, 2), plots, strict=True):
    print()
    _print_row(plot.label, [f"{place:g}" for place in plot.places])
    for name, accuracies in plot.lines(loaded):
      axes.plot(plot.places, accuracies, label=name, marker="o")
      _print_accuracies(name, accuracies)
    axes.set(xlabel=plot.label, ylabel="top-1, %", xscale="log")
    axes.legend(fontsize="small")
  if picture is not None:
    figure.savefig(picture, format="png")


def _print_changes(features: Features) -> None:
  names = [f"ε={epsilon:g}" for epsilon in _CHANGED_EPSILONS]
  _print_row("one thing changed", [*names, "ε=∞"])
  for name, accuracies in _lines_of_changes(features):
    _print_accuracies(name, accuracies)


def _print_accuracies(name: str, accuracies: Sequence[float]) -> None:
  _print_row(name, [f"{accuracy:.2f}" for accuracy in accuracies])


def _print_row(name: str, cells: Sequence[str]) -> None:
  shown = "".join(cell.rjust(7) for cell in cells)
  print(f"{name:31}{shown}", flush=True)


def _lines_of_changes(features: Features) -> Iterator[_Line]:
  """The paper's single step, and what differs from it in one thing."""
  for optimizer in OPTIMIZERS:
    private = features.top1_of_product(optimizer, _CHANGED_EPSILONS)
    without_noise = features.top1_of_steps(Steps(optimizer=optimizer), [None])
    yield _Line(f"one step, {optimizer}", private + without_noise)
  for name, steps in _changed_steps().items():
    yield _Line(name, features.top1_of_steps(steps, [*_CHANGED_EPSILONS, None]))
  yield _Line(
    "auto (of this package)",
    features.top1_of_product("auto", _CHANGED_EPSILONS),
  )


def _changed_steps() -> dict[str, Steps]:
  """By name: other weights to start from, then other numbers of steps."""
  changed = {}
  for optimizer in ("lamb", "adam"):
    for init in (1e-4, 1.0):
      changed[f"{optimizer}, weights of {init:g}"] = Steps(
        optimizer=optimizer, init=init
      )
  for epochs, batches in ((1, _BATCHES[-1]), (10, 1), (10, 10)):
    for optimizer in OPTIMIZERS:
      name = f"{epochs} × {batches} batches, {optimizer}"
      steps = Steps(optimizer=optimizer, epochs=epochs, batches=batches)
      changed[name] = steps
      if optimizer == "momentum" and epochs > 1:
        changed[f"{name}, EMA"] = Steps(
          optimizer=optimizer, epochs=epochs, batches=batches, ema=0.9
        )
  return changed


def _lines_by_epsilon(features: Features) -> Iterator[_Line]:
  yield _Line("one step, lamb", features.top1_of_product("lamb", _EPSILONS))
  yield _Line("auto", features.top1_of_product("auto", _EPSILONS))
  for batches in _BATCHES:
    steps = Steps(optimizer="momentum", epochs=10, batches=batches)
    accuracies = features.top1_of_steps(steps, _EPSILONS)
    yield _Line(f"10 × {batches} batches, momentum", accuracies)


def _lines_by_batches(features: Features) -> Iterator[_Line]:
  for epsilon in (0.1, 1.0, None):
    noise = "no noise" if epsilon is None else f"ε={epsilon:g}"
    for optimizer in OPTIMIZERS:
      accuracies = []
      for batches in _BATCHES:
        steps = Steps(optimizer=optimizer, epochs=2, batches=batches)
        accuracies += features.top1_of_steps(steps, [epsilon])
      yield _Line(f"{optimizer}, {noise}", accuracies)


if __name__ == "__main__":
  parser = argparse.ArgumentParser(
    description="Prints top-1 accuracies in percent on PUBLIC features."
  )
  parser.add_argument("features", type=Path, help="npz of public features")
  parser.add_argument("--picture", type=Path, help="PNG to draw")
  arguments = parser.parse_args()
  main(arguments.features, arguments.picture)
