"""What `train_heads` asks of a way to train."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from oneshot_dp.extract.cache.block import Block
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.mechanisms.mechanism import Mechanism

Charging = Callable[[ReleasePlan, NoiseSource], object]


@runtime_checkable
class TrainingRows(Protocol):
  """The private rows that a trainer reads: a cache, or a view of one."""

  @property
  def info(self) -> CacheInfo:
    """What is in the cache; public."""
    ...

  def __len__(self) -> int:
    """n."""
    ...

  def blocks(self) -> Iterator[Block]:
    """Streams the rows, every one once."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedHead:
  """A head and what is to be said of it.

  Attributes:
    head: the weights.
    statement: its guarantee.
    mechanism: what it was released by.
    plan: the releases that it is one of, which compose.
    settings: all that was chosen for it; public. "head" names the method.
    draw: which of the run's repetitions it is of.
    ledger_entry: SHA-256 of the entry that paid for it, or owns up to it; a
      trainer does not know it.
  """

  head: LinearHead
  statement: PrivacyStatement
  mechanism: Mechanism
  plan: ReleasePlan
  settings: Mapping[str, Any]
  draw: int
  ledger_entry: str = ""


@runtime_checkable
class BaselineTrainer(Protocol):
  """A way to train a head without privacy, to compare with."""

  @property
  def facts(self) -> Mapping[str, Any]:
    """Public facts of it, to keep with its entry in the ledger."""
    ...

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """The head without noise: NOT PRIVATE."""
    ...


@runtime_checkable
class Trainer(BaselineTrainer, Protocol):
  """A way to train private heads from a cache."""

  def read(self) -> None:
    """All that is done before anything is charged.

    Raises:
      InputError: damaged rows.
    """
    ...

  def release(
    self, plan: ReleasePlan, source: NoiseSource, charge: Charging
  ) -> Iterator[TrainedHead]:
    """Heads for each draw and epsilon; `charge` returns before any noise."""
    ...
