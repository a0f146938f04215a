"""Heads of private rows that are centred, or whitened, by public ones.

A trainer is given a view of the private cache, and its heads are folded into
heads of rows as they are: neither it, nor what comes after, knows of the map.
"""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Bool

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PublicUse
from oneshot_dp.configs.split_part import SplitPart
from oneshot_dp.extract.cache.content_keys import in_part
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.extract.cache.summary import public_metadata
from oneshot_dp.extract.duplicates.shared_rows import count_shared_rows
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.chosen import ChoosingTrainer
from oneshot_dp.linear_dp.heads.registry import HELD_OUT_PERCENT
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.public_statistics import (
  PublicStatistics,
)
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.rows.units import unit_words
from oneshot_dp.linear_dp.trainer import (
  BaselineTrainer,
  Charging,
  OnRelease,
  Resumable,
  TrainedHead,
  Trainer,
  TrainingRows,
  unseen,
)
from oneshot_dp.pipeline.ledger.folder import check_never_charged
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
from oneshot_dp.pipeline.saved_head.public_record import SETTING, PublicRecord
from oneshot_dp.pipeline.training.cache_rows import (
  PUBLIC_MAP,
  cache_rows,
  mapped_by,
  own_shards,
)

NON_NEGATIVE = ("bit_", "nf_resnet", "nfnet_")
"""Backbones whose embedding is the mean of what a ReLU or GELU lets through."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicRows:
  """Public rows, read and found fit to map private ones by."""

  cache: FeatureCache
  statistics: PublicStatistics
  record: PublicRecord

  @classmethod
  def read(
    cls,
    path: Path,
    private: FeatureCache,
    used: PublicUse = "mean",
    ledger_dir: Path | None = None,
  ) -> Self:
    """Opens, checks and reads a public cache.

    Raises:
      InputError: embeddings of another kind; rows that are, or by their name
        may be, the private ones; damaged rows.
    """
    cache = open_cache(path)
    record = PublicRecord.of(cache.info, used)
    FeatureSpace.of_cache(private.path, private.info).check_same_embeddings(
      FeatureSpace.of_cache(cache.path, cache.info)
    )
    if record.is_of(private.info.dataset):
      raise InputError(
        f"{cache.path} is of the private data set {record.dataset!r}, whatever"
        " its split: its mean would be an exact statistic of it; give a cache"
        " of public data."
      )
    if shared := count_shared_rows(cache, private):
      raise InputError(
        f"{shared} of the {len(cache)} rows of {cache.path} are rows of"
        f" {private.path}, which are private, whatever they are called; give a"
        " cache of public data, or leave these out."
      )
    check_never_charged(
      cache, ledger_dir, "their mean would be an exact statistic of them"
    )
    rows = cache_rows(cache)
    statistics = PublicStatistics.of_blocks(
      lambda: rows.shown("public rows", step_bar),
      feature_dim=rows.feature_dim,
      num_classes=rows.num_classes,
      num_examples=rows.counted,
      whiten=record.whitens,
    )
    return cls(cache=cache, statistics=statistics, record=record)

  def mapped(self, private: TrainingRows) -> TrainingRows:
    """Private rows behind the public map; see `mapped_by`."""
    whitening = self.statistics.whitening
    private.hosts.ask(
      PUBLIC_MAP,
      mean=self.statistics.mean,
      integers=whitening and whitening.integers,
      exponent=whitening and whitening.exponent,
    )
    private.hosts.sum()
    return mapped_by(self.statistics, private)

  def folded(self, trained: TrainedHead) -> TrainedHead:
    """A head of such rows, as one of rows as they are; its receipt says so."""
    return dataclasses.replace(
      trained,
      head=self.statistics.folded(trained.head),
      settings={**trained.settings, SETTING: self.record.as_json()},
    )


class FoldedBaseline(BaselineTrainer):
  """Heads of mapped rows, as heads of rows as they are."""

  def __init__(self, public: PublicRows, inner: BaselineTrainer):
    self._public = public
    self._inner = inner
    self.facts = inner.facts

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """See `BaselineTrainer`."""
    return self._public.folded(self._inner.baseline(plan))


class FoldedTrainer(FoldedBaseline, Trainer):
  """See `Trainer`, and `FoldedBaseline` for the arguments."""

  def __init__(self, public: PublicRows, inner: Trainer):
    super().__init__(public, inner)
    self._trainer = inner

  def read(self) -> None:
    """See `Trainer`."""
    self._trainer.read()

  def notes(self, plan: ReleasePlan) -> Iterable[str]:
    """See `Trainer`."""
    return self._trainer.notes(plan)

  def resumes_by(self, plan: ReleasePlan) -> Resumable:
    """See `Trainer`."""
    inner = self._trainer.resumes_by(plan)
    mapped = {
      SETTING: self._public.record.as_json(),
      "public_rows": self._public.cache.private_digest,  # of no secret
    }
    return dataclasses.replace(inner, settings={**inner.settings, **mapped})

  def release(
    self,
    plan: ReleasePlan,
    source: NoiseSource,
    charge: Charging,
    on_release: OnRelease = unseen,
  ) -> Iterator[TrainedHead]:
    """See `Trainer`."""
    for trained in self._trainer.release(plan, source, charge, on_release):
      yield self._public.folded(trained)


def find_public_rows(
  private: FeatureCache,
  public_cache: Path | None,
  public_statistics: PublicUse | None,
  ledger_dir: Path | None = None,
) -> PublicRows | None:
  """The public rows that a command names; without any, warns who needs some.

  Whether features are non-negative is told by their backbone's name, which is
  public. What the private rows look like is never asked: a warning that depends
  on them would be a release.

  What is in any ledger of `ledger_dir` is private. InputError: see
  `PublicRows.read`; or something to take, and no cache.
  """
  if public_cache is not None:
    return PublicRows.read(
      public_cache, private, public_statistics or "mean", ledger_dir
    )
  if public_statistics is not None:
    raise InputError(
      f"public_statistics={public_statistics!r} are taken from a public cache:"
      " give --public-cache too, or leave it out."
    )
  backbone = private.info.backbone.name
  if backbone.startswith(NON_NEGATIVE):
    print(
      f"warning: embeddings of {backbone} are non-negative, so that most of"
      " each is the mean of all, which costs accuracy, above all of heads of"
      " one step; centre them with --public-cache.",
      file=sys.stderr,
    )
  return None


def choosing_trainer(
  cache: FeatureCache,
  configs: Sequence[HeadConfig],
  public: PublicRows | None,
  hosts: Hosts = ALONE,
) -> Trainer:
  """Trains heads on one part of the rows of a cache, and gives the best.

  Raises:
    InputError: see `ChoosingTrainer`.
  """
  rows = cache_rows(cache, hosts=hosts)
  held_out = held_out_of(cache, rows)
  mapped = public.mapped(rows) if public else rows
  trainer = ChoosingTrainer(mapped, configs, held_out, step_bar)
  return FoldedTrainer(public, trainer) if public else trainer


def held_out_of(
  cache: FeatureCache, rows: TrainingRows
) -> Bool[np.ndarray, " n"]:
  """Which rows of this host are held out of training; private.

  Decided by each row's own content: its image's key, or its embedding's; by
  other bits than its part of a split, so that every part has some. Where there
  are units it is decided by whose they are.
  """
  part = SplitPart(split=cache.info.split, start=100 - HELD_OUT_PERCENT)
  if rows.has_units:
    words = [np.stack([unit_words(block)] * 2, 1) for block in rows.blocks()]
  else:
    words = [
      keys[:, -1] << np.uint64(32)
      for i in own_shards(cache, rows.hosts)
      for keys in cache.shard_keys(i)
    ]
  return in_part(part, np.concatenate([np.empty((0, 2), np.uint64), *words]))


def asked_of_public_rows(public: PublicRows | None) -> dict[str, Any]:
  """What config.json says of them."""
  if public is None:
    return {"public_cache": None}
  return {
    "public_cache": public_metadata(public.cache),
    SETTING: public.record.used,
  }
