"""The receipt in plain words, for whoever is handed the head."""

import math
from typing import Any

from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.extract.cache.identity import sha256_of
from oneshot_dp.extract.progress import counted
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.trainer import AS_STORED, MEANS, UNIT_NORM, WHOLE
from oneshot_dp.pipeline.saved_head.odds import right_guesses
from oneshot_dp.pipeline.saved_head.public_record import SETTING, PublicRecord


def model_card(
  receipt: dict[str, Any], receipt_sha256: str | None = None
) -> str:
  """A Markdown page made from the receipt and nothing else.

  It ends with a digest of the whole receipt, so that a change of anything in
  the one, names and words included, no longer fits the other.

  `receipt` is in the fields of this version, `receipt_sha256` the digest of one
  that an earlier version wrote.
  """
  data, mechanism = receipt["data"], receipt["mechanism"]
  is_plain = mechanism.get("input", AS_STORED) == AS_STORED
  rows = AS_STORED if is_plain else f"({UNIT_NORM})"
  return f"""# Linear head on {data["backbone"]["name"]} embeddings

{_promise(receipt)}

| | |
|---|---|
| private data | {data["dataset"]}, split `{data["split"]}`, \
{data["num_examples"]:,} examples |
| classes | {mechanism["num_classes"]} |
| embedding | {mechanism["feature_dim"]} values of \
{data["backbone"]["name"]}, {data["backbone"]["layer"] or "embedding unknown"} |
| training | {mechanism_of(mechanism).in_words(receipt["training"])} |
{_public(receipt)}{_unit(receipt)}{_together(receipt)}
## What this rests on

{_bullets(receipt["assumptions"])}

## What is not protected

{_bullets(receipt["not_protected"])}

`oneshot-dp verify` on this directory recomputes every number of
`receipt.json`. The file `head.safetensors` holds `kernel` [d, K] and `bias`
[K], float32: logits = {rows} @ kernel + bias.

This page is about the receipt with the digest \
{receipt_sha256 or sha256_of(receipt)}.
"""


def _public(receipt: dict[str, Any]) -> str:
  """By what public rows the private ones were mapped, if by any."""
  if SETTING not in receipt["training"]:
    return ""
  record = PublicRecord.from_json(receipt["training"][SETTING])
  return f"| public statistics | {record.in_words()} |\n"


def _unit(receipt: dict[str, Any]) -> str:
  """What the promise is about, where that is more than an example."""
  unit = receipt["privacy"]["privacy_unit"]
  if unit == EXAMPLE_UNIT:
    return ""
  mechanism = receipt["mechanism"]
  used = {
    "unit": "the gradients of all its examples are clipped as one",
    WHOLE: "its examples are trained on, or counted, as one",
    MEANS: "the means of its examples of each class weigh as one together",
  }.get(
    mechanism["clipped"],
    f"at most {mechanism['rows_per_unit']} of its examples are used",
  )
  return f"| privacy unit | {unit}: {used} |\n"


def _together(receipt: dict[str, Any]) -> str:
  """What was charged with it; nothing, said of a head that is not private."""
  if not receipt["private"]:
    return ""
  run = receipt["composition"]
  of = "ledger entry" if run["ledger_entry"] else "training"
  return (
    f"| all heads of the same {of} together |"
    f" epsilon = {printable(run['composed_epsilon'])} at"
    f" delta = {printable(receipt['privacy']['delta'])} ({run['order']}"
    f" releases of {counted(len(run['epsilons']), 'epsilon')},"
    f" {run['num_draws']} draw(s)) |\n"
  )


def _promise(receipt: dict[str, Any]) -> str:
  privacy = receipt["privacy"]
  if not receipt["private"]:
    return (
      f"**{NOT_PRIVATE}** (noise: {privacy['noise_source']}). This head is for"
      " comparison and research; it protects nobody and must not be published"
      " as if it did."
    )
  unit = f"one {privacy['privacy_unit']}"
  if privacy["privacy_unit"] != EXAMPLE_UNIT:
    unit += ", with all its examples,"
  neighbours = {
    "REPLACE_SPECIAL": f"{unit} is in the data or nothing in its place",
    "REPLACE_ONE": f"{unit} is in the data or another in its place",
  }[privacy["neighboring_relation"]]
  most = right_guesses(privacy["epsilon"], privacy["delta"])
  return (
    "Differentially private with"
    f" **epsilon = {printable(privacy['epsilon'])}** at"
    f" **delta = {printable(privacy['delta'])}** when {neighbours}: whoever"
    " sees this head, knows the number of examples and all the rest of the"
    " data, and starts at even odds"
    " guesses right which of the two it was at most"
    f" {math.ceil(10_000 * most) / 100:g} % of the time."
  )


def _bullets(lines: list[str]) -> str:
  return "\n".join(f"- {line}" for line in lines)
