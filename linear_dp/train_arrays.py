"""From two arrays to private heads: the door of `release`, in one call."""

import numbers
import sys
from collections.abc import Sequence
from typing import cast

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.configs.head_config import HeadConfig, HeadName
from oneshot_dp.linear_dp.accounting.gaussian import check_delta
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.heads.choice import choose_head, in_a_line
from oneshot_dp.linear_dp.heads.registry import head_kind, make_trainer
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.private_head import PrivateHead
from oneshot_dp.linear_dp.public_start import PublicStart
from oneshot_dp.linear_dp.rows.arrays import ArrayRows, Numbers
from oneshot_dp.linear_dp.trainer import Charging, TrainingRows

_A_RELATION = "a dp_accounting.NeighboringRelation"


def train_head(
  embeddings: Numbers,
  labels: Numbers,
  *,
  num_classes: int,
  class_names: Sequence[str] | None = None,
  epsilon: float,
  delta: float,
  head: str | HeadConfig = "auto",
  unit_ids: Numbers | None = None,
  start: Numbers | None = None,
  neighboring_relation: NeighboringRelation = (
    NeighboringRelation.REPLACE_SPECIAL
  ),
  large_delta: bool = False,
  source: NoiseSource | None = None,
  charge: Charging | None = None,
) -> PrivateHead:
  """Trains one private head, a release of its own, as `train_heads` does.

  Releases add up: for several ε use that. **The head is in no ledger**. One
  line on stderr says which head it is and why, before anything is charged.

  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, labels = np.repeat(np.eye(3), 400, axis=0), np.arange(1200) // 400
  >>> head = oneshot_dp.train_head(
  ...   rows, labels, num_classes=3, epsilon=2.0, delta=1e-6
  ... )
  >>> head.predict(np.eye(3))
  array([0, 1, 2])
  >>> round(head.receipt()["privacy"]["noise_multiplier"], 4)
  2.2305

  Args:
    embeddings: [n, d] floats, private; all else is as in `train_heads`.
    labels: [n] integers in [0, K), private.
    num_classes: K, public.
    class_names: K public names; None is "0", "1" ...
    epsilon: ε > 0.
    delta: δ in (0, 1), well below 1/n.
    head: its name, or settings; "auto" is the most accurate that the rows
      allow.
    unit_ids: [n] integers, whose each row is; None is a unit per row.
    start: [K, d], public weights to start from.
    neighboring_relation: which data sets count as neighbours.
    large_delta: insist on a δ of 1/n or more, which protects nobody.
    source: the random bits; None is the operating system's.
    charge: called before any noise is drawn; raises to refuse.

  Returns:
    The head and its receipt.
  """
  (trained,) = train_heads(
    embeddings,
    labels,
    num_classes=num_classes,
    class_names=class_names,
    epsilons=(epsilon,),
    delta=delta,
    head=head,
    unit_ids=unit_ids,
    start=start,
    neighboring_relation=neighboring_relation,
    large_delta=large_delta,
    source=source,
    charge=charge,
  )
  return trained


def train_heads(
  embeddings: Numbers,
  labels: Numbers,
  *,
  num_classes: int,
  class_names: Sequence[str] | None = None,
  epsilons: Sequence[float],
  delta: float,
  head: str | HeadConfig = "lamb",
  unit_ids: Numbers | None = None,
  start: Numbers | None = None,
  neighboring_relation: NeighboringRelation = (
    NeighboringRelation.REPLACE_SPECIAL
  ),
  large_delta: bool = False,
  source: NoiseSource | None = None,
  charge: Charging | None = None,
) -> tuple[PrivateHead, ...]:
  """Trains a private head for each ε, from one exact sum of the rows.

  Formal guarantees: those of `oneshot-dp sweep`, whose code this is. Each head
  is (ε, δ)-DP in the neighbouring relation, with n and K public. All of them
  together cost the largest ε, but those of several steps ("whitened" and
  "multi-step") share no noise and compose, see `receipt()["composition"]`.

  **The heads are in no ledger**: nothing here knows what was released of the
  same rows before, and every call costs anew. Pass `charge` to keep count, or
  write a cache (`oneshot_dp.write_cache`) and use `oneshot-dp train`.

  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, labels = np.repeat(np.eye(2), 500, axis=0), np.arange(1000) // 500
  >>> strict, loose = oneshot_dp.train_heads(
  ...   rows, labels, num_classes=2, epsilons=(1.0, 4.0), delta=1e-6
  ... )
  >>> strict.statement.epsilon, loose.statement.epsilon
  (1.0, 4.0)
  >>> round(loose.receipt()["composition"]["composed_epsilon"], 6)
  4.0

  Args:
    embeddings: [n, d] floats, private. float64 is rounded to float32.
    labels: [n] integers in [0, K), private.
    num_classes: K, public: known without the labels.
    class_names: K public names; None is "0", "1" ...
    epsilons: the ε of each head, positive and distinct.
    delta: δ of each head, in (0, 1), well below 1/n.
    head: "lamb" (the paper's single step), "adam", "momentum",
      "least-squares", "whitened" (the most accurate), "auto" (that, or lamb
      where rows cannot have it) or "multi-step"; or a `HeadConfig`, for
      settings of the head's own. One-step heads want embeddings with about as
      many negative as positive numbers.
    unit_ids: [n] integers, whose each row is, where a person may have many: the
      guarantee is then about all rows of a unit. None is a unit per row.
    start: [K, d] numbers, of "auto": a public vector for each class, such as a
      text tower's embedding of its name, to start from at no cost. No function
      of the private rows.
    neighboring_relation: which data sets count as neighbours, with n known: a
      unit, or nothing in its place (REPLACE_SPECIAL); or another (REPLACE_ONE).
    large_delta: insist on a δ of 1/n or more, which protects nobody.
    source: the random bits; None is the operating system's. A seeded source is
      for research, and marks the heads NOT PRIVATE.
    charge: called once, with plan and source, before any noise; may refuse.

  Returns:
    Heads, in the order of `epsilons`.

  InputError: a value of another type; arrays that `ArrayRows.of` refuses; an ε
  or δ that is no guarantee; a δ of 1/n or more, if it is not insisted on; a
  head of another name. Nothing is charged then.

  Source: Mehta et al., "Large Scale Transfer Learning for Differentially
  Private Image Classification", TMLR 2023, algorithm 1.
  """
  source = NoiseSource() if source is None else source
  epsilons = tuple(epsilons)
  # What fails after the charge is budget spent for nothing.
  relation, a_number = neighboring_relation, (numbers.Real, "a number")
  for name, value, kind, what in (
    ("neighboring_relation", relation, NeighboringRelation, _A_RELATION),
    ("source", source, NoiseSource, "a oneshot_dp.NoiseSource"),
    ("delta", delta, *a_number),
    *(("epsilon", epsilon, *a_number) for epsilon in epsilons),
  ):
    if not isinstance(value, kind):
      raise InputError(f"{name}={value!r} must be {what}.")
  name = head if isinstance(head, str) else head.head
  if name != "auto":
    head_kind(name)  # what it refuses
  if isinstance(head, str):
    head = HeadConfig(head=cast(HeadName, head))
  arrays = ArrayRows.of(
    embeddings, labels, num_classes=num_classes, unit_ids=unit_ids
  )
  n, public = arrays.num_examples, None
  if start is not None:
    public = PublicStart.of(
      start, num_classes=arrays.num_classes, feature_dim=arrays.feature_dim
    )
  numbered = map(str, range(arrays.num_classes))
  names = tuple(numbered if class_names is None else class_names)
  if len(set(names)) != arrays.num_classes or not all(
    isinstance(name, str) and name for name in names
  ):
    raise InputError(
      f"class_names={names} must be {arrays.num_classes} different names, one"
      " for each of num_classes."
    )
  rows = TrainingRows(
    blocks=lambda: [arrays],
    feature_dim=arrays.feature_dim,
    num_classes=arrays.num_classes,
    num_examples=n,
    privacy_unit=EXAMPLE_UNIT if unit_ids is None else "unit",
    start=public,
  )
  choice = choose_head(head, rows)
  config, kind = choice.config, head_kind(choice.config.head)
  trainer = make_trainer(rows, [config])
  plan = ReleasePlan(
    epsilons=tuple(float(epsilon) for epsilon in epsilons),
    delta=float(delta),
    neighboring_relation=neighboring_relation,
    order=kind.order(),
    sampling=kind.sampling(config, n),
  )
  check_delta(plan.delta, n, insisted=large_delta)
  print(in_a_line(choice, plan, rows), file=sys.stderr)
  trainer.read()
  # (Not `charge or ...`: a ledger may be an empty list, which is false.)
  charging = _no_charge if charge is None else charge
  heads = {
    trained.statement.epsilon: PrivateHead(
      trained=trained,
      num_examples=n,
      class_names=names,
      num_classes_source="flag" if class_names is None else "class_names",
      privacy_unit=rows.privacy_unit,
      is_charged=charge is not None,
    )
    for trained in trainer.release(plan, source, charging)
  }
  return tuple(heads[epsilon] for epsilon in plan.epsilons)


def _no_charge(plan: ReleasePlan, source: NoiseSource) -> None:
  """Nobody keeps count; the receipt says so."""
