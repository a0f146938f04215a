"""The receipt in plain words, for whoever is handed the head: its README.md."""

import math
from typing import Any

from oneshot_dp.extract.cache.format import sha256_of
from oneshot_dp.linear_dp.accounting import printable
from oneshot_dp.pipeline.receipt import PLAIN, right_guesses

NOT_PRIVATE = "NOT PRIVATE"
_UNPROTECTED = (
  "The data that the head is evaluated on: its labels are treated as public,"
  " unless the evaluation had a budget of its own (--private-eval).",
  "Any choice (of head, epsilon, data or backbone) made by looking at private"
  " results that are not in the ledger.",
  "The images that the backbone was pretrained on, and any other public set.",
  "The time a run takes, and the memory and disks of the machine it runs on.",
  "The feature cache itself: it holds the private data and must stay private.",
)
_MARKED = str.maketrans({c: f"\\{c}" for c in r"\`*_{}[]<>#|!"})


def card(receipt: dict[str, Any]) -> str:
  """A Markdown page made of a checked receipt and nothing else; public.

  It ends with a digest of the whole receipt, so that a change of anything in
  the one, names and words included, no longer fits the other.
  """
  stated = receipt["stated"]
  dataset, split, name, layer = (
    str(text).translate(_MARKED)
    for text in (
      f"{stated['dataset']}",
      stated["split"] + stated["rows"],
      stated["backbone"].get("name"),
      stated["backbone"].get("layer") or "embedding",
    )
  )
  x = "x" if stated["input"] == PLAIN else "x / ‖x‖"
  return f"""# Linear head on {name} embeddings

{_promise(receipt)}

| | |
|---|---|
| private data | {dataset}, split {split}, {stated["num_examples"]:,} examples |
| privacy unit | {_unit(stated)} |
| classes | {stated["num_classes"]} |
| embedding x | {stated["feature_dim"]} values of {name}, {layer} |
| head | {stated["head"]} |
{_numbers(receipt)}
## What this rests on

{_bullets(_assumptions(stated))}

## What is not protected

{_bullets(_UNPROTECTED)}

## How to load it

`oneshot-dp predict` and `export` take this folder, and in Python
`oneshot_dp.load_head("this folder").predict(embeddings)`. The file
`head.safetensors` holds `kernel` [d, K] and `bias` [K], float32:
logits = {x} @ kernel + bias. `releases.safetensors` holds the noisy sums, from
which a later head goes on (`oneshot-dp train --from`).

`oneshot-dp verify` on this folder computes every number of `receipt.json` anew,
and asks the ledger whether these very bytes were paid for.

This page is about the receipt with the digest {sha256_of(receipt)}.
"""


def _promise(receipt: dict[str, Any]) -> str:
  stated, follows = receipt["stated"], receipt["follows"]
  if not stated["private"]:
    return (
      f"**{NOT_PRIVATE}** (noise: {stated['noise_source']}). This head is for"
      " comparison and research; it protects nobody and must not be published"
      " as if it did."
    )
  epsilon, delta = follows["epsilon"], stated["delta"]
  most = math.ceil(10_000 * right_guesses(epsilon, delta)) / 100
  return (
    f"Differentially private with **epsilon = {printable(epsilon)}** at"
    f" **delta = {printable(delta)}** (REPLACE_SPECIAL: one"
    f" {stated['privacy_unit']} is in the data, or nothing is in its place,"
    " while the number of examples is public). Whoever sees this head, knows"
    " all the rest of the data, and starts at even odds guesses right which of"
    f" the two it was at most {most:g} % of the time."
  )


def _unit(stated: dict[str, Any]) -> str:
  unit = stated["privacy_unit"]
  if unit == "example":
    return "one example"
  return f"one {unit}, with all its examples, which weigh as much as one"


def _numbers(receipt: dict[str, Any]) -> str:
  stated, follows = receipt["stated"], receipt["follows"]
  if not stated["private"]:
    return ""
  count = sum(each["count"] for each in stated["releases"])
  return (
    f"| epsilon if replaced | {printable(follows['epsilon_if_replaced'])}: one"
    f" {stated['privacy_unit']} is exchanged for another |\n"
    f"| noise | {stated['noise_source']}; {count} release(s), as one with noise"
    f" multiplier {follows['noise_multiplier']:.5g} |\n"
    f"| accountant | {stated['accountant']} |\n"
  )


def _assumptions(stated: dict[str, Any]) -> list[str]:
  unit = stated["privacy_unit"]
  lines = [
    "The number of examples, the classes and the names of the data set and"
    " split are public.",
    "The backbone and its preprocessing do not depend on the private data, and"
    " embed every image by itself.",
  ]
  if unit == "example":
    lines.append(
      "One row of the cache is one privacy unit; a person with two rows has"
      " twice the influence."
    )
  else:
    lines.append(
      f"All rows of one {unit} are one privacy unit, by the unit_id that came"
      " with the data: they are averaged and weigh as much as one row."
    )
  if stated["num_classes_source"].startswith("labels"):
    lines.append(
      "The number of classes was read off the private labels when the features"
      " were imported; the guarantee holds only if it is public anyway."
    )
  if "start_sha256" in stated["options"]:
    lines.append("The public start does not depend on the private data.")
  if stated["charge"] is None:
    lines.append(
      "No ledger was charged for this head: nobody counts what else was"
      " released of the same rows, and every release adds up."
    )
  return lines


def _bullets(lines: Any) -> str:
  return "\n".join(f"- {line}" for line in lines)
