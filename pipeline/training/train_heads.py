"""From a feature cache to private heads: checked, charged, trained."""

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  RelationName,
  ReleaseOrder,
)
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.gaussian import check_delta
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.heads.registry import head_kind, make_trainer
from oneshot_dp.linear_dp.public_start import PublicStart
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.trainer import (
  BaselineTrainer,
  OnRelease,
  TrainedHead,
  Trainer,
  unseen,
)
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.row_sketch import RowSketch
from oneshot_dp.pipeline.training.cache_rows import cache_rows
from oneshot_dp.pipeline.training.public_rows import FoldedTrainer, PublicRows
from oneshot_dp.pipeline.training.record import UNRECORDED, Payments
from oneshot_dp.pipeline.training.request import warn

RELATIONS: dict[RelationName, NeighboringRelation] = {
  "replace-special": NeighboringRelation.REPLACE_SPECIAL,
  "replace-one": NeighboringRelation.REPLACE_ONE,
}


def make_plan(
  epsilons: tuple[float, ...],
  privacy: PrivacyConfig,
  *,
  order: ReleaseOrder = "nested",
  num_draws: int = 1,
  sampling: PoissonSampling | None = None,
) -> ReleasePlan:
  """The releases that a command asks for."""
  return ReleasePlan(
    epsilons=epsilons,
    delta=privacy.delta,
    neighboring_relation=RELATIONS[privacy.neighboring_relation],
    order=order,
    num_draws=num_draws,
    sampling=sampling,
  )


def cache_ledger(cache: FeatureCache, directory: Path | None) -> Ledger:
  """The ledger of the private data that a cache was made of."""
  return Ledger(cache.info.dataset, directory)


def charged_rows(cache: FeatureCache) -> dict[str, Any]:
  """What a charge says of the rows that it is for; private."""
  info = cache.info
  return {
    "privacy_unit": info.privacy_unit,
    "rows": RowSketch.of_cache(cache),
    "split": info.split,
    "dataset_version": info.dataset_version,
    "num_examples": info.public_num_examples,
    "cache_fingerprint": info.fingerprint,
    "private_digest": cache.private_digest,
  }


def plan_heads(
  config: HeadConfig,
  num_examples: int,
  epsilons: tuple[float, ...],
  privacy: PrivacyConfig,
  *,
  order: ReleaseOrder | None = None,
  num_draws: int = 1,
) -> ReleasePlan:
  """The releases of heads of a config; by default in the cheapest order."""
  kind = head_kind(config.head)
  return make_plan(
    epsilons,
    privacy,
    order=kind.order(order),
    num_draws=num_draws,
    sampling=kind.sampling(config, num_examples),
  )


def cache_trainer(
  cache: FeatureCache,
  configs: Sequence[HeadConfig],
  max_rows_per_unit: int | None = None,
  *,
  public: PublicRows | None = None,
  start: PublicStart | None = None,
  hosts: Hosts = ALONE,
) -> Trainer:
  """The way to train that configs name; several, if of one step, together.

  With units, epsilon is about all rows of a unit together: their sum is clipped
  as one vector, which uses every row at the noise of one (`unit_sums` says when
  a bound of m rows, with m times the noise, is better). An epsilon per example
  (a cache without units) protects a person with k rows k times less: it is
  right only where nobody can have two.

  Args:
    cache: the private rows.
    configs: of heads; not "auto".
    max_rows_per_unit: m, only where the cache has units: sum at most m rows of
      each instead of clipping their sum.
    public: what to centre or whiten the rows by.
    start: public weights to start from.
    hosts: that have a part of the rows each.

  Raises:
    InputError: what was asked makes no sense for this cache.
  """
  rows = cache_rows(cache, max_rows_per_unit, hosts)
  rows = dataclasses.replace(rows, start=start)
  mapped = public.mapped(rows) if public else rows
  trainer = make_trainer(mapped, configs, step_bar)
  return FoldedTrainer(public, trainer) if public else trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
  """A part of a run, with noise and a charge of its own.

  `on_release` is called with all that leaves; `facts` are more public facts to
  keep with the ledger's entry; `note` is to be said before it is charged.
  """

  trainer: Trainer
  plan: ReleasePlan
  on_release: OnRelease = unseen
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  note: str = ""


def train_heads(
  cache: FeatureCache,
  plan: ReleasePlan,
  config: HeadConfig,
  privacy: PrivacyConfig,
  *,
  max_rows_per_unit: int | None = None,
  public: PublicRows | None = None,
  ledger_dir: Path | None,
  baseline: bool = False,
  aloud: bool = True,
  record: Payments = UNRECORDED,
) -> list[TrainedHead]:
  """Trains one head per draw and epsilon of a plan; see `train_all`.

  `config` is not "auto"; for `max_rows_per_unit` and `public` see
  `cache_trainer`. `baseline` is of the same head.
  """
  trainer = cache_trainer(cache, [config], max_rows_per_unit, public=public)
  return train_all(
    cache,
    [Training(trainer=trainer, plan=plan)],
    privacy,
    ledger_dir=ledger_dir,
    baseline=trainer if baseline else None,
    aloud=aloud,
    record=record,
  )


def train_all(
  cache: FeatureCache,
  trainings: Sequence[Training],
  privacy: PrivacyConfig,
  *,
  ledger_dir: Path | None,
  baseline: BaselineTrainer | None = None,
  aloud: bool = True,
  record: Payments = UNRECORDED,
) -> list[TrainedHead]:
  """Trains the heads of several plans, which compose.

  The ledger is charged for all of them, or for none, after the cache was read
  and before any noise of any of them.

  Args:
    cache: the private rows.
    trainings: what to train; plans may be at several deltas, and several plans
      of one trainer.
    privacy: noise source.
    ledger_dir: where ledgers are; None is the default place.
    baseline: also train its head, which is NOT PRIVATE.
    aloud: say on stderr what to beware of, and where it is charged.
    record: of what was paid and released before, and will be.

  Returns:
    Heads, training by training, each in the order of release; the baseline
    last.

  Raises:
    InputError: damaged rows, or all together would break the cap of the data
      set; nothing is charged then.
  """
  info = cache.info
  ledger = cache_ledger(cache, ledger_dir)
  source = record.source(privacy.noise_seed)
  check_delta(
    max(each.plan.delta for each in trainings),
    info.public_num_examples,
    insisted=privacy.large_delta,
  )
  if aloud:
    warn(source, info)
  facts = charged_rows(cache)
  charges = [
    Charge.of_plan(
      each.plan, source, **facts, **each.trainer.facts, **each.facts
    )
    for each in trainings
  ]
  of_baseline = (
    [Charge.of_baseline(**facts, **baseline.facts)] if baseline else []
  )
  record.check(ledger, *charges, *of_baseline)
  # One that is to make the releases of several plans reads once.
  for trainer in dict.fromkeys(each.trainer for each in trainings):
    trainer.read()
  notes = [record.note if aloud else ""]
  for each in trainings:
    notes += (each.note, *each.trainer.notes(each.plan))
  for note in filter(None, notes):
    print(note, file=sys.stderr)

  # Whichever release is the first asks for all.
  pay = functools.partial(record.pay, ledger, *charges, aloud=aloud)
  entries = functools.cache(pay)
  trained = []
  for i, each in enumerate(trainings):
    for head in each.trainer.release(
      each.plan, source, lambda *_: entries(), each.on_release
    ):
      trained.append(dataclasses.replace(head, ledger_entry=entries()[i]))
  if baseline:
    (entry,) = record.pay(ledger, *of_baseline, aloud=False)
    exact = baseline.baseline(trainings[0].plan)
    trained.append(dataclasses.replace(exact, ledger_entry=entry))
  return trained
