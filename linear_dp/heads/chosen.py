r"""The best of several heads, by noisy counts on rows that none was trained on.

A row is held out, or trained on, by its own content alone; all rows of a unit
are, by its id. Where they are held out the trainers see zeros in their place,
and n stays what it is, so each row, or unit, touches one of two things:

- *the heads*: G independent releases, each at √G·σ, one for heads that share
  theirs; together they are one Gaussian mechanism of σ;
- *the counts* of right answers of the m heads on rows held out, as one vector
  of sensitivity √m with noise of σ·√m, made of heads that are fixed by then.
  Each of the k rows of a unit counts for 1/k, rounded down to steps of 1/B.

*Formal guarantee.* With nothing in a row's place, which is trained on as a row
of zeros and counts for nothing, either the heads are those of the same data and
the counts one Gaussian mechanism of σ, or the counts are post-processing of
heads that are one: (ε, δ) for all heads, counts and the choice together. With
another in its place, each part is changed by at most two rows, or each by one:
noise of both is doubled, and 1/4 + 1/4 < 1.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.events import changed_units
from oneshot_dp.linear_dp.accounting.gaussian import epsilon_of
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.heads.held_out import COUNTS, HeldOutRows
from oneshot_dp.linear_dp.heads.registry import (
  Chosen,
  grouped_by_release,
  make_trainer,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.noisy_counts import with_noise
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.whole_units import UnitSizes, count_rows
from oneshot_dp.linear_dp.trainer import (
  ROW,
  ROWS_ARE_CLIPPED,
  WHOLE,
  Charging,
  NoBar,
  OnRelease,
  Progress,
  Released,
  Resumable,
  TrainedHead,
  Trainer,
  TrainingRows,
  disk_of,
  unseen,
)


class ChoosingTrainer(Trainer):
  """Trains every candidate on one part of the rows, and gives the best.

  `configs` are the candidates; `held_out` says of each row, in the order of a
  pass, whether it is held out, if it is not of zeros: a function of that row
  alone, or of its `unit_id`.

  InputError: fewer than two candidates, or random batches.
  """

  def __init__(
    self,
    rows: TrainingRows,
    configs: Sequence[HeadConfig],
    held_out: Bool[np.ndarray, " n"],
    progress: Progress = NoBar,
  ):
    if len(configs) < 2:
      raise InputError("give two heads or more to choose from.")
    if any(config.steps.sampling for config in configs):
      raise InputError("heads of random batches cannot be chosen from.")
    self._rows = rows
    self._held_out = HeldOutRows(rows=rows, secret_held_out=held_out)
    self._progress = progress
    self._sizes: UnitSizes | None = None
    self.facts = {
      **ROWS_ARE_CLIPPED,
      "clipped": WHOLE if rows.has_units else ROW,
      "candidates": [config.settings() for config in configs],
    }
    self._trainers = [
      make_trainer(self._held_out.trained_on(), group, progress)
      for group in grouped_by_release(configs)
    ]

  def read(self) -> None:
    """See `Trainer`."""
    self._held_out.share()
    if self._rows.has_units:
      self._sizes = count_rows(self._rows.blocks(), self._rows.hosts)
    for trainer in self._trainers:
      trainer.read()

  def notes(self, plan: ReleasePlan) -> Iterable[str]:
    """See `Trainer`."""
    for part in self._parts(plan).values():
      for trainer in self._trainers:
        yield from trainer.notes(part)

  def resumes_by(self, plan: ReleasePlan) -> Resumable:
    """See `Trainer`."""
    each = [
      trainer.resumes_by(part)
      for part in self._parts(plan).values()
      for trainer in self._trainers
    ]
    counts = disk_of(len(plan.epsilons), len(self.facts["candidates"]))
    of_each = sum(inner.num_bytes for inner in each)
    return Resumable(
      num_steps=plan.num_draws * sum(inner.num_steps for inner in each),
      num_bytes=plan.num_draws * (of_each + counts),
      settings={
        "training": self.facts["candidates"],
        "mechanisms": [inner.settings for inner in each],
      },
    )

  def release(
    self,
    plan: ReleasePlan,
    source: NoiseSource,
    charge: Charging,
    on_release: OnRelease = unseen,
  ) -> Iterator[TrainedHead]:
    """See `Trainer`, and the module for what all of it guarantees."""
    parts = self._parts(plan)
    charge(plan, source)
    for draw in range(plan.num_draws):
      for epsilon, part in parts.items():
        heads = [
          head
          for trainer in self._trainers
          for head in trainer.release(part, source, _is_paid, on_release)
        ]
        sigma = plan.noise_multipliers[epsilon]
        counts = self._noisy_counts(heads, sigma, plan, source, on_release)
        best = heads[counts.index(max(counts))]
        yield dataclasses.replace(
          best,
          statement=PrivacyStatement.of_plan(
            plan, epsilon, source, sensitivity=1.0, noise_sd=sigma
          ),
          mechanism=Chosen(
            num_examples=self._rows.num_examples,
            feature_dim=self._rows.feature_dim,
            num_classes=self._rows.num_classes,
            noise_multiplier=sigma,
            candidates=tuple(head.settings["head"] for head in heads),
            noisy_counts=tuple(counts),
            chosen=best.mechanism,
            clipped=self.facts["clipped"],
          ),
          plan=plan,
          draw=draw,
        )

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """Raises: without noise there is nothing to pay for a choice with."""
    raise InputError("a choice is not made without noise.")

  def _parts(self, plan: ReleasePlan) -> dict[float, ReleasePlan]:
    """ε → what each group of candidates is trained by: noise of √G·σ."""
    if plan.order != "independent":
      raise InputError(f"order={plan.order!r}: choices share no noise.")
    return {
      epsilon: _plan_of(sigma * math.sqrt(len(self._trainers)), plan)
      for epsilon, sigma in plan.noise_multipliers.items()
    }

  def _noisy_counts(
    self,
    heads: Sequence[TrainedHead],
    sigma: float,
    plan: ReleasePlan,
    source: NoiseSource,
    on_release: OnRelease,
  ) -> list[float]:
    secret = self._held_out.count([head.head for head in heads], self._sizes)
    steps = GRID_RADIUS if self._sizes else 1
    sigma *= changed_units(plan.neighboring_relation)
    noisy, _, _ = with_noise(secret, sigma, source, steps)
    counts = noisy / steps
    on_release(
      Released(
        name=COUNTS, value=counts, noise_multiplier=sigma, grid_step=1 / steps
      )
    )
    return counts.tolist()


def _plan_of(sigma: float, plan: ReleasePlan) -> ReleasePlan:
  """One release of at least this noise multiplier."""
  # More than the roundings of ε take off.
  epsilon = epsilon_of(sigma * (1 + 1e-6), plan.delta)
  part = dataclasses.replace(plan, epsilons=(epsilon,), num_draws=1)
  assert part.noise_multipliers[epsilon] >= sigma
  return part


def _is_paid(*_: Any) -> None:
  """The whole was charged at once."""
