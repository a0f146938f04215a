"""The receipt in plain words, for whoever is handed the head."""

from typing import Any

from linear_dp.release import NOT_PRIVATE


def model_card(receipt: dict[str, Any]) -> str:
  """A Markdown page made from the receipt and nothing else."""
  data, mechanism = receipt["data"], receipt["mechanism"]
  training = receipt["training"]
  return f"""# Linear head on {data["backbone"]["name"]} embeddings

{_promise(receipt)}

| | |
|---|---|
| private data | {data["dataset"]}, split `{data["split"]}`, \
{data["num_examples"]:,} examples |
| classes | {mechanism["num_classes"]} |
| embedding | {mechanism["feature_dim"]} values of \
{data["backbone"]["name"]}, {data["backbone"]["layer"] or "layer unknown"} |
| training | one full-batch step of {training["head"]} from zero weights and \
bias {mechanism["initial_bias"]:g}, gradients clipped to norm \
{mechanism["l2_clip_norm"]:g} |
| all heads of this run together | \
epsilon = {receipt["composition"]["composed_epsilon"]:.4g} at \
delta = {receipt["privacy"]["delta"]:g} \
({receipt["composition"]["order"]} releases of \
{len(receipt["composition"]["epsilons"])} epsilons, \
{receipt["composition"]["num_draws"]} draw(s)) |

## What this rests on

{_bullets(receipt["assumptions"])}

## What is not protected

{_bullets(receipt["not_protected"])}

`oneshot-dp verify` on this directory recomputes every number of
`receipt.json`. The file `head.safetensors` holds `kernel` [d, K] and `bias`
[K], float32: logits = embedding @ kernel + bias.
"""


def _promise(receipt: dict[str, Any]) -> str:
  privacy = receipt["privacy"]
  if not receipt["private"]:
    return (
      f"**{NOT_PRIVATE}** (noise: {privacy['noise_source']}). This head is for"
      " comparison and research; it protects nobody and must not be published"
      " as if it did."
    )
  neighbours = {
    "ADD_OR_REMOVE_ONE": f"one {privacy['privacy_unit']} is added or removed",
    "REPLACE_ONE": f"one {privacy['privacy_unit']} is replaced by another",
    "REPLACE_SPECIAL": f"one {privacy['privacy_unit']} is replaced by nothing",
  }[privacy["neighboring_relation"]]
  return (
    f"Differentially private with **epsilon = {privacy['epsilon']:g}** at"
    f" **delta = {privacy['delta']:g}** when {neighbours}: whoever sees this"
    " head, and knows all the rest of the data, can hardly tell."
  )


def _bullets(lines: list[str]) -> str:
  return "\n".join(f"- {line}" for line in lines)
