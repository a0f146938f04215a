"""What a way to train heads is given, and what it has to give."""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.configs.head_config import HeadConfig, ReleaseOrder
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.public_start import PublicStart
from oneshot_dp.linear_dp.rows.block import RowBlock
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts

AS_STORED = "embedding"
UNIT_NORM = "embedding / its L2 norm"
"""What the kernel of a head is multiplied with."""
UNCLIPPED = "nothing"
"""What is clipped where nothing bounds the influence of a row."""
ROW, MEANS = "row", "mean"
"""What is clipped: a row is a privacy unit, or its mean rows weigh as one."""
WHOLE = "whole unit"
"""All rows of a unit are in one part, and weigh as one there."""
ROWS_ARE_CLIPPED = {"rows_per_unit": 1, "clipped": ROW}
"""What receipts and ledgers say where every row is a privacy unit."""

_BESIDE_VALUES = 8192
"""Bytes of a release's file beside its values: a header, and whole blocks."""

Charging = Callable[[ReleasePlan, NoiseSource], object]
"""Called once, before any random bit is drawn; raises to refuse."""
Progress = Callable[
  [str, str, int | None], contextlib.AbstractContextManager[Any]
]
"""(what, unit, total) → a bar for people, such as tqdm's: a context manager
that gives something to `update()` with what is done."""


class NoBar(contextlib.nullcontext):
  """A `Progress` that shows nothing."""

  def __init__(self, what: str, unit: str, total: int | None = None):
    super().__init__(self)

  def update(self, done: int = 1) -> None:
    """Does nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Released:
  """What one noisy mechanism of a plan let out; as public as the head.

  Values are integers times `grid_step`, taken `at` what was public before.
  """

  name: str
  value: np.ndarray
  noise_multiplier: float
  grid_step: float
  at: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resumable:
  """What a training that goes on in another process is known again by.

  `num_steps` counts passes over the rows after the charge; `settings` is all
  that it depends on but rows, noise and plan: public, JSON.
  """

  num_steps: int = 0
  num_bytes: int
  settings: Mapping[str, Any]


def disk_of(num_releases: int, num_values: int) -> int:
  """Bytes that releases of so many values each take, a file each."""
  return num_releases * (8 * num_values + _BESIDE_VALUES)


OnRelease = Callable[[Released], object]
"""Called with all that leaves, in order: what the strongest adversary sees."""


def unseen(released: Released) -> None:
  """Looks at nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRows:
  """Private rows: their public sizes d, K and n, and a way to read them.

  Attributes:
    blocks: starts a pass over all rows, every one once; where there are several
      hosts, over those of this one.
    privacy_unit: what a guarantee is about; more than a row, unless "example".
    max_rows_per_unit: m, only of rows with units: sum at most m of each instead
      of clipping the sum of all.
    are_centred: whether the mean of public rows was taken off.
    num_rows: how many a pass has; private, where n only says how many there may
      be on average. None is n.
    most_rows: public bound of that; None is n.
  """

  blocks: Callable[[], Iterable[RowBlock]] = dataclasses.field(repr=False)
  feature_dim: int
  num_classes: int
  num_examples: int
  privacy_unit: str = EXAMPLE_UNIT
  max_rows_per_unit: int | None = None
  are_centred: bool = False
  num_rows: int | None = dataclasses.field(default=None, repr=False)
  most_rows: int | None = None
  start: PublicStart | None = None
  hosts: Hosts = ALONE
  own_rows: range | None = dataclasses.field(default=None, repr=False)

  @property
  def counted(self) -> int:
    """How many rows there must be in a pass of this host; private."""
    if self.own_rows is not None:
      return len(self.own_rows)
    return self.num_rows or self.num_examples

  @property
  def has_units(self) -> bool:
    return self.privacy_unit != EXAMPLE_UNIT

  @property
  def clipped(self) -> str:
    """What heads of rows of norm 1 bound the influence of."""
    return MEANS if self.has_units else ROW

  def shown(self, what: str, progress: Progress) -> Iterator[RowBlock]:
    """One pass, with a bar while it lasts."""
    with progress(what, "row", self.counted) as bar:
      for block in self.blocks():
        yield block
        bar.update(len(block.label))


class Mechanism(abc.ABC):
  """What a head was made by: all that its guarantee depends on, but the noise.

  A frozen dataclass of parameters, all that `from_json` reads; `as_json` has
  what follows from them, too, so that to compare them is to recompute it.
  """

  KIND: ClassVar[str]
  """Its name in receipts."""
  is_noisy: ClassVar[bool] = True
  """Whether there may be noise in what it releases."""

  @classmethod
  def from_json(cls, section: Mapping[str, Any]) -> Self:
    """Reads the parameters, each of its type; KeyError or ValueError."""
    fields = dataclasses.fields(cls)  # pyrefly: ignore[bad-argument-type]
    return msgspec.convert({f.name: section[f.name] for f in fields}, cls)

  @abc.abstractmethod
  def as_json(self) -> dict[str, Any]:
    """The receipt's section about it."""

  @abc.abstractmethod
  def in_words(self, training: Mapping[str, Any]) -> str:
    """How the head was trained, for people; `training` is its settings."""

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """The unit of the statement's noise_sd; 1 where that is in units of it."""
    return 1.0

  @property
  def sampling(self) -> PoissonSampling | None:
    """The random batches that the noise multiplier is about, if any."""
    return None

  def training(self) -> dict[str, Any]:
    """Settings that it fixes."""
    return {"head": self.KIND}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedHead:
  """A head and what is to be said of it.

  Attributes:
    plan: the releases that it is one of, which compose.
    settings: all that was chosen for it; public. "head" names the method.
    ledger_entry: SHA-256 of the entry that paid; a trainer does not know it.
  """

  head: LinearHead
  statement: PrivacyStatement
  mechanism: Mechanism
  plan: ReleasePlan
  settings: Mapping[str, Any]
  draw: int
  ledger_entry: str = ""


class BaselineTrainer(abc.ABC):
  """A way to train a head without privacy, to compare with."""

  facts: Mapping[str, Any]
  """What bounds a row's influence; kept with its entry in the ledger."""

  @abc.abstractmethod
  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """The head without noise: NOT PRIVATE."""


class Trainer(BaselineTrainer):
  """A way to train private heads."""

  @abc.abstractmethod
  def read(self) -> None:
    """Does all that comes before the charge; an InputError for damaged rows."""

  def notes(self, plan: ReleasePlan) -> Iterable[str]:
    """What follows from the plan and public sizes, for people."""
    return ()

  @abc.abstractmethod
  def resumes_by(self, plan: ReleasePlan) -> Resumable:
    """What a stopped training is known again by.

    Each release, and all else that is drawn for good, is made by
    `NoiseSource.once`; what shares noise, by one call of it.
    """

  @abc.abstractmethod
  def release(
    self,
    plan: ReleasePlan,
    source: NoiseSource,
    charge: Charging,
    on_release: OnRelease = unseen,
  ) -> Iterator[TrainedHead]:
    """Yields heads, draw by draw, the largest ε first.

    Formal guarantees: each head is (ε, δ)-DP in the plan's neighbouring
    relation, and all of them together cost `plan.composed_epsilon`, with n and
    the number of classes public. `charge` has returned before a random bit is
    drawn, so a crash costs budget and never privacy. A seeded source marks
    every head NOT PRIVATE. `on_release` gets all that the heads are made of.
    """


class HeadTrainer(Trainer):
  """A way to train that the registry has a row for; its class says which.

  `configs` are the heads to make of each release; several only of one step.
  """

  methods: ClassVar[tuple[str, ...]]
  """Names of `--head` that lead to it."""
  mechanism: ClassVar[type[Mechanism]]
  """What its receipts state; reads those of its KIND."""
  takes_start: ClassVar[bool] = False
  """Whether public weights can be started from."""
  can_nest: ClassVar[bool] = False
  """Whether heads of all ε can be made of nested releases."""

  def __init__(
    self,
    rows: TrainingRows,
    configs: Sequence[HeadConfig],
    progress: Progress = NoBar,
  ):
    self._given = rows
    self._configs = configs
    self._progress = progress

  @classmethod
  def sampling(
    cls, config: HeadConfig, num_examples: int
  ) -> PoissonSampling | None:
    """The random batches that a plan is about, by a config and n."""

  @classmethod
  def order(cls, asked: ReleaseOrder | None = None) -> ReleaseOrder:
    """The order of release asked for, or the cheapest that there is."""
    if cls.can_nest:
      return asked or "nested"
    if asked == "nested":
      raise InputError(
        "release='nested' is for heads of one step, least squares and auto;"
        f" head={cls.methods[0]!r} has noise of its own: leave it out, or use"
        " --release independent."
      )
    return "independent"
