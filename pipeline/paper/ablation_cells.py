"""What an ablation tries: one thing at a time changed from the paper's step."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, get_args

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  AblationAxis,
  HeadConfig,
  MinibatchName,
  StepsConfig,
)

BASE = "base"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """One line of the table: what is changed ("base": nothing), and to what.

  `cache` is the place of the cache, where several resolutions are given.
  """

  axis: str
  setting: str
  head: HeadConfig
  cache: int = 0

  @property
  def name(self) -> str:
    """What the directories of its heads begin with."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", f"{self.axis}-{self.setting}")
    return words.strip("-")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices:
  """What is tried, one thing at a time."""

  axes: tuple[AblationAxis, ...] = get_args(AblationAxis)
  """What to change."""
  init_scales: tuple[float, ...] = (1e-4, 1e-2, 1.0)
  """Standard deviations of the random weights to start from; LeCun's is tried
  besides."""
  epochs: tuple[int, ...] = (10,)
  """Passes over the rows, of more than one."""
  batch_sizes: tuple[int, ...] | None = None
  """Rows of a step, on average. Each is tried as Poisson samples and as a
  partition of all rows. Default: a tenth of the rows."""
  clip_norms: tuple[float, ...] = (0.1, 10.0)
  """Largest norm of one example's gradient."""
  learning_rate: float | None = None
  """Learning rate of the heads whose accuracy depends on it: several steps, or
  random weights to start from. Default: a rule of n, K and the noise."""


def cells(choices: Choices, caches: Sequence[str]) -> list[Cell]:
  """The lines of the table, the base first; caches are named resolutions."""
  base = dataclasses.replace(_PAPERS, learning_rate=choices.learning_rate)

  def cell(axis: str, setting: str, cache: int = 0, **changes: Any) -> Cell:
    steps = dataclasses.replace(base, **changes)
    return Cell(axis=axis, setting=setting, head=_head(steps), cache=cache)

  tried: dict[AblationAxis, list[tuple[str, dict[str, Any]]]] = {
    "optimizer": [(name, {"optimizer": name}) for name in ("adam", "momentum")],
    "init": [
      *(
        (f"normal {scale:g}", {"init": "normal", "init_scale": scale})
        for scale in choices.init_scales
      ),
      ("lecun", {"init": "lecun"}),
    ],
    "epochs": [(f"{epochs}", {"epochs": epochs}) for epochs in choices.epochs],
    "batch": [
      (
        f"{size}, {sampling}, {epochs} epoch{'s' if epochs > 1 else ''}",
        {"batch_size": size, "sampling": sampling, "epochs": epochs},
      )
      for size in choices.batch_sizes or ()
      for epochs in (1, *choices.epochs)
      for sampling in get_args(MinibatchName)
    ],
    "clip": [
      (f"{clip:g}", {"l2_clip_norm": clip}) for clip in choices.clip_norms
    ],
  }
  found = [cell(BASE, "lamb, zero, 1 epoch, full batch, clip 1")]
  found += [
    cell(axis, setting, **changes)
    for axis, settings in tried.items()
    if axis in choices.axes
    for setting, changes in settings
  ]
  found += [
    cell("resolution", name, cache=i) for i, name in enumerate(caches) if i > 0
  ]
  if len(found) == 1:
    raise InputError("there is nothing to change: give axes, or other caches.")
  for i, one in enumerate(found):
    for other in found[:i]:
      _check_different(one, other)
  return found


def _check_different(one: Cell, other: Cell) -> None:
  """Refuses what would be paid for twice, or overwrite the other's heads."""
  same = (one.head, one.cache) == (other.head, other.cache)
  # Directories of one name, where upper and lower case are the same.
  if same or one.name.lower() == other.name.lower():
    raise InputError(
      f"{one.axis} {one.setting!r} is the same as {other.axis}"
      f" {other.setting!r}: leave one of them out."
    )


_PAPERS = StepsConfig(
  optimizer="lamb",
  epochs=1,
  l2_clip_norm=1.0,
  loss="sigmoid",
  initial_bias=-10.0,
  unit_norm=False,
)


def _head(steps: StepsConfig) -> HeadConfig:
  """The exact single step where it will do, the general path otherwise."""
  if steps.init != "zero" or steps.epochs != 1 or steps.batch_size is not None:
    return HeadConfig(head="multi-step", steps=steps)
  return HeadConfig(
    head=steps.optimizer, l2_clip_norm=steps.l2_clip_norm or 1.0
  )
