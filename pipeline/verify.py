"""Whether a head is what its receipt says, and was paid for."""

import hashlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.files import open_regular
from oneshot_dp.pipeline.card import NOT_PRIVATE
from oneshot_dp.pipeline.deliver import WEIGHTS_FILE
from oneshot_dp.pipeline.head_folder import SavedHead, read_head
from oneshot_dp.pipeline.ledger import Ledger, Left

_NOBODY = "nobody can tell from files alone that weights contain noise"


class Verdict(NamedTuple):
  """What was found about a head.

  Attributes:
    vouched: whether the ledger knows these very bytes; None: there is none.
    said: for people; what the ledger says comes first.
    faults: what is wrong with it, one line each.
  """

  vouched: bool | None
  said: tuple[str, ...]
  faults: tuple[str, ...]


def verify_head(path: Path, ledger: Ledger) -> Verdict:
  """Asks the ledger, and computes what a receipt claims anew.

  Numbers follow from the noise that is stated, and weights, receipt and card
  belong together (`read_head`). That there is noise in the weights at all
  follows from nothing: only the ledger, where it is at hand, knows the bytes
  that left for a charge.

  InputError: there is no head, or the ledger is damaged.
  """
  with open_regular(path / WEIGHTS_FILE) as file:
    left = ledger.vouch(hashlib.file_digest(file, "sha256").hexdigest())
  faults: list[str] = []
  saved, vouched = None, None
  try:
    saved = read_head(path)
  except InputError as error:
    faults.append(str(error))
  if not ledger.exists:
    first = f"no ledger {ledger.path} is here, so nobody vouches: {_NOBODY}"
  else:
    why = "these weights did not leave for any of its charges"
    if left is not None:
      why = "; ".join(_differences(saved, ledger, left))
    vouched = not why
    first = (
      f"vouched for: {ledger.path} was charged, and these very bytes left"
      if vouched
      else f"NOT VOUCHED FOR by {ledger.path}: {why}; {_NOBODY}"
    )
  said = [first]
  if saved is not None:
    said.append("its numbers follow from the noise stated, its files fit")
    if not saved.private:
      said.append(f"this head is {NOT_PRIVATE}")
    if saved.stated["charge"] is None:
      said.append("no ledger was charged for it: nobody counts what it cost")
  return Verdict(vouched, tuple(said), tuple(faults))


def _differences(
  saved: SavedHead | None, ledger: Ledger, left: Left
) -> Iterator[str]:
  """How a head differs from what the ledger says left for its charge."""
  if saved is None or saved.receipt_sha256 != left.receipt_sha256:
    yield "these weights left, but with another receipt"
    return
  stated, paid = saved.stated, ledger.paid(left.charge)
  whole = paid and paid[-1].came_from is None
  costs = [each.mu2 for each in paid]
  if not whole or stated["charge"] != left.charge:
    yield "its charge is not there"
  elif stated["dataset"] != paid[0].dataset:
    yield f"{paid[0].dataset!r} was charged, not {stated['dataset']!r}"
  elif stated["privacy_unit"] != paid[0].unit:
    yield f"it was charged per {paid[0].unit}"
  elif stated["private"]:
    cost = Fraction(saved.follows["mu_squared"])
    if None in costs or sum(Fraction(c) for c in costs if c) < cost:
      yield "it was charged less than it cost"


def earlier_head(
  path: Path, ledger: Ledger, info: CacheInfo, part: Part
) -> SavedHead:
  """A head to go on from, for the difference: one of the same rows, paid for.

  Raises:
    InputError: it is another's, or edited; the ledger does not know its charge
      and its bytes; or it is of other rows, or NOT PRIVATE.
  """
  saved = read_head(path)
  verdict = verify_head(path, ledger)
  if not verdict.vouched:
    raise InputError(f"{path} cannot be gone on from: {verdict.said[0]}.")
  stated = saved.stated
  expected = {
    "dataset": info.dataset,
    "split": info.split,
    "rows": str(part),
    "privacy_unit": info.unit,
    "cache_fingerprint": info.fingerprint,
  }
  for name, value in expected.items():
    if stated[name] != value:
      raise InputError(
        f"{path} cannot be gone on from: its {name} is {stated[name]!a}, and"
        f" that of the cache {value!a}; give the cache that it was trained on."
      )
  if not saved.private:
    raise InputError(
      f"{path} is {NOT_PRIVATE}: there is no cost to go on from."
    )
  return saved
