"""What a ledger holds: charges, caps, what left, and which rows it knows.

And what follows from them, with no file in sight: what was spent, what is left
of a cap, whether more may be charged.
"""

import dataclasses
import decimal
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from jaxtyping import UInt64

from oneshot_dp.configs.errors import InputError, check_name
from oneshot_dp.linear_dp.accounting import (
  epsilon_of,
  mu_squared,
  printable,
)

MOST_KEYS = 1 << 22
_LEAST_EPSILON = 1e-6
"""Less than this is nothing left."""
Keys = Mapping[str, UInt64[np.ndarray, " keys"]]
"""What rows are known by: keys of "image", "direction" and "unit", sorted,
each once. Of more than 2²² the smallest are kept, a sample, since keys are
hashes. Private."""
_Exact = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(/[1-9][0-9]*)?$")]


class Charge(NamedTuple):
  """What is about to be released, and what it costs.

  Attributes:
    what: in words, for people.
    mu2: μ², exact where it is a fraction; None is NOT PRIVATE.
    unit: what is protected.
    delta: at which its ε is stated.
    came_from: the charge of the head that this one goes on from, if any.
  """

  what: str
  mu2: Fraction | float | None
  unit: str = "example"
  delta: float | None = None
  came_from: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Bill:
  """Charges for the rows of one data set, whose keys are private."""

  dataset: str
  charges: tuple[Charge, ...]
  keys: Keys

  def __post_init__(self):
    check_name("dataset", self.dataset)
    for each in self.charges:
      if each.mu2 is not None and not 0 < each.mu2 < math.inf:
        raise InputError(f"{each.what}: mu2={each.mu2} must be positive.")


class Cap(NamedTuple):
  """What all releases of a data set are to keep, together."""

  epsilon: float
  delta: float

  @property
  def mu2(self) -> Fraction:
    """The most that may be spent."""
    return Fraction(mu_squared(self.epsilon, self.delta))

  def __str__(self) -> str:
    epsilon, delta = map(printable, self)
    return f"epsilon {epsilon} at delta {delta}"


class Known(NamedTuple):
  """How many rows and units a ledger knows as private ones, at least."""

  rows: int
  units: int


class _Entry(
  msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"
):
  time: str


class ChargeEntry(_Entry, frozen=True, tag="charge"):
  """A charge; `asked` is PRIVATE, since it tells of the rows."""

  id: str
  dataset: str
  what: str
  mu2: _Exact | None
  unit: str
  delta: float | None
  came_from: str | None
  run: str
  asked: dict[str, Any]


class CapEntry(_Entry, frozen=True, tag="cap"):
  """A cap, from then on."""

  dataset: str
  epsilon: float
  delta: float


class Left(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """What paid for a head that left, and the SHA-256 of its receipt's bytes."""

  charge: str
  receipt_sha256: str


class LeftEntry(_Entry, frozen=True, tag="left"):
  """What left for some charges; heads by the SHA-256 of their weights."""

  charges: tuple[str, ...]
  heads: dict[str, Left]


class RowsEntry(_Entry, frozen=True, tag="rows"):
  """Rows of a data set, by keys that lie beside it; PRIVATE."""

  dataset: str
  of: str
  keys_sha256: str


Entry = ChargeEntry | CapEntry | LeftEntry | RowsEntry


def exact(mu2: Fraction | float | None) -> str | None:
  """A cost as it is written down."""
  return None if mu2 is None else str(Fraction(mu2))


def sampled(keys: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, " keys"]:
  """Sorted, each once, the smallest; 0 is the key of no row."""
  keys = np.sort(keys, axis=None)
  return keys[np.diff(keys, prepend=np.uint64(0)) > 0][:MOST_KEYS]


def cost(charge: ChargeEntry) -> Fraction:
  """μ², exactly; 0 of what is NOT PRIVATE."""
  return Fraction(charge.mu2 or 0)


def spent(charges: Iterable[Entry]) -> Fraction:
  """Σμ², exactly; what is NOT PRIVATE aside."""
  costs = (cost(each) for each in charges if isinstance(each, ChargeEntry))
  return sum(costs, Fraction(0))


def cap_of(entries: Iterable[Entry]) -> Cap | None:
  """The cap that holds, of the entries of one data set."""
  caps = [Cap(e.epsilon, e.delta) for e in entries if isinstance(e, CapEntry)]
  return caps[-1] if caps else None


def epsilon_spent(mu2: Fraction, delta: float) -> float:
  """ε of what was spent, rounded up."""
  rounded = float(mu2)
  if Fraction(rounded) < mu2:
    rounded = math.nextafter(rounded, math.inf)
  return epsilon_of(rounded, delta) if mu2 else 0.0


def epsilon_left(mu2: Fraction, delta: float) -> float:
  """The largest ε, in five digits, that costs no more than is left; or 0."""
  if mu2 <= 0:
    return 0.0
  down = decimal.Context(prec=5, rounding=decimal.ROUND_FLOOR)
  # A little more, for the roundings on the way here; what is then too much by
  # a rounding is found by asking.
  most = epsilon_of(float(mu2), delta) * (1 + 1e-8)
  epsilon = down.create_decimal(most)
  while epsilon >= _LEAST_EPSILON:
    if Fraction(mu_squared(float(epsilon), delta)) <= mu2:
      return float(epsilon)
    epsilon = down.next_minus(epsilon)
  return 0.0


def check_affordable(
  dataset: str, entries: Sequence[Entry], charges: Sequence[Charge]
) -> None:
  """Refuses what would break the cap of a data set, or has another unit."""
  for old in entries:
    for new in charges:
      if isinstance(old, ChargeEntry) and old.unit != new.unit:
        raise InputError(
          f"a release per {new.unit} cannot be added to those per {old.unit}"
          f" that {dataset!r} was charged for: what is protected is settled by"
          f" the first charge; use a cache of the same unit."
        )
  cap = cap_of(entries)
  if cap is None:
    return
  asked = " and ".join(dict.fromkeys(each.what for each in charges))
  if any(each.mu2 is None for each in charges):
    raise InputError(
      f"{asked}: the cap of {dataset!r}, {cap}, covers nothing that is NOT"
      " PRIVATE; leave it out, or use a data set without a cap."
    )
  left = cap.mu2 - spent(entries)
  if sum((Fraction(each.mu2 or 0) for each in charges), Fraction(0)) > left:
    rest = epsilon_left(left, cap.delta)
    raise InputError(
      f"{asked} would break the cap of {dataset!r}, {cap}:"
      f" {in_words(rest, cap.delta)}; ask for less, or raise the cap for all to"
      " see with `oneshot-dp budget`."
    )


def in_words(rest: float, delta: float) -> str:
  """What is left, for people."""
  if not rest:
    return "nothing is left"
  return f"one release of epsilon {rest:g} at delta {printable(delta)} is left"
