"""Training whitened heads: one pass for the moment, many for the steps."""

import dataclasses
from collections.abc import Iterator

from tqdm import tqdm

from configs.errors import InputError
from configs.schema import HeadConfig
from extract.cache_reader import FeatureCache
from linear_dp.noise_source import NoiseSource
from linear_dp.release import ReleasePlan
from linear_dp.second_moment import second_moment
from linear_dp.secret_rows import SecretRows
from linear_dp.whitened import (
  WhitenedRelease,
  release_whitened,
  whitened_without_privacy,
)
from pipeline.mechanisms import Whitened
from pipeline.trainer import Charging, TrainedHead


class WhitenedTrainer:
  """See `Trainer`.

  Args:
    cache: the private rows, each a privacy unit.

  Raises:
    InputError: the cache has coarser units.
  """

  def __init__(self, cache: FeatureCache):
    info = cache.info
    if info.has_units:
      raise InputError(
        "head='whitened' has a guarantee per example, and the privacy unit of"
        f" this cache is {info.privacy_unit!r}; use --head lamb."
      )
    self._rows = SecretRows(
      cache.blocks,
      feature_dim=info.feature_dim,
      num_classes=info.num_classes,
      num_examples=len(cache),
    )
    self.facts = {"rows_per_unit": 1, "clipped": "row"}

  def read(self) -> None:
    """See `Trainer`."""
    self._moment = second_moment(self._rows)

  def release(
    self, plan: ReleasePlan, source: NoiseSource, charge: Charging
  ) -> Iterator[TrainedHead]:
    """See `Trainer`."""
    with _bar() as bar:
      for released in release_whitened(
        self._rows,
        self._moment,
        plan,
        source,
        charge=charge,
        on_step=bar.update,
      ):
        yield _trained(released, plan)

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """See `Trainer`."""
    with _bar() as bar:
      return _trained(
        whitened_without_privacy(
          self._rows, self._moment, plan, on_step=bar.update
        ),
        plan,
      )


def _trained(released: WhitenedRelease, plan: ReleasePlan) -> TrainedHead:
  return TrainedHead(
    head=released.head,
    statement=released.statement,
    mechanism=Whitened(rule=released.rule),
    plan=plan,
    settings=dataclasses.asdict(HeadConfig(head="whitened")),
    draw=released.draw,
  )


def _bar() -> tqdm:
  return tqdm(desc="steps", unit="step", disable=None, leave=False)
