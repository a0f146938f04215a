"""Which head, where the choice is left to us, and what to expect of it."""

import dataclasses
from typing import NamedTuple

from oneshot_dp.configs.head_config import (
  AUTO,
  HeadConfig,
  MethodName,
  called,
)
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.registry import head_kind
from oneshot_dp.linear_dp.statistics.class_moments import MAX_ROWS
from oneshot_dp.linear_dp.trainer import TrainingRows

PAPER: MethodName = "lamb"
"""The paper's single step."""
_POINTS = {80.0: "1 to 20", 10.0: "0 to 20"}
"""n/(K·σ) → by how many points of top-1 `auto` was ahead of `lamb` on features
of CIFAR-10, EuroSAT (whole and cut down) and digits, at ε from 0.25 to 8."""


class Choice(NamedTuple):
  """A head that is not "auto", and why it is that."""

  config: HeadConfig
  why: str


def choose_head(config: HeadConfig, rows: TrainingRows) -> Choice:
  """Settles "auto", by public facts alone.

  It is "whitened", or "lamb" where rows cannot have that.
  """
  head, why = config.head, "as asked"
  if head == PAPER:
    why = "the paper's single step"
  elif head == "auto" and (obstacle := _obstacle(rows)):
    head, why = PAPER, f"the paper's single step, as {obstacle}"
  elif head == "auto":
    head, why = AUTO, "the most accurate at nearly every size that was tried"
  return Choice(dataclasses.replace(config, head=head), why)


def in_a_line(choice: Choice, plan: ReleasePlan, rows: TrainingRows) -> str:
  """What was chosen and why, its cost, and that and the likely gain of another.

  All of it follows from n, K, the privacy unit and the plan, which are public.
  """
  head = choice.config.head
  cost = printable(plan.composed_epsilon)
  said = (
    f"head: {called(head)}, {choice.why}; costs epsilon {cost} at delta"
    f" {printable(plan.delta)}"
  )
  other = PAPER if head == AUTO else AUTO
  if other == AUTO and _obstacle(rows):
    return said
  instead = dataclasses.replace(
    plan, order=head_kind(other).order(), sampling=None
  )
  other_cost = printable(instead.composed_epsilon)
  costs = "as much" if other_cost == cost else f"epsilon {other_cost}"
  many = len(plan.epsilons) > 1
  if other == AUTO and many and plan.order == "nested":
    costs += ", or as much with sweep --release nested"
  sigma = max(plan.noise_multipliers.values())
  share = rows.num_examples / (rows.num_classes * sigma)
  points = next((p for least, p in _POINTS.items() if share >= least), None)
  at = f", at epsilon {printable(min(plan.epsilons))}," if many else ""
  gain = f" and{at} is likely no better, with so few rows of a class"
  if points:
    than = "less" if other == PAPER else "more"
    gain = f" and{at} is likely {points} points {than} accurate"
  if rows.has_units or not (other == PAPER or choice.config.is_one_step):
    gain = ""  # nobody compared them at many sizes
  name = "lamb (the paper's single step)" if other == PAPER else "auto"
  return f"{said}; {name} would cost {costs}{gain}"


def _obstacle(rows: TrainingRows) -> str | None:
  """Why these rows cannot have a whitened head."""
  if rows.num_examples > MAX_ROWS:
    return f"auto is for at most {MAX_ROWS:,} rows"
  return None
