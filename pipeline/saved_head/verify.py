"""Whether a head is what its receipt says, and was paid for."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.events import parts_of, relation_of
from oneshot_dp.linear_dp.accounting.plan import BASELINE_NOISE, NOT_PRIVATE
from oneshot_dp.linear_dp.accounting.vocabulary import DpEvent
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import AS_STORED, UNIT_NORM
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import event_of
from oneshot_dp.pipeline.saved_head.check_receipt import plan_of, problems, same
from oneshot_dp.pipeline.saved_head.directory import (
  CARD_FILE,
  RECEIPT_FILE,
  WEIGHTS_FILE,
  SavedHead,
  bytes_of,
  read_head,
)
from oneshot_dp.pipeline.saved_head.earlier_receipt import (
  TESTABLE,
  upgraded_card,
)
from oneshot_dp.pipeline.saved_head.model_card import model_card


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadCheck:
  """What was found about a head, which is sound if it has no problems.

  `is_vouched`: a ledger says that these very bytes were published.
  """

  problems: tuple[str, ...]
  conclusion: str
  is_vouched: bool = False


_NOBODY = "nobody can tell from files alone that weights contain noise"


def verify_head(directory: Path, ledger_dir: Path | None = None) -> HeadCheck:
  """Recomputes what a receipt claims, and looks up what was charged and left.

  Numbers follow from the noise, the clipping and the public sizes
  (`check_receipt.problems`), and the model card holds a digest of the receipt.
  Names, settings, words, and that there is noise in the weights at all, follow
  from nothing: only the ledger, where it is at hand, knows the bytes that were
  published for a charge. Without it they are not vouched for, which the
  conclusion says.

  InputError: there is no head, it cannot be read, or the ledger is damaged.
  """
  saved = read_head(directory)
  found = [*problems(saved.receipt), *_problems_of_files(directory, saved)]
  said = [
    "the receipt's numbers follow from the noise that it states, and receipt,"
    " card and weights belong together",
    *saved.notes,
  ]
  if saved.receipt.get("private") is not True:
    said.append(f"this head is {NOT_PRIVATE}")
  is_vouched = False
  # A receipt that is no receipt names no entry.
  if not found and saved.receipt["composition"]["ledger_entry"] is None:
    said.append(
      "no ledger was charged for it, so nobody counts it or knows these bytes:"
      f" {_NOBODY}"
    )
  elif not found:
    ledger = Ledger(saved.receipt["data"]["dataset"], ledger_dir)
    name = saved.receipt["composition"]["ledger_entry"]
    paid = next((e for e in ledger.entries() if e["entry"] == name), None)
    left = ledger.published(name)
    is_vouched = bytes_of(directory) in left
    if not ledger.path.exists():
      said.append(
        f"no ledger {ledger.path} is here, so neither the charge nor these"
        f" bytes were looked up: {_NOBODY}"
      )
    elif paid is None:
      found.append(
        f"ledger_entry {name[:12]} is not in {ledger.path}: if a ledger in"
        " another folder was charged, name that folder (--ledger-dir)."
      )
    else:
      found += _problems_of_charge(saved.receipt, paid)
      if left and not (is_vouched or found):
        found.append(
          f"{ledger.path} knows other bytes of {WEIGHTS_FILE} and"
          f" {RECEIPT_FILE} that were published for entry {name[:12]}: one was"
          " changed."
        )
      noted = (
        "says that these very bytes of weights and receipt were published"
        if is_vouched
        else "does not say which bytes were published (it is of an earlier"
        f" version, or the run was killed): {_NOBODY}"
      )
      said.append(f"the ledger was charged for it, and {noted}")
      if "nonce" not in paid and TESTABLE not in said:
        said.append(TESTABLE)
  return HeadCheck(
    problems=tuple(found),
    conclusion="; ".join(said),
    is_vouched=is_vouched and not found,
  )


def read_sound_head(
  directory: Path, ledger_dir: Path | None = None, *, by_digests: bool = False
) -> SavedHead:
  """A head that `verify_head` has nothing against; InputError where it has.

  `by_digests` alone takes a millisecond, where to repeat the numbers takes a
  third of a second, of random batches two: receipt, card and weights are then
  those that were written together, or all were changed to fit.
  """
  saved = read_head(directory)
  faults = (
    tuple(_problems_of_files(directory, saved))
    if by_digests
    else verify_head(directory, ledger_dir).problems
  )
  if faults:
    raise InputError(f"{directory}: {faults[0]}")
  return saved


def _problems_of_files(directory: Path, saved: SavedHead) -> Iterator[str]:
  receipt = saved.receipt
  weights = (directory / WEIGHTS_FILE).read_bytes()
  if receipt.get("head_sha256") != hashlib.sha256(weights).hexdigest():
    yield f"{WEIGHTS_FILE} is not the file that the receipt is about."
  mechanism = receipt.get("mechanism", {})
  shape = (mechanism.get("feature_dim"), mechanism.get("num_classes"))
  if saved.head.kernel.shape != shape:
    yield (
      f"the kernel has shape {saved.head.kernel.shape}, the receipt says"
      f" {shape}."
    )
  stated = mechanism.get("input", AS_STORED)
  found = UNIT_NORM if saved.head.unit_norm else AS_STORED
  if found != stated:
    yield f"the kernel is for {found!r}, the receipt says {stated!r}."
  try:
    card = upgraded_card((directory / CARD_FILE).read_text("utf-8"))
    says_the_same = card == model_card(receipt, saved.receipt_sha256)
  except OSError as error:
    yield f"{CARD_FILE} cannot be read: {error.strerror}."
    return
  except (ArithmeticError, KeyError, TypeError, ValueError):
    says_the_same = False
  if not says_the_same:
    yield f"{CARD_FILE} is not about this {RECEIPT_FILE}: one was changed."


def _problems_of_charge(
  receipt: dict[str, Any], paid: dict[str, Any]
) -> list[str]:
  """How the entry that a receipt names differs from what it was to pay for."""
  charge = _charge_of(receipt)
  expected = charge.as_json()
  if "neighboring_relation" in paid:
    relation = relation_of(paid["neighboring_relation"])
    paid = paid | {"neighboring_relation": relation.name}
  if charge.kind == "baseline" or paid.get("kind") != charge.kind:
    del expected["dp_event"]  # a baseline of before, or a cap, has none
  else:
    paid = paid | {"dp_event": _parts(event_of(paid))}
    expected["dp_event"] = _parts(charge.event)
  return [
    f"{field} is {paid.get(field)!r} in the ledger, where the receipt makes it"
    f" {value!r}."
    for field, value in expected.items()
    if not same(paid.get(field), value)
  ]


def _parts(event: DpEvent) -> list[list[float | int]]:
  """The same numbers for events that compose the same, however they nest."""
  gaussians, sampled = parts_of(event)
  return sorted([*([sigma] for sigma in gaussians), *map(list, sampled)])


def _charge_of(receipt: dict[str, Any]) -> Charge:
  """What should have paid for a head, as far as its receipt tells."""
  privacy, data = receipt["privacy"], receipt["data"]
  facts = {
    "split": data["split"],
    "dataset_version": data["dataset_version"],
    "num_examples": data["num_examples"],
    "cache_fingerprint": data["cache_fingerprint"],
    "privacy_unit": privacy["privacy_unit"],
    "rows_per_unit": receipt["mechanism"]["rows_per_unit"],
    "clipped": receipt["mechanism"]["clipped"],
  }
  if privacy["noise_source"] == BASELINE_NOISE:
    return Charge.of_baseline(**facts)
  plan = plan_of(receipt, mechanism_of(receipt["mechanism"]).sampling)
  return dataclasses.replace(
    Charge.of_plan(plan, NoiseSource(), **facts),
    noise_source=privacy["noise_source"],
    is_private=receipt["private"],
  )
