"""All ways to train a head, a row each: what every door and receipt goes by."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.heads.least_squares.training import (
  LeastSquaresTrainer,
)
from oneshot_dp.linear_dp.heads.logistic import Logistic
from oneshot_dp.linear_dp.heads.multi_step.training import MultiStepTrainer
from oneshot_dp.linear_dp.heads.whitened.training import WhitenedTrainer
from oneshot_dp.linear_dp.one_step.trainer import OneStep, OneStepTrainer
from oneshot_dp.linear_dp.trainer import (
  AS_STORED,
  ROW,
  HeadTrainer,
  Mechanism,
  NoBar,
  Progress,
  Trainer,
  TrainingRows,
)

KINDS: tuple[type[HeadTrainer], ...] = (
  OneStepTrainer,
  LeastSquaresTrainer,
  WhitenedTrainer,
  MultiStepTrainer,
)
"""A NEW HEAD GOES HERE, and its name into `configs.head_config.MethodName`."""

HELD_OUT_PERCENT = 10
"""About so many rows are held out where a head is chosen."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen(Mechanism):
  """How a head was chosen among several; see `heads.chosen`.

  Attributes:
    noise_multiplier: σ of all releases together.
    candidates: methods that were looked at.
    noisy_counts: how often each was right on rows held out, with noise; of
      units, whose rows share in one count.
    chosen: what the head was made by: the first of the largest count.
    clipped: "row", or "whole unit".
  """

  KIND = "chosen"
  num_examples: int
  feature_dim: int
  num_classes: int
  noise_multiplier: float
  candidates: tuple[str, ...]
  noisy_counts: tuple[float, ...]
  chosen: Mechanism
  clipped: str = ROW

  @classmethod
  def from_json(cls, section: Mapping[str, Any]) -> Self:
    chosen = mechanism_of(section["chosen"])
    found = super().from_json({**section, "chosen": chosen})
    if len(found.candidates) != len(found.noisy_counts):
      raise ValueError("there is not one count for each candidate")
    least = found.release_noise_multiplier
    if getattr(found.chosen, "noise_multiplier", least) < least:
      raise ValueError(f"a candidate has less noise than {least}")
    if (section["chosen"]["clipped"] == ROW) != (found.clipped == ROW):
      raise ValueError("the head and the counts are not of the same unit")
    return found

  @property
  def release_noise_multiplier(self) -> float:
    """√G·σ: of each of the G releases that candidates were made of."""
    kinds = {head_kind(name) for name in self.candidates}
    return self.noise_multiplier * math.sqrt(len(kinds))

  def as_json(self) -> dict[str, Any]:
    chosen = self.chosen.as_json()
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanisms on the rows trained on, one for candidates"
      " that share a release, and one on the counts of right answers of all"
      " candidates on the rows held out; each row is in one part",
      "statistic": "those of the candidates, and c + round(noise) on the counts"
      " c, of which the first of the largest chooses",
      "sensitivity": "those of the candidates, and the square root of their"
      " number, doubled for REPLACE_ONE. All amounts to one Gaussian mechanism"
      " of noise_multiplier, whichever part a row is in",
      **fields,
      "candidates": list(self.candidates),
      "noisy_counts": list(self.noisy_counts),
      "chosen": chosen,
      "input": chosen.get("input", AS_STORED),
      "release_noise_multiplier": self.release_noise_multiplier,
      "held_out_percent": HELD_OUT_PERCENT,
      "rows_per_unit": 1,
    }

  def in_words(self, training: Mapping[str, Any]) -> str:
    held_out = "rows" if self.clipped == ROW else "privacy units"
    return (
      f"the best of {', '.join(self.candidates)}, by noisy counts of right"
      f" answers on about {HELD_OUT_PERCENT} % of the {held_out}, which none"
      f" was trained on; it is {training['head']}:"
      f" {self.chosen.in_words(training)}"
    )

  def training(self) -> dict[str, Any]:
    best = self.noisy_counts.index(max(self.noisy_counts))
    return {**self.chosen.training(), "head": self.candidates[best]}


METHODS = tuple(method for kind in KINDS for method in kind.methods)
_MECHANISMS = {
  each.KIND: each for each in (*(k.mechanism for k in KINDS), Logistic, Chosen)
}


def head_kind(method: str) -> type[HeadTrainer]:
  """The row of a method; an InputError if there is none of that name."""
  for kind in KINDS:
    if method in kind.methods:
      return kind
  names = ", ".join((*METHODS, "auto"))
  raise InputError(f"head={method!r} must be one of {names}.")


def make_trainer(
  rows: TrainingRows, configs: Sequence[HeadConfig], progress: Progress = NoBar
) -> Trainer:
  """The way to train that configs name; see `HeadTrainer`."""
  method = configs[0].head
  kind = head_kind(method)
  if rows.max_rows_per_unit is not None and kind is not OneStepTrainer:
    raise InputError(
      f"max_rows_per_unit={rows.max_rows_per_unit} is for heads of one step:"
      " use head lamb, or leave it out."
    )
  if rows.start is not None and not kind.takes_start:
    able = " or ".join(m for k in KINDS if k.takes_start for m in k.methods)
    raise InputError(
      f"start is for head {able}, not for {method!r}; leave it out."
    )
  return kind(rows, configs, progress)


def grouped_by_release(
  configs: Sequence[HeadConfig],
) -> list[list[HeadConfig]]:
  """Heads that are made of the same releases, those of one step first."""
  groups: dict[type[Mechanism], list[HeadConfig]] = {OneStep: []}
  for config in configs:
    groups.setdefault(head_kind(config.head).mechanism, []).append(config)
  return [group for group in groups.values() if group]


def mechanism_of(section: Mapping[str, Any]) -> Mechanism:
  """A receipt's mechanism; KeyError, TypeError or ValueError: it has none."""
  return _MECHANISMS[section["kind"]].from_json(section)
