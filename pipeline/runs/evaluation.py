"""Scoring heads on a cache whose labels are public, or private."""

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.gaussian import check_delta, printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.evaluate import (
  Accuracy,
  LabelLists,
  SecretHits,
  count_hits,
)
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.noisy_counts import CountPlan, release_accuracies
from oneshot_dp.linear_dp.rows.whole_units import UnitSizes, count_rows
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.folder import check_never_charged
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import CAP
from oneshot_dp.pipeline.training.record import UNRECORDED, Payments
from oneshot_dp.pipeline.training.train_heads import (
  RELATIONS,
  cache_ledger,
  charged_rows,
)

PUBLIC_LABELS = "test labels treated as public"
"""What results say of accuracies that are exact."""
PUBLIC_STATEMENT = {"labels": "public", "mechanism": PUBLIC_LABELS}
_STREAM = 1
"""Keeps a seed's noise of the counts apart from its noise of the heads."""


class Evaluation(NamedTuple):
  """Accuracies, one per head, and what they gave away in words and as JSON."""

  scores: list[Accuracy]
  description: str
  statement: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateEvaluation:
  """A request to score heads on private labels, at the cost of their ledger."""

  plan: CountPlan
  source: NoiseSource
  cache: FeatureCache
  ledger: Ledger
  record: Payments

  @classmethod
  def of(
    cls,
    epsilon: float,
    privacy: PrivacyConfig,
    cache: FeatureCache,
    ledger_dir: Path | None,
    record: Payments = UNRECORDED,
  ) -> Self:
    """What --private-eval EPSILON asks for."""
    plan = CountPlan(
      epsilon=epsilon,
      delta=privacy.delta,
      neighboring_relation=RELATIONS[privacy.neighboring_relation],
    )
    seed = privacy.noise_seed
    if seed is not None and seed >= 0:
      (seed,) = (
        np.random.SeedSequence([seed, _STREAM]).generate_state(1).tolist()
      )
    source = record.source(seed)
    check_delta(
      privacy.delta,
      cache.info.public_num_examples,
      insisted=privacy.large_delta,
    )
    if not source.is_private:
      print(
        "warning: the noise comes from a seed: these accuracies are"
        f" {NOT_PRIVATE}.",
        file=sys.stderr,
      )
    return cls(
      plan=plan,
      source=source,
      cache=cache,
      ledger=cache_ledger(cache, ledger_dir),
      record=record,
    )

  @functools.cached_property
  def charge(self) -> Charge:
    """The cost of the counts; reads the keys of all rows."""
    plan, rows = self.plan, charged_rows(self.cache)
    return Charge(
      kind="evaluation",
      event=plan.event,
      noise_source=self.source.description,
      is_private=self.source.is_private,
      asked=f"an evaluation at epsilon {printable(plan.epsilon)}, delta"
      f" {printable(plan.delta)}",
      delta=plan.delta,
      neighboring_relation=plan.neighboring_relation,
      privacy_unit=rows.pop("privacy_unit"),
      rows=rows.pop("rows"),
      facts={
        "epsilons": [plan.epsilon],
        "order": "noisy counts",
        "num_draws": 1,
        "composed_epsilon": plan.epsilon,
        **rows,
      },
    )

  def evaluate(self, heads: list[LinearHead]) -> Evaluation:
    """Noisy accuracies on private labels; charged once they are counted.

    Raises:
      InputError: damaged rows, or the charge would break the cap.
      RunError: the ledger cannot be written; nothing is released.
    """
    entry, info = "", self.cache.info

    def charge(plan: CountPlan, source: NoiseSource) -> None:
      nonlocal entry
      (entry,) = self.record.pay(self.ledger, self.charge)

    sizes = count_rows(self.cache.blocks()) if info.has_units else None
    counts_all = info.is_part or info.has_units
    released = release_accuracies(
      count_cache(heads, self.cache, sizes=sizes),
      self.plan,
      self.source,
      charge=charge,
      num_examples=info.public_num_examples,
      n_is_private=info.is_part,
    )
    statement = released.statement
    mark = "" if statement.is_private else f" ({statement.noise_source})"
    return Evaluation(
      scores=list(released.accuracies),
      description=(
        f"noisy counts, epsilon={printable(statement.epsilon)} at"
        f" delta={printable(statement.delta)}{mark}"
      ),
      statement={
        "labels": "private",
        "mechanism": "all counts of right answers as one vector, released as"
        " c + round(N(0, sd^2)), over n and clipped to [0, 1]"
        + ("; n is one of the counts" if counts_all else "")
        + (
          f"; each row counts for 1 over the rows of its {info.privacy_unit}"
          if info.has_units
          else ""
        ),
        **({"privacy_unit": info.privacy_unit} if info.has_units else {}),
        "private": statement.is_private,
        "epsilon": statement.epsilon,
        "delta": statement.delta,
        "neighboring_relation": statement.neighboring_relation.name,
        "num_counts": released.num_counts,
        "sensitivity": statement.sensitivity,
        "noise_multiplier": statement.noise_multiplier,
        "noise_sd": statement.noise_sd,
        "accuracy_noise_sd": statement.noise_sd / released.size,
        "noise_source": statement.noise_source,
        "ledger_entry": entry,
        "left_out": "balanced accuracy and recall by class, which would take as"
        " many more noisy counts as there are classes",
      },
    )


def evaluate_on_public_labels(
  heads: list[LinearHead], cache: FeatureCache
) -> Evaluation:
  """Exact accuracies, and the assumption that they rest on."""
  return Evaluation(
    scores=count_cache(heads, cache).accuracies_of_public_labels(),
    description=PUBLIC_LABELS,
    statement=PUBLIC_STATEMENT,
  )


def count_cache(
  heads: list[LinearHead],
  cache: FeatureCache,
  lists: LabelLists | None = None,
  sizes: UnitSizes | None = None,
) -> SecretHits:
  """Counts the right answers of heads of one shape, of rows or of units."""
  with step_bar("evaluate", "row", len(cache)) as bar:
    return count_hits(
      heads, cache.blocks(), lists=lists, sizes=sizes, on_rows=bar.update
    )


EXACT_SCORES = "accuracy on them is an exact statistic of private labels"
"""Why private rows are not scored as public ones."""


def check_not_trained_on(
  ledger: Ledger, cache: FeatureCache, *, insisted: bool
) -> None:
  """Refuses exact scores on rows that are private by any ledger of the folder.

  Where the ledger of the head is not there, or has charges from before rows had
  keys, nobody can tell but whoever insists; nor whether units of parts of
  before are in the others, or in other data sets have the same numbers.
  """
  info, folder = cache.info, ledger.path.parent
  trained_on = None if insisted else ledger.dataset
  check_never_charged(cache, folder, EXACT_SCORES, trained_on=trained_on)
  by_rows = info.has_units and info.is_part and info.parts_by is None
  if by_rows and info.dataset == trained_on:
    raise InputError(
      f"{cache.path} is a part of {info.dataset!r} that was not made of whole"
      f" {info.privacy_unit}s: they may be in the others, too; make it again,"
      " or say --not-trained-on, if you know that they are not."
    )
  charges = [e for e in ledger.entries() if e.get("kind") != CAP]
  if not insisted and not (charges and "row_keys" in charges[0]):
    raise InputError(
      f"nobody can tell here if rows of {cache.path} trained this head:"
      f" {ledger.path} is not there, or does not know all rows of"
      f" {ledger.dataset!r}; name the ledgers' folder with --ledger-dir, or say"
      " --not-trained-on, if you know it."
    )


def check_readable(cache: FeatureCache) -> None:
  """Reads every row once, so that damage is found before it costs budget."""
  shape = cache.info.feature_dim, cache.info.num_classes
  kernel, bias = (np.zeros(s, np.float32) for s in (shape, shape[1:]))
  count_cache([LinearHead(kernel=kernel, bias=bias)], cache)
