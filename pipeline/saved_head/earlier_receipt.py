"""Receipts and cards of earlier versions, as this one would write them."""

from typing import Any

from dp_accounting import NeighboringRelation

from oneshot_dp.linear_dp.accounting.events import event_as_json
from oneshot_dp.linear_dp.accounting.plan import event_of_draws
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.pipeline.saved_head.make_receipt import FORMAT_VERSION


def upgraded(receipt: dict[str, Any]) -> dict[str, Any]:
  """A receipt as this version would have written it.

  What is damaged, or of no version that is known, is returned as it is: the
  check of a receipt says what is wrong with it.
  """
  if receipt.get("format_version") != 1:
    return receipt
  try:
    mechanism = dict(receipt["mechanism"])
    if mechanism["kind"] == "one step":
      mechanism["kind"] = "one-step"
    composition = dict(receipt["composition"])
    sigmas = composition.pop("noise_multipliers_charged")
    draws = composition["num_draws"]
    of_draw = sigmas[: len(sigmas) // draws]
    if of_draw * draws != sigmas:
      return receipt
    event = event_of_draws(
      of_draw,
      draws,
      NeighboringRelation[receipt["privacy"]["neighboring_relation"]],
      mechanism_of(mechanism).sampling,
    )
    composition["dp_event"] = event_as_json(event)
  except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
    return receipt
  return receipt | {
    "format_version": FORMAT_VERSION,
    "mechanism": mechanism,
    "composition": composition,
  }


def upgraded_card(card: str) -> str:
  """A model card in the words of this version."""
  return card.replace("layer unknown", "embedding unknown")
