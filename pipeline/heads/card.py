"""The receipt in plain words, for whoever is handed the head: its README.md."""

import math
from typing import Any

from oneshot_dp.extract.cache.format import sha256_of
from oneshot_dp.linear_dp.accounting import printable
from oneshot_dp.pipeline.heads.receipt import PLAIN, right_guesses

NOT_PRIVATE = "NOT PRIVATE"
_UNPROTECTED = """\
- The data that the head is evaluated on: its labels are treated as public,
  unless the evaluation had a budget of its own (--private-eval).
- Any choice (of head, epsilon, data or backbone) made by looking at private
  results that are not in the ledger.
- The images that the backbone was pretrained on, and any other public set.
- The time a run takes, and the memory and disks of the machine it runs on.
- The feature cache itself: it holds the private data and must stay private."""
_ONE_EXAMPLE = "one example; a person with two rows has twice the influence"
_OF_LABELS = """
- The number of classes was read off the private labels: the guarantee holds
  only if it is public anyway."""
_OF_START = "\n- The public start does not depend on the private data."
_UNCHARGED = """
- No ledger was charged for this head: nobody counts what else was released of
  the same rows, and every release adds up."""
_MARKED = str.maketrans({c: f"\\{c}" for c in r"\`*_{}[]<>#|!&~"})


def card(receipt: dict[str, Any]) -> str:
  """A Markdown page made of a checked receipt and nothing else; public.

  It ends with a digest of the whole receipt, so that a change of anything in
  the one, names and words included, no longer fits the other.
  """
  stated, unit = receipt["stated"], receipt["stated"]["privacy_unit"]
  backbone = stated["backbone"]
  data, split, model, layer = (
    str(text).translate(_MARKED)
    for text in (
      *(stated["dataset"], stated["split"] + stated["rows"]),
      *(backbone.get("name"), backbone.get("layer") or "embedding"),
    )
  )
  whole = f"one {unit}, with all its rows: their mean weighs as much as one row"
  of_labels = stated["num_classes_source"].startswith("labels")
  return f"""# Linear head on {model} embeddings

{_promise(receipt)}

| | |
|---|---|
| private data | {data}, split {split}, {stated["num_examples"]:,} examples |
| privacy unit | {_ONE_EXAMPLE if unit == "example" else whole} |
| classes | {stated["num_classes"]} |
| embedding x | {stated["feature_dim"]} values of {model}, {layer} |
| head | {stated["head"]} |
{_numbers(receipt)}
## What this rests on

- The number of examples, the classes and the names of data set and split are
  public.
- The backbone and its preprocessing do not depend on the private data, and
  embed every image by itself.\
{_OF_LABELS if of_labels else ""}\
{_OF_START if stated["options"].get("start_sha256") else ""}\
{"" if stated["charge"] else _UNCHARGED}

## What is not protected

{_UNPROTECTED}

## How to load it

`oneshot-dp predict` and `export` take this folder, and in Python
`oneshot_dp.load_head("this folder").predict(embeddings)`. The file
`head.safetensors` holds `kernel` [d, K] and `bias` [K], float32:
logits = {"x" if stated["input"] == PLAIN else "x / ‖x‖"} @ kernel + bias.
`releases.safetensors` holds the noisy sums, from which a later head goes on
(`oneshot-dp train --from`).

`oneshot-dp verify` on this folder computes every number of `receipt.json` anew,
and asks the ledger whether these very bytes were paid for.

This page is about the receipt with the digest {sha256_of(receipt)}.
"""


def _promise(receipt: dict[str, Any]) -> str:
  stated, epsilon = receipt["stated"], receipt["follows"]["epsilon"]
  if not stated["private"]:
    return (
      f"**{NOT_PRIVATE}** (noise: {stated['noise_source']}). This head is for"
      " comparison and research; it protects nobody and must not be published"
      " as if it did."
    )
  most = math.ceil(10_000 * right_guesses(epsilon, stated["delta"])) / 100
  return (
    f"Differentially private with **epsilon = {printable(epsilon)}** at"
    f" **delta = {printable(stated['delta'])}** (REPLACE_SPECIAL: one"
    f" {stated['privacy_unit']} is in the data, or nothing is in its place, and"
    " the number of examples is public). Whoever sees this head, knows all the"
    " rest of the data, and starts at even odds guesses right which of the two"
    f" it was at most {most:g} % of the time."
  )


def _numbers(receipt: dict[str, Any]) -> str:
  stated, follows = receipt["stated"], receipt["follows"]
  if not stated["private"]:
    return ""
  return f"""\
| epsilon if replaced | {printable(follows["epsilon_if_replaced"])}, where one \
{stated["privacy_unit"]} is exchanged for another |
| noise | {stated["noise_source"]}; of all releases together a noise \
multiplier of {follows["noise_multiplier"]:.5g} |
| accountant | {stated["accountant"]} |
"""
