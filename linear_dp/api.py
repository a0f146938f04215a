"""Trains private heads from arrays in memory, in one call; uses no ledger."""

import numbers
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, check_num_classes
from oneshot_dp.configs.head_config import (
  HeadName,
  HeadOptions,
  PublicStart,
  UnlabeledRows,
)
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_head import PrivateHead
from oneshot_dp.linear_dp.train import (
  check_plan,
  cost,
  describe_few_rows,
  train,
)

_WEAK_PRIVACY_FLAG = "weak_privacy=True"  # in errors


def train_heads(
  embeddings: Any,
  labels: Any,
  *,
  num_classes: int,
  class_names: Sequence[str] | None = None,
  epsilons: Sequence[float],
  delta: float,
  head: HeadName = "auto",
  unit_ids: Any = None,
  balanced: bool = False,
  start: Any = None,
  unlabeled: Any = None,
  weak_privacy: bool = False,
  source: NoiseSource | None = None,
  charge: Callable[[Fraction, NoiseSource], object] | None = None,
) -> tuple[PrivateHead, ...]:
  """Trains a private head for each epsilon; together they cost the largest.

  **The heads are in no ledger**: every call costs anew. Pass `charge` to keep
  count, or write a cache (`oneshot_dp.write_cache`) for `oneshot-dp train`. It
  warns, by n, K and ε alone, where so few rows are known to make weak heads.

  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, labels = np.repeat(np.eye(2), 500, axis=0), np.arange(1000) // 500
  >>> strict, loose = oneshot_dp.train_heads(
  ...   rows, labels, num_classes=2, epsilons=(1.0, 4.0), delta=1e-6
  ... )
  >>> strict.trained.epsilon, loose.trained.epsilon
  (1.0, 4.0)

  Formal guarantees:
    Those of `linear_dp.train.train`: each head is (ε, δ)-DP, and all heads of
    the call together are as private as that of the largest ε. The neighboring
    data set has nothing in the place of one privacy unit (a row, or all rows
    of one of `unit_ids`); n and K are public.

  Args:
    embeddings: [n, d] floats of 16, 32 or 64 bits; private.
    labels: [n] integers in [0, K); private.
    num_classes: K, which must be known without looking at the labels.
    class_names: K different public names; None means "0", "1" …
    epsilons: ε of each head: positive numbers, each different.
    delta: δ of each head, in (0, 1) and well below 1/n.
    head: "auto", the most accurate one, the paper's step with the optimizer of
      this name, or "prototypes" or "least_squares" to compare with.
    unit_ids: [n] integers or strings that tell whose each row is; all rows of
      one unit are protected together. None means that each row is a unit.
    balanced: weight all classes equally, however rare; for "auto" alone.
    start: [K, d] numbers, for "auto" alone: a public vector for each class,
      such as a text tower's embedding of its name. It must not depend on
      private rows.
    unlabeled: [m, d] floats, for "auto" alone: public embeddings of the same
      kind, without labels. The private head predicts their classes, and a
      second head learns from these. For 2 % of the budget, a noisy number
      decides which of the two is returned; `trained.options["self_trained"]`
      is true for the second.
    weak_privacy: allow a δ of 1/n or more, and an ε above 20.
    source: the random bits of the noise; None means the operating system's. A
      source with a seed marks the heads as NOT PRIVATE.
    charge: called once with μ² and the source, before any noise is drawn; it
      may raise an error to stop the training.

  Returns:
    The heads, in the order of `epsilons`.

  Raises:
    InputError: the arguments are not valid; nothing was charged or drawn.
  """
  if source is None:
    source = NoiseSource()
  # Checked here, since a wrong source would only fail after the charge.
  if not isinstance(source, NoiseSource):
    raise InputError(f"source={source!r} must be a oneshot_dp.NoiseSource.")
  # Everything is checked before `charge` is called: a budget that was spent on
  # a call that then fails is lost.
  budgets = _numbers("epsilons", epsilons)
  delta = _number("delta", delta)
  _check_flag("balanced", balanced)
  _check_flag("weak_privacy", weak_privacy)
  if charge is not None and not callable(charge):
    raise InputError(f"charge={charge!r} must be a function, or None.")
  for epsilon in budgets:
    accounting.check_budget(
      epsilon,
      delta,
      allow_weak_privacy=weak_privacy,
      weak_privacy_flag=_WEAK_PRIVACY_FLAG,
    )
  data = dataset_from_arrays(
    embeddings,
    labels,
    num_classes=_num_classes(num_classes),
    unit_ids=unit_ids,
  )
  accounting.check_delta(
    delta,
    data.n,
    allow_weak_privacy=weak_privacy,
    weak_privacy_flag=_WEAK_PRIVACY_FLAG,
  )
  options = _head_options(
    data, balanced=balanced, start=start, unlabeled=unlabeled
  )
  check_plan(
    head=head,
    n=data.n,
    feature_dim=data.feature_dim,
    num_classes=data.num_classes,
    options=options,
  )
  names = _valid_class_names(class_names, data.num_classes)
  # Heads of several ε are nested: the largest pays for all of them.
  rows = HEADS[head].prepare_rows(data)
  mu_squared = cost(budgets, delta)
  # A pass over the rows, so that a bad one is reported before the charge.
  rows.validate()
  data.refuse_equal_rows()
  # Said before the charge, and of public numbers alone, as by `train`.
  few_rows = describe_few_rows(
    data.n / data.num_classes,
    accounting.noise_multiplier(max(budgets), delta),
  )
  if few_rows:
    warnings.warn(
      f"{few_rows}: give more rows, fewer classes or a larger epsilon.",
      stacklevel=2,
    )
  if charge is not None:
    charge(mu_squared, source)
  # Heads come by increasing ε, and are returned in the order that was asked
  # for.
  by_epsilon = {}
  for trained in train(
    rows,
    head=head,
    epsilons=budgets,
    delta=delta,
    mu_squared_budget=mu_squared,
    source=source,
    options=options,
  ):
    by_epsilon[trained.epsilon] = PrivateHead(
      trained=trained,
      num_examples=data.n,
      class_names=names,
      num_classes_source="flag" if class_names is None else "class_names",
      privacy_unit=data.unit,
      is_charged=charge is not None,
    )
  return tuple(by_epsilon[epsilon] for epsilon in budgets)


def train_head(
  embeddings: Any,
  labels: Any,
  *,
  num_classes: int,
  class_names: Sequence[str] | None = None,
  epsilon: float,
  delta: float,
  head: HeadName = "auto",
  unit_ids: Any = None,
  balanced: bool = False,
  start: Any = None,
  unlabeled: Any = None,
  weak_privacy: bool = False,
  source: NoiseSource | None = None,
  charge: Callable[[Fraction, NoiseSource], object] | None = None,
) -> PrivateHead:
  """Trains one private head: `train_heads` with one epsilon.

  **The head is in no ledger**, and releases add up: train heads for several
  epsilons by one call of `train_heads`.

  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, labels = np.repeat(np.eye(3), 400, axis=0), np.arange(1200) // 400
  >>> head = oneshot_dp.train_head(
  ...   rows, labels, num_classes=3, epsilon=2.0, delta=1e-6
  ... )
  >>> head.predict(np.eye(3)), head.receipt()["follows"]["epsilon"]
  (array([0, 1, 2]), 2.0)

  Args:
    embeddings: see `train_heads`, as for all other arguments.
    labels: [n] integers in [0, K); private.
    num_classes: K, public.
    class_names: K public names, or None.
    epsilon: a positive number.
    delta: in (0, 1), well below 1/n.
    head: "auto", or the paper's step.
    unit_ids: whose each row is, or None.
    balanced: weight all classes equally.
    start: public vectors to start from, or None.
    unlabeled: public embeddings to learn from as well, or None.
    weak_privacy: allow a weak guarantee.
    source: the random bits, or None.
    charge: called once before any noise is drawn, or None.

  Returns:
    The head.

  Raises:
    InputError: the arguments are not valid; nothing was charged or drawn.
  """
  (trained,) = train_heads(
    embeddings,
    labels,
    num_classes=num_classes,
    class_names=class_names,
    epsilons=(_number("epsilon", epsilon),),
    delta=delta,
    head=head,
    unit_ids=unit_ids,
    balanced=balanced,
    start=start,
    unlabeled=unlabeled,
    weak_privacy=weak_privacy,
    source=source,
    charge=charge,
  )
  return trained


def _head_options(
  data: PrivateDataset, *, balanced: bool, start: Any, unlabeled: Any
) -> HeadOptions:
  """Checks the public arrays that a head may use, and makes options of them."""
  public_start = None
  if start is not None:
    public_start = PublicStart.of(
      start, num_classes=data.num_classes, feature_dim=data.feature_dim
    )
  unlabeled_rows = None
  if unlabeled is not None:
    unlabeled_rows = UnlabeledRows.of(unlabeled, feature_dim=data.feature_dim)
  return HeadOptions(
    balanced=balanced, start=public_start, unlabeled=unlabeled_rows
  )


def _valid_class_names(
  class_names: Sequence[str] | None, num_classes: int
) -> tuple[str, ...]:
  """Checks K class names; without any, they are "0", "1" and so on."""
  if class_names is None:
    return tuple(str(index) for index in range(num_classes))
  if isinstance(class_names, str):
    raise InputError(f"class_names={class_names!r} must be a list of names.")
  names = tuple(class_names)
  are_names = all(isinstance(name, str) and name for name in names)
  if not are_names or len(names) != num_classes or len(set(names)) < len(names):
    raise InputError(
      f"class_names={names} must be {num_classes} different names."
    )
  return names


def _number(name: str, value: Any) -> float:
  if not isinstance(value, numbers.Real):
    raise InputError(f"{name}={value!r} must be a number.")
  return float(value)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
  if isinstance(values, str) or not np.iterable(values):
    raise InputError(
      f"{name}={values!r} must be a sequence of numbers, such as (0.5, 2, 8)."
    )
  return tuple(_number(name, value) for value in values)


def _check_flag(name: str, value: Any) -> None:
  """Refuses what is no truth value: the text "no" would count as true."""
  if not isinstance(value, (bool, np.bool_)):
    raise InputError(f"{name}={value!r} must be True or False.")


def _num_classes(value: Any) -> int:
  """K; with one class there is nothing to learn, and all the same to pay."""
  number = _number("num_classes", value)
  if number < 2 or not number.is_integer():
    raise InputError(
      f"num_classes={value!r} must be a whole number of 2 or more."
    )
  check_num_classes(int(number), "num_classes")
  return int(number)
