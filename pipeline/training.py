"""From a feature cache to private heads: one sum, one step per release."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from dp_accounting import NeighboringRelation
from tqdm import tqdm

from configs.errors import InputError
from configs.schema import HeadConfig, PrivacyConfig, RelationName, ReleaseOrder
from extract.cache_block import Block
from extract.cache_reader import FeatureCache
from extract.feature_cache import CacheInfo
from linear_dp.clipping import ClippedGradientGrid
from linear_dp.exact_sum import SecretSum, exact_clipped_sum
from linear_dp.head import LinearHead
from linear_dp.noise_source import NoiseSource
from linear_dp.optimizers import OneStepOptimizer, one_step
from linear_dp.release import (
  NOT_PRIVATE,
  Release,
  ReleasePlan,
  baseline_without_privacy,
  release,
)
from linear_dp.unit_rows import choose_rows
from linear_dp.unit_sums import count_rows
from pipeline.charge import Charge
from pipeline.ledger import Ledger, charge_aloud

RELATIONS: dict[RelationName, NeighboringRelation] = {
  "add-or-remove-one": NeighboringRelation.ADD_OR_REMOVE_ONE,
  "replace-one": NeighboringRelation.REPLACE_ONE,
  "replace-special": NeighboringRelation.REPLACE_SPECIAL,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedHead:
  """A head and the release that it was made from.

  Attributes:
    head: the weights.
    release: the noisy gradient and its guarantee.
    ledger_entry: SHA-256 of the entry that paid for it, or owns up to it.
  """

  head: LinearHead
  release: Release
  ledger_entry: str


def make_plan(
  epsilons: tuple[float, ...],
  privacy: PrivacyConfig,
  *,
  order: ReleaseOrder = "nested",
  num_draws: int = 1,
) -> ReleasePlan:
  """The releases that a command asks for.

  Raises:
    InputError: an epsilon or delta that makes no guarantee.
  """
  return ReleasePlan(
    epsilons=epsilons,
    delta=privacy.delta,
    neighboring_relation=RELATIONS[privacy.neighboring_relation],
    order=order,
    num_draws=num_draws,
  )


def make_grid(
  info: CacheInfo, config: HeadConfig, max_rows_per_unit: int | None = None
) -> ClippedGradientGrid:
  """The clipping that a config asks for on a cache.

  Args:
    info: of the cache.
    config: the clipping.
    max_rows_per_unit: clip rows, and sum at most so many of a unit; None clips
      units where the cache has them, and otherwise rows.

  Raises:
    InputError: the rows of a unit are bounded where each row is a unit; or a
      number that makes no sense.
  """
  if max_rows_per_unit is not None and not info.has_units:
    raise InputError(
      f"max_rows_per_unit={max_rows_per_unit}, but the cache has no unit_id:"
      " every row is a unit of its own; leave it out, or make the cache with"
      " units."
    )
  return ClippedGradientGrid(
    num_classes=info.num_classes,
    feature_dim=info.feature_dim,
    l2_clip_norm=config.l2_clip_norm,
    initial_bias=config.initial_bias,
    train_bias=config.train_bias,
    rows_per_unit=1 if max_rows_per_unit is None else max_rows_per_unit,
    clipped="unit" if info.has_units and max_rows_per_unit is None else "row",
  )


def make_optimizer(config: HeadConfig) -> OneStepOptimizer:
  """The optimizer that a config names."""
  return OneStepOptimizer(
    name=config.head,
    learning_rate=config.learning_rate,
    eps=config.eps,
    eps_in_noise_sds=config.eps_in_noise_sds,
  )


def cache_ledger(cache: FeatureCache, directory: Path | None) -> Ledger:
  """The ledger of the private data that a cache was made of."""
  return Ledger(cache.info.dataset, directory)


def train_heads(
  cache: FeatureCache,
  plan: ReleasePlan,
  config: HeadConfig,
  privacy: PrivacyConfig,
  *,
  max_rows_per_unit: int | None = None,
  ledger_dir: Path | None,
  baseline: bool = False,
) -> list[TrainedHead]:
  """Trains one head per draw and epsilon of a plan.

  Reads the cache once (twice where it has units: first for the ids, to count or
  choose the rows of each); the ledger is charged after that and before any
  noise.

  With units, epsilon is about all rows of a unit together: their sum is clipped
  as one vector, which uses every row at the noise of one (`unit_sums` says when
  a bound of m rows, with m times the noise, is better). An epsilon per example
  (a cache without units) protects a person with k rows k times less: it is
  right only where nobody can have two.

  Args:
    cache: the private rows.
    plan: the releases to make.
    config: clipping and optimizer.
    privacy: noise source.
    max_rows_per_unit: m, only where the cache has units: sum at most m rows of
      each instead of clipping their sum.
    ledger_dir: where ledgers are; None is the default place.
    baseline: also train the head without noise, which is NOT PRIVATE.

  Returns:
    Heads in the order of release, the baseline last.

  Raises:
    InputError: what was asked makes no sense for this cache, or would break the
      cap of its data set; nothing is charged then.
  """
  info = cache.info
  optimizer = make_optimizer(config)
  grid = make_grid(info, config, max_rows_per_unit)
  source = NoiseSource(privacy.noise_seed)
  _warn(plan, source, info)
  ledger = cache_ledger(cache, ledger_dir)
  facts = {
    "split": info.split,
    "dataset_version": info.dataset_version,
    "num_examples": info.num_examples,
    "cache_fingerprint": info.fingerprint,
    "private_digest": cache.private_digest,
    "privacy_unit": info.privacy_unit,
    "rows_per_unit": grid.rows_per_unit,
    "clipped": grid.clipped,
  }
  ledger.check(Charge.of_plan(plan, source, **facts), baseline=baseline)
  secret = _sum_cache(cache, grid)
  entry = ""

  def charge(plan: ReleasePlan, source: NoiseSource) -> None:
    nonlocal entry
    entry = charge_aloud(ledger, Charge.of_plan(plan, source, **facts))

  trained = [
    TrainedHead(head=one_step(r, optimizer), release=r, ledger_entry=entry)
    for r in release(secret, plan, source, charge=charge)
  ]
  if baseline:
    entry = ledger.record_baseline(**facts)
    exact = baseline_without_privacy(secret, plan)
    trained.append(
      TrainedHead(
        head=one_step(exact, optimizer), release=exact, ledger_entry=entry
      )
    )
  return trained


def _sum_cache(cache: FeatureCache, grid: ClippedGradientGrid) -> SecretSum:
  chosen = sizes = None
  if cache.info.has_units:
    with _bar(cache, "ids") as bar:
      blocks = _shown(cache.blocks(), bar)
      if grid.clipped == "unit":
        sizes = count_rows(blocks)
      else:
        chosen = choose_rows(blocks, grid.rows_per_unit)
  with _bar(cache, "clipped sum") as bar:
    return exact_clipped_sum(
      cache.blocks(),
      grid,
      num_examples=len(cache),
      chosen=chosen,
      sizes=sizes,
      on_rows=bar.update,
    )


def _bar(cache: FeatureCache, what: str) -> tqdm:
  """Counts all rows of the cache, whether or not they are in the sum."""
  return tqdm(
    total=len(cache),
    desc=what,
    unit="row",
    unit_scale=True,
    disable=None,
    leave=False,
  )


def _shown(blocks: Iterator[Block], bar: tqdm) -> Iterator[Block]:
  for block in blocks:
    yield block
    bar.update(len(block))


def _warn(plan: ReleasePlan, source: NoiseSource, info: CacheInfo) -> None:
  if plan.delta >= 1 / info.num_examples:
    _say(
      f"delta={plan.delta:g} is not below 1/n = {1 / info.num_examples:.2g}:"
      " publishing one example at random would pass for private; use a smaller"
      " delta."
    )
  if not info.num_classes_is_public:
    _say(
      "the number of classes was read off the private labels; the guarantee"
      " holds only if it is public anyway. Import with --num-classes."
    )
  if not source.is_private:
    _say(f"the noise comes from a seed: these heads are {NOT_PRIVATE}.")


def _say(warning: str) -> None:
  print(f"warning: {warning}", file=sys.stderr)
