"""Trains private heads, one for each ε, at the cost of the largest ε."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadName, HeadOptions
from oneshot_dp.linear_dp.accounting import epsilon_of, mu_squared_from_epsilon
from oneshot_dp.linear_dp.heads.contract import HeadResult, HeadState
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.heads.self_training import (
  CHOICE_SHARE,
  SelfTrainer,
  choose_head,
)
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums, Release
from oneshot_dp.linear_dp.rows import Rows

_MAX_WEIGHTS = 2**31 - 1
_MAX_EPSILONS = 1000
"""Of one run: a receipt has room for the releases of so many nested heads."""
_MIN_SHARE_OF_STEP = 1e-6
_MIN_MU_SQUARED = 2.0**-36
"""How far apart the μ² of one ε and the next must be, relative to the largest
and absolutely: even the noise of the smallest share of such a step stays below
`noise.MAX_SD`."""

# Rows of each class, in standard deviations of the noise, by README's tables of
# two sets of ten classes: of rows alone no head below the larger number reached
# 70 %, and below the smaller one no head 26 %.
LITTLE_BETTER_THAN_CHANCE = 3.0
_WEAK = 12.0

# What precedes the name of a statistic in the arrays that a head keeps.
_ESTIMATE = "estimate/"
_PRECISION = "precision/"

Estimates = dict[str, tuple[np.ndarray, float]]
"""Statistic → the mean of all that was released of it, and its σ⁻²."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainedHead:
  """A head, and everything that a receipt says about how it was made.

  Attributes:
    head: the weights.
    name: the kind of head, a key of `HEADS`.
    epsilon: ε of all releases so far; None for a baseline.
    delta: δ of all releases so far; None for a baseline.
    draw: which of several heads with one ε this is, from 0.
    mu_squared: what all releases so far cost together, at most; None for a
      baseline.
    releases: all so far, with those of the head that it continues.
    state: what a head with a larger ε continues from, all public: estimates of
      statistics under "estimate/NAME/ID", their precisions under
      "precision/NAME/ID", and the arrays of `HeadState`.
    options: as receipts state them; of a head with public unlabeled rows, also
      whether it is the one that learned from them ("self_trained").
    noise_source: where the random bits came from, as receipts state it.
    private: False for a baseline, or if the noise is that of a seed.
  """

  head: LinearHead
  name: HeadName
  epsilon: float | None = None
  delta: float | None = None
  draw: int = 0
  mu_squared: float | None = None
  releases: tuple[Release, ...] = ()
  state: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  options: Mapping[str, Any]
  noise_source: str
  private: bool


def cost(
  epsilons: Sequence[float],
  delta: float,
  spent_mu_squared: Fraction | float = 0.0,
) -> Fraction:
  """Computes the μ² to charge before training one head for each ε.

  Heads of one run are nested: together they cost what the largest ε costs, less
  what was spent on the head that they continue.

  Args:
    epsilons: of the heads, in any order.
    delta: of each head.
    spent_mu_squared: μ² of the head that they continue; 0 if there is none.

  Returns:
    The exact difference in μ².

  Raises:
    InputError: an ε is not a guarantee, is given twice, or adds nothing, or too
      little, to what is below it.
  """
  # Two heads of one ε would need a difference of μ² of 0, at which noise is
  # infinite.
  if not epsilons or len(set(epsilons)) != len(epsilons):
    raise InputError(
      f"epsilons={[*epsilons]}: give one or more, without duplicates."
    )
  if len(epsilons) > _MAX_EPSILONS:
    raise InputError(
      f"{len(epsilons):,} epsilons: give at most {_MAX_EPSILONS:,}."
    )
  ascending = sorted(epsilons)
  budgets = [mu_squared_from_epsilon(epsilon, delta) for epsilon in ascending]
  spent = float(spent_mu_squared)
  # Noise is rounded up, so a head may have a little less than its ε allows.
  if budgets[0] <= spent * (1 + 1e-10):
    spent_epsilon = epsilon_of(spent, delta)
    raise InputError(
      f"epsilon={ascending[0]:g} must be larger than that of the head to"
      f" continue, {spent_epsilon:.4g} at delta={delta:g}."
    )
  # Each difference is split up further, into the steps of a head and less. What
  # is too small for the sampler is refused here, before anything is charged.
  smallest_step = max(_MIN_SHARE_OF_STEP * budgets[-1], _MIN_MU_SQUARED)
  for smaller, larger in itertools.pairwise([spent, *budgets]):
    if larger - smaller < smallest_step:
      raise InputError(
        f"epsilons={ascending}: one is too small, or too near to what is below"
        " it, for noise that int64 has room for: leave it out."
      )
  # Exact, as the ledger adds fractions: the parent's charge and this one
  # together are the μ² of the largest ε.
  return Fraction(budgets[-1]) - Fraction(spent_mu_squared)


def check_plan(
  *,
  head: str,
  n: int,
  feature_dim: int,
  num_classes: int,
  options: HeadOptions,
  parent_head: TrainedHead | None = None,
) -> None:
  """Refuses what no head can be trained from, by public facts alone.

  Args:
    head: the name of the head.
    n: the number of private rows.
    feature_dim: d.
    num_classes: K.
    options: settings of the head.
    parent_head: the head to continue, if there is one.

  Raises:
    InputError: the first thing that is wrong.
  """
  if head not in HEADS:
    raise InputError(f"head={head!r} must be one of {', '.join(HEADS)}.")
  # Only what was asked for: False and None are the defaults, which every head
  # has.
  given = {name: value for name, value in options.as_json().items() if value}
  if given and not HEADS[head].accepts_options:
    names = " and ".join(name.removesuffix("_sha256") for name in given)
    able = [repr(name) for name, spec in HEADS.items() if spec.accepts_options]
    raise InputError(
      f"{names} is for head {' or '.join(able)}, not for {head!r}; leave it"
      " out."
    )
  if n < 1:
    raise InputError("there are no rows to train on: choose another part.")
  if num_classes * feature_dim > _MAX_WEIGHTS:
    raise InputError(
      f"{num_classes} classes of {feature_dim} features are too many weights:"
      " use a smaller embedding."
    )
  if parent_head is not None:
    _check_continues(parent_head, head, given)


def _check_continues(
  parent_head: TrainedHead, head: str, given: Mapping[str, Any]
) -> None:
  """Refuses a head that this kind, with the given options, cannot continue."""
  # A parent and its successor share estimates and state, so they must be of one
  # kind, with the same options.
  if parent_head.mu_squared is None:
    raise InputError(
      "a baseline has no budget to continue from: leave out --from."
    )
  if parent_head.name != head:
    raise InputError(
      f"--from needs the same kind of head: give --head {parent_head.name}."
    )
  unlabeled = parent_head.options.get("unlabeled_sha256")
  if unlabeled and given.get("unlabeled_sha256") != unlabeled:
    raise InputError(
      "the head to continue had public unlabeled rows: give the same ones again"
      " (--unlabeled)."
    )
  if not given.items() <= dict(parent_head.options).items():
    raise InputError(
      f"the head to continue has {parent_head.options}, not {given}."
    )
  HeadState.from_arrays(parent_head.state)  # refuses what it cannot read


def describe_few_rows(rows_of_class: float, noise_multiplier: float) -> str:
  """Says that heads will be weak if so few rows are known to make them so.

  >>> describe_few_rows(400.0, 4.0)
  ''
  >>> describe_few_rows(30.0, 4.0).partition(": ")[2]
  'heads will be weak'

  Args:
    rows_of_class: n/K, of public numbers. A warning that followed from the true
      number of rows of a class, or of units, would give it away.
    noise_multiplier: σ, the noise in rows.

  Returns:
    What there is and what to expect; "" where there are rows enough.
  """
  if rows_of_class >= _WEAK * noise_multiplier:
    return ""
  expected = "will be weak"
  if rows_of_class < LITTLE_BETTER_THAN_CHANCE * noise_multiplier:
    expected = "will be little better than chance"
  return (
    f"about {rows_of_class:.3g} rows of each class, and noise as large as"
    f" {noise_multiplier:.3g} rows: heads {expected}"
  )


def train(
  rows: Rows,
  *,
  head: HeadName,
  epsilons: Sequence[float],
  delta: float,
  mu_squared_budget: Fraction | float,
  source: NoiseSource,
  options: HeadOptions | None = None,
  draw: int = 0,
  parent_head: TrainedHead | None = None,
) -> Iterator[TrainedHead]:
  """Trains a head for each ε, the smallest first.

  Each larger ε buys the difference in μ², and adds what it releases to what was
  released before. With public unlabeled rows, the head of each ε teaches a
  second one on them, and a release of 2 % of the μ² chooses between both.

  Formal guarantees: the head of each ε is (ε, δ)-DP in REPLACE_SPECIAL, and all
  heads together are as private as that of the largest ε. All releases are
  Gaussian mechanisms whose μ² add up to at most `mu_squared_budget`, which
  `PrivateSums` refuses to exceed, and the μ² of `parent_head`. Each may depend
  on the results of those before it (Smith & Thakurta, "Fully adaptive
  composition for Gaussian differential privacy", 2022). Whether training fails
  does not depend on the noise.

  Args:
    rows: from `HEADS[head].prepare_rows(data)`.
    head: the name of the head.
    epsilons: of the heads, in any order.
    delta: of each head.
    mu_squared_budget: from `cost(...)`; it was charged before.
    source: the random bits.
    options: settings of the head; with `parent_head`, its settings hold, and
      only the unlabeled rows are taken from here.
    draw: which of several heads with one ε these are.
    parent_head: a head of the same rows to continue.

  Yields:
    The heads, by increasing ε.
  """
  options = options or HeadOptions()
  stated_options = options.as_json()
  spent_mu_squared = 0.0
  state = None
  estimates: Estimates = {}
  earlier_releases: tuple[Release, ...] = ()
  if parent_head is not None:
    stated_options = dict(parent_head.options)
    # A public start is where the first head began; it is in the state.
    options = HeadOptions(
      balanced=bool(stated_options.get("balanced")),
      unlabeled=options.unlabeled,
    )
    spent_mu_squared = parent_head.mu_squared or 0.0
    state = HeadState.from_arrays(parent_head.state)
    estimates = _estimates_from_arrays(parent_head.state)
    earlier_releases = parent_head.releases

  # One mechanism for all ε. Its budget is that of the largest, so whatever the
  # heads ask for, the run cannot release more than was charged.
  sums = PrivateSums(source, mu_squared_budget, estimates)
  maker = _HeadMaker(head, sums, rows, options)
  for epsilon in sorted(epsilons):
    mu_squared = mu_squared_from_epsilon(epsilon, delta)
    result, choice = maker.make(
      new_mu_squared=mu_squared - spent_mu_squared,
      spent_mu_squared=spent_mu_squared,
      state=state,
    )
    state = result.state
    spent_mu_squared = mu_squared
    # The head is yielded with all that was released so far: each is (ε, δ)-DP
    # by the releases up to it, and a later one continues from there.
    arrays = {} if state is None else state.to_arrays()
    yield TrainedHead(
      head=result.head,
      name=head,
      epsilon=float(epsilon),
      delta=float(delta),
      draw=draw,
      mu_squared=mu_squared,
      releases=(*earlier_releases, *sums.releases),
      state=arrays | _estimates_to_arrays(sums.estimates),
      options=stated_options | choice,
      noise_source=source.description,
      private=source.is_private,
    )


def baseline(
  rows: Rows, head: HeadName, options: HeadOptions | None = None
) -> TrainedHead:
  """Trains the head without noise, to compare with: it is **NOT PRIVATE**.

  It keeps no state, since that would hold exact sums of private rows.

  Args:
    rows: from `HEADS[head].prepare_rows(data)`.
    head: the name of the head.
    options: settings of the head.

  Returns:
    The head; its ε, δ and μ² are None.
  """
  options = options or HeadOptions()
  maker = _HeadMaker(head, PrivateSums(None, 0.0), rows, options)
  result, choice = maker.make(
    new_mu_squared=math.inf, spent_mu_squared=0.0, state=None
  )
  return TrainedHead(
    head=result.head,
    name=head,
    options=options.as_json() | choice,
    noise_source="no noise",
    private=False,
  )


class _HeadMaker:
  """Makes heads of one kind, and lets each teach on public unlabeled rows.

  Args:
    name: the kind of head.
    sums: the Gaussian mechanism.
    rows: the private rows.
    options: settings of the head.
  """

  def __init__(
    self, name: HeadName, sums: PrivateSums, rows: Rows, options: HeadOptions
  ):
    self._spec = HEADS[name]
    self._sums = sums
    self._rows = rows
    self._options = options
    self._trainer: SelfTrainer | None = None
    if options.unlabeled is not None:
      self._trainer = SelfTrainer(options.unlabeled.embeddings)

  def make(
    self,
    *,
    new_mu_squared: float,
    spent_mu_squared: float,
    state: HeadState | None,
  ) -> tuple[HeadResult, dict[str, bool]]:
    """Makes a head, or its student on public rows if that is better.

    Args:
      new_mu_squared: what all releases of this head may cost together.
      spent_mu_squared: what those of the head before cost; 0 if there is none.
      state: of the head before.

    Returns:
      The head, with the state of the teacher: a larger ε continues that. And
      what its receipt says about the choice; nothing without unlabeled rows.
    """
    # The share is taken off before the head sees its budget, so that head and
    # choice together cost `new_mu_squared`, whatever kind of head it is.
    choice_share = CHOICE_SHARE if self._trainer is not None else 0.0
    result = self._spec.make(
      self._sums,
      self._rows,
      new_mu_squared=(1 - choice_share) * new_mu_squared,
      spent_mu_squared=(1 - choice_share) * spent_mu_squared,
      state=state,
      options=self._options,
    )
    if self._trainer is None:
      return result, {}
    head, is_student = choose_head(
      self._sums,
      self._rows,
      teacher=result.head,
      student=self._trainer.student_of(result.head),
      mu_squared=choice_share * new_mu_squared,
    )
    return HeadResult(head, result.state), {"self_trained": is_student}


def _estimates_from_arrays(arrays: Mapping[str, np.ndarray]) -> Estimates:
  """Reads the estimates of statistics from the arrays of a head."""
  estimates = {}
  for name, estimate in arrays.items():
    if name.startswith(_ESTIMATE):
      key = name.removeprefix(_ESTIMATE)
      estimates[key] = (estimate, arrays[_PRECISION + key].item())
  return estimates


def _estimates_to_arrays(
  estimates: Mapping[str, tuple[np.ndarray, float]],
) -> dict[str, np.ndarray]:
  """Names the estimates of statistics, to be kept with a head."""
  arrays = {}
  for key, (estimate, precision) in estimates.items():
    arrays[_ESTIMATE + key] = estimate
    arrays[_PRECISION + key] = np.array(precision)
  return arrays
