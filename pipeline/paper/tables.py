"""Tables: one thing at a time changed in the paper's single step.

    python -m oneshot_dp.pipeline.paper.tables FEATURES.npz

On all CIFAR-10 features of ViT-Ti/16 (100 s of one core):

    top-1 in %, δ=1e-06                     ε=0.1      ε=1      ε=8 no noise
    one step, lamb                          85.77    85.49    85.55    85.46
    one step, adam                          85.77    85.49    85.55    85.46
    one step, momentum                      84.74    85.12    85.22    85.24
    one step, lamb, weights of 0.0001       47.67    48.58    48.55    48.54
    one step, lamb, weights of 1            47.69    48.58    48.55    48.54
    one step, adam, weights of 0.0001       84.96    85.68    85.65    85.46
    one step, adam, weights of 1            83.09    83.58    83.48    83.40
    1 × 100 batches, lamb                   86.59    89.14    90.13    91.13
    1 × 100 batches, adam                   87.24    90.59    91.45    92.09
    1 × 100 batches, momentum               84.54    90.91    91.40    91.68
    10 × 1 batches, lamb                    87.22    86.38    85.73    85.48
    10 × 1 batches, adam                    88.13    89.67    89.63    89.67
    10 × 1 batches, momentum                88.82    89.57    89.52    89.55
    10 × 1 batches, momentum, EMA 0.9       88.17    88.86    88.82    88.82
    10 × 10 batches, lamb                   87.19    90.57    91.39    91.63
    10 × 10 batches, adam                   87.53    91.56    92.29    92.34
    10 × 10 batches, momentum               85.28    91.59    91.75    91.79
    10 × 10 batches, momentum, EMA 0.9      85.17    91.47    91.59    91.64
    auto (of this package)                  89.66    92.16    92.83

"10 × 10" is 10 epochs of 10 Poisson batches each. As in the paper, a single
step loses little to noise, and starts from zero: LAMB changes but a part of
other weights. Unlike there, LAMB brings nothing, and more epochs do.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import tyro

from oneshot_dp.pipeline.paper.dp_sgd import OPTIMIZERS, Features, Steps

_EPSILONS = 0.1, 1.0, 8.0


def main(features: tyro.conf.Positional[Path]) -> None:
  """Prints top-1 in % on PUBLIC features, an npz of `dp_sgd.Features`."""
  found = Features.of(features)
  names = [f"ε={epsilon:g}" for epsilon in _EPSILONS]
  print(_line("top-1 in %, δ=1e-06", [*names, "no noise"]))
  for name, accuracies in _lines(found):
    print(_line(name, [f"{each:.2f}" for each in accuracies]), flush=True)


def _line(name: str, cells: Sequence[str]) -> str:
  return f"{name:36}" + "".join(f"{cell:>9}" for cell in cells)


def _lines(features: Features) -> Iterator[tuple[str, list[float]]]:
  for optimizer in OPTIMIZERS:
    found = features.product(optimizer, _EPSILONS)
    found += features.many_steps(Steps(optimizer=optimizer), [None])
    yield f"one step, {optimizer}", found
  tried = {
    f"one step, {optimizer}, weights of {init:g}": Steps(
      optimizer=optimizer, init=init
    )
    for optimizer in OPTIMIZERS[:2]
    for init in (1e-4, 1.0)
  }
  for epochs, batches in (1, 100), (10, 1), (10, 10):
    for optimizer in OPTIMIZERS:
      for ema in 0.0, 0.9 if optimizer == "momentum" and epochs > 1 else 0.0:
        name = f"{epochs} × {batches} batches, {optimizer}"
        tried[name + ", EMA 0.9" * (ema > 0)] = Steps(
          optimizer=optimizer, epochs=epochs, batches=batches, ema=ema
        )
  for name, steps in tried.items():
    yield name, features.many_steps(steps, [*_EPSILONS, None])
  yield "auto (of this package)", features.product("auto", _EPSILONS)


if __name__ == "__main__":
  tyro.cli(main)
