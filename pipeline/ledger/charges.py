"""What a ledger holds, and what follows from it: spent, left, affordable."""

import dataclasses
import decimal
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from jaxtyping import UInt64

from oneshot_dp.configs.errors import InputError, check_name
from oneshot_dp.linear_dp import accounting

MOST_KEYS = 1 << 22
_LEAST_EPSILON = 1e-6  # less is nothing
Keys = Mapping[str, UInt64[np.ndarray, " _keys"]]
"""What rows are known by: keys of "image", "direction" and "unit", sorted, each
once. Of more than 2²² the smallest are kept, a sample, since keys are hashes.
Private."""


class Charge(NamedTuple):
  """What is about to be released, and what it costs."""

  what: str  # in words, for people
  mu2: Fraction | float | None  # μ², exact as a fraction; None is NOT PRIVATE
  unit: str = "example"
  delta: float | None = None  # at which its ε is stated
  came_from: str | None = None  # the charge of the head that it goes on from


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
    return Fraction(accounting.mu_squared(*self))

  def __str__(self) -> str:
    return "epsilon {} at delta {}".format(*map(accounting.printable, self))


class Known(NamedTuple):
  """How many rows and units a ledger knows as private ones, at least."""

  rows: int
  units: int


class Left(NamedTuple):
  """What paid for a head that left, and the SHA-256 of its receipt's bytes."""

  charge: str
  receipt_sha256: str


class Entry(
  msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
  """A row of a ledger. PRIVATE are `asked` and the keys of rows."""

  kind: Literal["charge", "cap", "left", "rows"]
  time: str
  dataset: str = ""  # of a charge, a cap, rows
  id: str = ""  # of a charge, as all down to `asked`; random
  what: str = ""
  mu2: (
    Annotated[str, msgspec.Meta(pattern="^[0-9]+(/[1-9][0-9]*)?$")] | None
  ) = None
  unit: str = ""
  delta: float | None = None  # of a cap, too
  came_from: str | None = None
  run: str = ""
  asked: dict[str, Any] = {}
  epsilon: float = 0.0  # of a cap
  charges: tuple[str, ...] = ()  # for which something left
  heads: dict[str, Left] = {}  # that left, by the SHA-256 of their weights
  of: str = ""  # which keys of rows lie beside it
  keys_sha256: str = ""


def sampled(keys: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, " keys"]:
  """Sorted, each once, the smallest; 0 is the key of no row."""
  keys = np.sort(keys, axis=None)
  return keys[np.diff(keys, prepend=np.uint64(0)) > 0][:MOST_KEYS]


def in_both(
  one: Keys, other: Keys, kinds: Sequence[str] = ("image", "direction")
) -> int:
  """How many rows, or units, are in both, at least, by these kinds of keys."""
  found = [(one[k], other[k]) for k in kinds if k in one and k in other]
  return max((len(np.intersect1d(a, b, True)) for a, b in found), default=0)


def spent(entries: Iterable[Entry]) -> Fraction:
  """Σμ² of charges, exactly; what is NOT PRIVATE aside."""
  return sum((Fraction(each.mu2 or 0) for each in entries), Fraction(0))


def cap_of(entries: Iterable[Entry]) -> Cap | None:
  """The cap that holds, of the entries of one data set."""
  caps = [Cap(e.epsilon, e.delta or 0.0) for e in entries if e.kind == "cap"]
  return caps[-1] if caps else None


def epsilon_left(mu2: Fraction, delta: float) -> float:
  """The largest ε, in five digits, that costs no more than is left; or 0."""
  down = decimal.Context(prec=5, rounding=decimal.ROUND_FLOOR)
  # A little more, for roundings; what is then too much is found by asking.
  most = accounting.epsilon_of(max(0.0, float(mu2)), delta) * (1 + 1e-8)
  epsilon = down.create_decimal(most)
  while epsilon >= _LEAST_EPSILON:
    if accounting.mu_squared(float(epsilon), delta) <= mu2:
      return float(epsilon)
    epsilon = down.next_minus(epsilon)
  return 0.0


def left_in_words(mu2: Fraction, delta: float) -> str:
  """What is left, for people."""
  epsilon, at = epsilon_left(mu2, delta), accounting.printable(delta)
  left = f"one release of epsilon {epsilon:g} at delta {at}"
  return f"{left if epsilon else 'nothing'} is left"


def check_affordable(
  dataset: str, entries: Sequence[Entry], charges: Sequence[Charge]
) -> None:
  """Refuses what would break the cap of a data set, or has another unit."""
  units = {each.unit for each in charges}
  units |= {each.unit for each in entries if each.kind == "charge"}
  if len(units) > 1:
    raise InputError(
      f"{dataset!r} is charged per {' and per '.join(sorted(units))}: what is"
      " protected is settled by the first charge; use caches of one unit."
    )
  if (cap := cap_of(entries)) is None:
    return
  asked = " and ".join(dict.fromkeys(each.what for each in charges))
  if any(each.mu2 is None for each in charges):
    raise InputError(
      f"{asked}: the cap of {dataset!r}, {cap}, covers nothing that is NOT"
      " PRIVATE; leave it out, or use a data set without a cap."
    )
  left = cap.mu2 - spent(entries)
  if sum(Fraction(each.mu2 or 0) for each in charges) > left:
    raise InputError(
      f"{asked} would break the cap of {dataset!r}, {cap}:"
      f" {left_in_words(left, cap.delta)}; ask for less, or raise the cap for"
      " all to see with `oneshot-dp budget`."
    )
