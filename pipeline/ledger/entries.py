"""The entries of a ledger, and the arithmetic of costs and caps.

Costs are μ² = Σ σ⁻² of Gaussian releases. They add up however each release was
chosen, and are kept as fractions, so that no sum is rounded.
"""

import dataclasses
import decimal
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from jaxtyping import UInt64

from oneshot_dp.linear_dp import accounting

_LEAST_EPSILON = 1e-6  # a smaller remaining ε counts as nothing
_FRACTION = msgspec.Meta(pattern="^[0-9]+(/[1-9][0-9]*)?$", max_length=4096)
"""A fraction of two numbers that Python can read: int() takes 4,300 digits. A
sum of float64 numbers has about 700."""
_MOST_MU_SQUARED = 2**64  # far more than any ε that is accepted costs
ROW_KEY_KINDS = ("image", "direction")

Keys = Mapping[str, UInt64[np.ndarray, " _keys"]]
"""Kind ("image", "direction", "unit") → sorted 64-bit keys, by which rows and
units are known again: see `extract.cache.keys.keys_of`. PRIVATE."""


class Cap(NamedTuple):
  """The budget that all releases of a data set are to keep, together."""

  epsilon: float
  delta: float

  @property
  def mu_squared(self) -> Fraction:
    """The largest μ² that is (ε, δ)-private."""
    return Fraction(accounting.mu_squared_from_epsilon(*self))

  def __str__(self) -> str:
    epsilon = accounting.format_rounded_up(self.epsilon)
    delta = accounting.format_rounded_up(self.delta)
    return f"epsilon {epsilon} at delta {delta}"


class ReleasedHead(NamedTuple):
  """The charge that paid for a released head, and its receipt's SHA-256."""

  charge: str
  receipt_sha256: str


class LedgerEntry(
  msgspec.Struct,
  frozen=True,
  forbid_unknown_fields=True,
  omit_defaults=True,
  rename={
    "description": "what",
    "mu_squared": "mu2",
    "parent_charge_id": "came_from",
    "identity": "asked",
    "charge_ids": "charges",
    "key_kind": "of",
  },
):
  """One entry of a ledger; `rename` has the names of its fields on the disk.

  `identity`, and the keys of rows that lie beside an entry, are PRIVATE.

  Attributes:
    kind: "charge", "cap", "left" (heads were released) or "rows" (keys of
      private rows).
    time: when it was written, ISO 8601, UTC.
    dataset: of a charge, a cap, or rows.
    id: of a charge: 128 random bits, in hexadecimal.
    description: of a charge, for people.
    mu_squared: of a charge: its cost as a fraction; None is NOT PRIVATE.
    unit: of a charge: the privacy unit.
    delta: of a charge: at which its ε is stated; of a cap.
    parent_charge_id: of a charge for the difference to an earlier head: the
      charge of that head.
    run: of a charge: where its results go.
    identity: of a charge: everything that makes it this run and no other.
    epsilon: of a cap.
    charge_ids: of "left": the charges that something was released for.
    heads: of "left": the released heads, by the SHA-256 of their weights.
    key_kind: of rows: which kind of keys lies beside the entry.
    keys_sha256: of rows: the SHA-256 of these keys.
  """

  kind: Literal["charge", "cap", "left", "rows"]
  time: str = ""
  dataset: str = ""
  id: str = ""
  description: str = ""
  mu_squared: Annotated[str, _FRACTION] | None = None
  unit: str = ""
  delta: float | None = None
  parent_charge_id: str | None = None
  run: str = ""
  identity: dict[str, Any] = {}
  epsilon: float = 0.0
  charge_ids: tuple[str, ...] = ()
  heads: dict[str, ReleasedHead] = {}
  key_kind: str = ""
  keys_sha256: str = ""

  def __post_init__(self):
    """Refuses numbers that whoever reads the entry could not compute with."""
    # Entries come from a file that may be damaged. What passes here can be
    # added up, and converted to an ε, by everybody who reads it.
    cost = Fraction(self.mu_squared or 0)
    if cost > _MOST_MU_SQUARED:
      raise ValueError("a cost is too large")
    if self.kind == "cap":
      if self.delta is None:
        raise ValueError("a cap has no delta")
      accounting.check_budget(self.epsilon, self.delta, allow_weak_privacy=True)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ChargeRequest:
  """Charges for the rows of one data set, which are known by PRIVATE keys.

  Attributes:
    dataset: its name.
    charges: what is charged; empty where only the rows are to be known.
    keys: of the rows.
    cache: where the rows lie, for messages.
  """

  dataset: str
  charges: tuple[LedgerEntry, ...]
  keys: Keys
  cache: str = "CACHE"


def sha256(content: bytes) -> str:
  """The SHA-256 of these bytes, in hexadecimal."""
  return hashlib.sha256(content).hexdigest()


def digest_of_rows(requests: Sequence[ChargeRequest]) -> str:
  """The SHA-256 of all keys of all requests."""
  parts = []
  for request in requests:
    for kind, keys in sorted(request.keys.items()):
      parts.append(kind.encode() + keys.tobytes())
  return sha256(b"".join(parts))


def count_shared(
  one: Keys, other: Keys, kinds: Sequence[str] = ROW_KEY_KINDS
) -> int:
  """Counts the rows (or units) that two sets of keys have in common, at least.

  Different kinds of keys may find different copies; the largest count is taken.

  Args:
    one: keys of rows, sorted and without duplicates.
    other: the same of other rows.
    kinds: which kinds of keys are compared; those that one of the two lacks
      are passed over.

  Returns:
    A count, PRIVATE. Copies of a row within one of the two count once.
  """
  # Not the sum over kinds: a row that two kinds of keys recognize is one row.
  most = 0
  for kind in kinds:
    if kind in one and kind in other:
      shared = np.intersect1d(one[kind], other[kind], assume_unique=True)
      most = max(most, len(shared))
  return most


def spent(entries: Iterable[LedgerEntry]) -> Fraction:
  """Σ μ² of the charges among these entries, exactly.

  Charges that are NOT PRIVATE have no μ² and are left out.
  """
  return sum((Fraction(entry.mu_squared or 0) for entry in entries), Fraction())


def cap_of(entries: Iterable[LedgerEntry]) -> Cap | None:
  """The cap in force, given the entries of one data set, oldest first.

  Args:
    entries: of any kind; the last that sets a cap counts.

  Returns:
    The cap; None where none was ever set.
  """
  # Entries are never removed: a cap that was changed has a newer one.
  cap = None
  for entry in entries:
    if entry.kind == "cap":
      cap = Cap(entry.epsilon, entry.delta or 0.0)
  return cap


def remaining_epsilon(cap: Cap, spent_mu_squared: Fraction) -> float:
  """The largest ε of one further release under a cap; 0.0 if there is none.

  It has five digits, rounded down: a release of this ε at the cap's δ fits.

  Args:
    cap: the cap of a data set.
    spent_mu_squared: Σ μ² of all that was charged to it; more than the cap has
      if it was set afterwards.
  """
  # Negative if more was spent before the cap was set; then no ε fits.
  remaining = cap.mu_squared - spent_mu_squared
  rounded_down = decimal.Context(prec=5, rounding=decimal.ROUND_FLOOR)
  # `epsilon_of` is right to a few units in the last place. Begin a little
  # above it, and go down until the price, asked of the same function that a
  # charge asks, fits.
  start = accounting.epsilon_of(max(0.0, float(remaining)), cap.delta)
  epsilon = rounded_down.create_decimal(start * (1 + 1e-8))
  while epsilon >= _LEAST_EPSILON:
    price = accounting.mu_squared_from_epsilon(float(epsilon), cap.delta)
    if price <= remaining:
      return float(epsilon)
    epsilon = rounded_down.next_minus(epsilon)
  return 0.0


def describe_remaining(cap: Cap, spent_mu_squared: Fraction) -> str:
  """Says what is left of a cap.

  Args:
    cap: the cap of a data set.
    spent_mu_squared: Σ μ² of all that was charged to it.
  """
  epsilon = remaining_epsilon(cap, spent_mu_squared)
  if not epsilon:
    return "nothing is left"
  delta = accounting.format_rounded_up(cap.delta)
  return (
    f"enough is left for one more release at epsilon {epsilon:g}, delta {delta}"
  )
