"""All ways to train a head, a row each: what every door and receipt goes by."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  HeadConfig,
  OptimizerName,
  ReleaseOrder,
)
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.heads.least_squares.rule import LeastSquaresRule
from oneshot_dp.linear_dp.heads.least_squares.training import (
  LeastSquaresTrainer,
)
from oneshot_dp.linear_dp.heads.logistic.rule import Logistic
from oneshot_dp.linear_dp.heads.multi_step.rule import (
  MultiStepRule,
  planned_sampling,
)
from oneshot_dp.linear_dp.heads.multi_step.training import MultiStepTrainer
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.heads.whitened.training import WhitenedTrainer
from oneshot_dp.linear_dp.one_step.mechanism import OneStep
from oneshot_dp.linear_dp.one_step.trainer import OneStepTrainer
from oneshot_dp.linear_dp.trainer import (
  Mechanism,
  NoBar,
  Progress,
  Trainer,
  TrainingRows,
)


def _full_batches(config: HeadConfig, num_examples: int) -> None:
  del config, num_examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadKind:
  """A way to train heads.

  Attributes:
    methods: names of `--head` that lead to it; none is for comparisons only.
    mechanism: what its receipts state; reads those of its KIND.
    trainer: from the rows, the configs of the heads to be made of each release
      (one, where there is one method), and bars for people.
    takes_units: whether a privacy unit may have many rows.
    can_nest: whether heads of all ε can be made of nested releases.
    sampling: the random batches that a plan is about, by a config and n.
  """

  methods: tuple[str, ...]
  mechanism: type[Mechanism]
  trainer: Callable[[TrainingRows, Sequence[HeadConfig], Progress], Trainer]
  takes_units: bool = False
  can_nest: bool = False
  sampling: Callable[[HeadConfig, int], PoissonSampling | None] = _full_batches

  def order(self, asked: ReleaseOrder | None = None) -> ReleaseOrder:
    """The order of release asked for, or the cheapest that there is.

    Raises:
      InputError: nested releases of heads that share no noise.
    """
    if self.can_nest:
      return asked or "nested"
    if asked == "nested":
      raise InputError(
        "release='nested' is for heads of one step and least squares: each"
        f" head={self.methods[0]!r} has noise of its own; leave it out, or use"
        " --release independent."
      )
    return "independent"


KINDS = (
  HeadKind(
    methods=get_args(OptimizerName),
    mechanism=OneStep,
    trainer=OneStepTrainer,
    takes_units=True,
    can_nest=True,
  ),
  HeadKind(
    methods=("least-squares",),
    mechanism=LeastSquaresRule,
    trainer=LeastSquaresTrainer,
    can_nest=True,
  ),
  HeadKind(
    methods=("whitened",), mechanism=WhiteningRule, trainer=WhitenedTrainer
  ),
  HeadKind(
    methods=("multi-step",),
    mechanism=MultiStepRule,
    trainer=MultiStepTrainer,
    sampling=planned_sampling,
  ),
)
"""A NEW HEAD GOES HERE, and its name into `configs.head_config.MethodName`."""

METHODS = tuple(method for kind in KINDS for method in kind.methods)
_MECHANISMS = {
  each.KIND: each for each in (*(k.mechanism for k in KINDS), Logistic)
}


def head_kind(method: str) -> HeadKind:
  """The row of a method.

  Raises:
    InputError: there is none of that name.
  """
  for kind in KINDS:
    if method in kind.methods:
      return kind
  raise InputError(f"head={method!r} must be one of {', '.join(METHODS)}.")


def make_trainer(
  rows: TrainingRows, configs: Sequence[HeadConfig], progress: Progress = NoBar
) -> Trainer:
  """The way to train that configs name.

  Args:
    rows: the private rows.
    configs: the heads to make of each release; several only of one step.
    progress: bars for people.

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
  return kind.trainer(rows, configs, progress)


def mechanism_of(section: Mapping[str, Any]) -> Mechanism:
  """Reads a receipt's section about its mechanism.

  Raises:
    KeyError, TypeError, ValueError: it is of no mechanism that we know.
  """
  return _MECHANISMS[section["kind"]].from_json(section)
