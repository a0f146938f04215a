"""All ways to train a head, a row each: what every door and receipt goes by."""

from collections.abc import Mapping, Sequence
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.heads.least_squares.training import (
  LeastSquaresTrainer,
)
from oneshot_dp.linear_dp.heads.logistic.rule import Logistic
from oneshot_dp.linear_dp.heads.multi_step.training import MultiStepTrainer
from oneshot_dp.linear_dp.heads.whitened.training import WhitenedTrainer
from oneshot_dp.linear_dp.one_step.trainer import OneStepTrainer
from oneshot_dp.linear_dp.trainer import (
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

METHODS = tuple(method for kind in KINDS for method in kind.methods)
_MECHANISMS = {
  each.KIND: each for each in (*(k.mechanism for k in KINDS), Logistic)
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
  """The way to train that configs name; see `HeadTrainer`.

  Raises:
    InputError: what was asked makes no sense for these rows.
  """
  method = configs[0].head
  kind = head_kind(method)
  if not kind.takes_units:
    able = " or ".join(m for k in KINDS if k.takes_units for m in k.methods)
    if rows.max_rows_per_unit is not None:
      raise InputError(
        f"max_rows_per_unit={rows.max_rows_per_unit} is for heads of one step;"
        f" leave it out with head={method!r}."
      )
    if rows.has_units:
      raise InputError(
        f"head={method!r} has a guarantee per example, and the privacy unit of"
        f" these rows is {rows.privacy_unit!r}; use head {able}."
      )
  return kind(rows, configs, progress)


def mechanism_of(section: Mapping[str, Any]) -> Mechanism:
  """Reads a receipt's section about its mechanism.

  Raises:
    KeyError, TypeError, ValueError: it is of no mechanism that we know.
  """
  return _MECHANISMS[section["kind"]].from_json(section)
