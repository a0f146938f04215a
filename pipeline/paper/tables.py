"""Tables: one thing at a time changed in the paper's single step.

python -m oneshot_dp.pipeline.paper.tables FEATURES.npz
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
    exact = features.many_steps(Steps(optimizer=optimizer), [None])
    private = features.product(optimizer, _EPSILONS)
    yield f"one step, {optimizer}", private + exact
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
