"""Receipts and cards of earlier versions, as this one would write them."""

import contextlib
from typing import Any

from oneshot_dp.linear_dp.accounting.events import (
  epsilon_of_event,
  event_as_json,
  relation_of,
)
from oneshot_dp.linear_dp.accounting.plan import event_of_draws
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.pipeline.saved_head.make_receipt import FORMAT_VERSION

TESTABLE = (
  "whoever has its composition.ledger_entry can test candidate rows by it: it"
  " was written before such names hid the rows behind random bits. Publish no"
  " receipt with it; where it is public, no epsilon covers what it tells"
)
_NO_LONGER = NeighboringRelation.ADD_OR_REMOVE_ONE.name
_REPLACED = NeighboringRelation.REPLACE_ONE.name
_CARD = {
  "layer unknown": "embedding unknown",
  " of 1 epsilons, ": " of 1 epsilon, ",
  " is added or removed: whoever": " is in the data or nothing in its place:"
  " whoever",
  " is replaced by nothing: whoever": " is in the data or nothing in its place:"
  " whoever",
  " is replaced by another: whoever": " is in the data or another in its place:"
  " whoever",
  "knows all the rest of the data and starts": "knows the number of examples"
  " and all the rest of the data, and starts",
}
"""Words of earlier cards, and those of this version."""
_MECHANISM = {
  "and rint(F/step) +": "and rint(F/R) +",
  "rint(F/step) + round(noise) of": "rint(F/R) + round(noise) of",
  "for a step, B + (1 + 2^-10)*sqrt(K*d) and the bound on F's float64 error;"
  " doubled": "for a step, B + sqrt(K*d), as F is of integers; doubled",
  "B + (1 + 2^-10)*sqrt(K*d) grid steps and the bound on the float64 error of F"
  "; doubled": "B + sqrt(K*d) grid steps, as F is of integers; doubled",
}
"""The same of mechanisms whose steps were summed in float64, at a sensitivity
that paid for its errors; noise is stated in units of it."""


def upgraded(receipt: dict[str, Any]) -> dict[str, Any]:
  """A receipt as this version would have written it.

  What is damaged, or of no known version, is left for the check to complain of.
  """
  try:
    receipt = _with_exact_steps(receipt)
    if receipt.get("format_version") == 1:
      receipt = _with_events(receipt)
    if receipt.get("format_version") == 2:
      receipt = _with_public_n(receipt)
  except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
    pass
  return receipt


def upgraded_card(card: str) -> str:
  """A model card in the words of this version."""
  for words, now in _CARD.items():
    card = card.replace(words, now)
  return card


def notes_on(receipt: dict[str, Any]) -> list[str]:
  """What is to be known of a receipt, as an earlier version wrote it."""
  notes = [TESTABLE] if receipt.get("format_version") == 1 else []
  if receipt["privacy"].get("neighboring_relation") == _NO_LONGER:
    notes.append(
      f"it was stated in {_NO_LONGER}, which held only for whoever does not"
      " know n, and the receipt gives n: read REPLACE_SPECIAL (an example, or"
      " nothing in its place), at the same epsilon"
    )
  with contextlib.suppress(AttributeError, LookupError, TypeError):
    stated, proven = (
      each["privacy"]["epsilon_by_relation"][_REPLACED]
      for each in (receipt, upgraded(receipt))
    )
    if stated != proven:
      notes.append(
        f"its epsilon_by_relation says {stated:.4g} of {_REPLACED}, which is"
        f" not proven for Poisson samples: read {proven:.4g}, which is"
      )
  return notes


def _with_events(receipt: dict[str, Any]) -> dict[str, Any]:
  """Format 1, which listed noise multipliers, as format 2."""
  mechanism = dict(receipt["mechanism"])
  if mechanism["kind"] == "one step":
    mechanism["kind"] = "one-step"
  composition = dict(receipt["composition"])
  sigmas = composition.pop("noise_multipliers_charged")
  draws = composition["num_draws"]
  of_draw = sigmas[: len(sigmas) // draws]
  if of_draw * draws != sigmas:
    raise ValueError("draws that differ")
  event = event_of_draws(
    of_draw,
    draws,
    relation_of(receipt["privacy"]["neighboring_relation"]),
    mechanism_of(mechanism).sampling,
  )
  composition["dp_event"] = event_as_json(event)
  return receipt | {
    "format_version": 2,
    "mechanism": mechanism,
    "composition": composition,
  }


def _with_public_n(receipt: dict[str, Any]) -> dict[str, Any]:
  """Format 2, which had a relation in which n was not public, as format 3."""
  privacy = dict(receipt["privacy"])
  relation = privacy["neighboring_relation"]
  privacy["neighboring_relation"] = relation_of(relation).name
  by_relation = dict(privacy["epsilon_by_relation"])
  same = by_relation["REPLACE_SPECIAL"]
  if by_relation.pop(_NO_LONGER) != same:
    raise ValueError("the same noise at two epsilons")
  proven = _proven_of_samples(receipt)
  if proven and same <= by_relation[_REPLACED] < proven:
    by_relation[_REPLACED] = proven
  privacy["epsilon_by_relation"] = by_relation
  return receipt | {"format_version": FORMAT_VERSION, "privacy": privacy}


def _proven_of_samples(receipt: dict[str, Any]) -> float | None:
  """ε in REPLACE_ONE: earlier versions took a pair not proven to be worst."""
  privacy, mechanism = receipt["privacy"], mechanism_of(receipt["mechanism"])
  sigma, relation = privacy["noise_multiplier"], privacy["neighboring_relation"]
  if not (mechanism.sampling and sigma) or relation == _REPLACED:
    return None
  event = mechanism.sampling.event(sigma)
  replaced = NeighboringRelation.REPLACE_ONE
  return epsilon_of_event(event, privacy["delta"], replaced)


def _with_exact_steps(receipt: dict[str, Any]) -> dict[str, Any]:
  """What was said of sums in float64, as it is said of those of integers."""
  mechanism = dict(receipt["mechanism"])
  for name in mechanism.keys() & {"statistic", "sensitivity"}:
    for words, now in _MECHANISM.items():
      mechanism[name] = mechanism[name].replace(words, now)
  if mechanism["kind"] == "whitened" and mechanism["num_steps"] in (60, 100):
    mechanism.setdefault("moment_budget", 0.03)
  return receipt | {"mechanism": mechanism}
