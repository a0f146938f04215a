"""Whether a head is what its receipt says, and was paid for."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.extract.files import read_regular
from oneshot_dp.pipeline.heads.head_folder import SavedHead, read_head
from oneshot_dp.pipeline.heads.receipt import NOT_PRIVATE
from oneshot_dp.pipeline.ledger.delivery import WEIGHTS_FILE
from oneshot_dp.pipeline.ledger.entries import (
  ReleasedHead,
  sha256,
  spent,
)
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.store import ledger_exists

_MOST_WEIGHTS = 1 << 34  # bytes; `train` refuses to make so many
_NOBODY = "nobody can tell from files alone that weights contain noise"


class Verdict(NamedTuple):
  """What was found about a head."""

  vouched: bool | None  # the ledger knows these very bytes; None: there is none
  said: tuple[str, ...]  # for people; what the ledger says comes first
  faults: tuple[str, ...]  # one line each


def verify_head(path: Path, ledger: Ledger) -> Verdict:
  """Asks the ledger, and computes what a receipt claims anew (`read_head`).

  That there is noise in the weights at all follows from nothing in their files:
  only the ledger, where it is at hand, knows the bytes that left for a charge.

  InputError: there is no head, or the ledger is damaged.
  """
  weights = sha256(read_regular(path / WEIGHTS_FILE, _MOST_WEIGHTS))
  saved, faults = None, ()
  try:
    saved = read_head(path)
  except InputError as error:
    faults = (str(error),)
  why = _unlike(saved, ledger, ledger.heads().get(weights))
  vouched = not why if ledger_exists(ledger.path) else None
  said = [f"NOT VOUCHED FOR by {ledger.path}: {why}; {_NOBODY}"]
  if vouched:
    said = [f"vouched for: {ledger.path} was charged, and these bytes left"]
  elif vouched is None:
    said = [f"no ledger {ledger.path} is here, so nobody vouches: {_NOBODY}"]
  if saved is not None:
    said.append("its numbers follow from the noise stated, its files fit")
    if not saved.trained.private:
      said.append(f"this head is {NOT_PRIVATE}")
    if saved.stated["charge"] is None:
      said.append("no ledger was charged for it: nobody counts what it cost")
  return Verdict(vouched, tuple(said), faults)


def _unlike(
  saved: SavedHead | None, ledger: Ledger, left: ReleasedHead | None
) -> str:
  """How a head differs from what left for its charge; "" if in nothing."""
  if left is None:
    return "these weights did not leave for any of its charges"
  if saved is None or saved.receipt_sha256 != left.receipt_sha256:
    return "these weights left, but with another receipt"
  private, follows = saved.trained.private, saved.receipt["follows"]
  cost = follows["mu_squared"] if private else 0
  paid = ledger.paid(left.charge)
  of = saved.stated["dataset"], saved.stated["privacy_unit"]
  if any((e.dataset, e.unit) != of for e in paid) or spent(paid) < cost:
    return "less was charged for these rows than it cost"
  return ""


def earlier_head(
  path: Path, ledger: Ledger, cache: FeatureCache, delta: float
) -> SavedHead:
  """A head to go on from, for the difference: one of the same rows, paid for.

  InputError: it is another's, or edited; the ledger does not know its charge
  and its bytes; or it is of other rows or another δ, or NOT PRIVATE.
  """
  saved, verdict = read_head(path), verify_head(path, ledger)
  why = "" if verdict.vouched else verdict.said[0]
  expected = {"cache_fingerprint": cache.info.fingerprint, "private": True}
  expected |= {"rows": str(cache.part), "delta": delta}
  for name, value in expected.items():
    if not why and saved.stated[name] != value:
      why = f"its {name} is {saved.stated[name]!a}, where {value!a} is needed"
  paid = ledger.paid(saved.stated["charge"])
  digests = [each.identity.get("private_digests", [""])[0] for each in paid[:1]]
  if not why and digests != [cache.private_digest]:
    why = f"it was trained on other rows than {cache.name} has"
  if why:
    raise InputError(f"{path} cannot be gone on from: {why}.")
  # Its σ were rounded up: what was paid for it alone is a hair more, and with
  # the rest adds up to the larger budget, which may be the cap.
  trained, cost = saved.trained, float(spent(paid))
  if cost <= (trained.mu_squared or 0.0) * (1 + 1e-9):
    trained = dataclasses.replace(trained, mu_squared=cost)
  return dataclasses.replace(saved, trained=trained)
