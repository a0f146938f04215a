from typing import Any

import pytest

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.model_card import model_card


@pytest.fixture
def receipt(finished_sweep) -> dict[str, Any]:
  return read_head(finished_sweep.path / "heads/epsilon-2-draw-0").receipt


def test_it_states_the_guarantee(receipt):
  card = model_card(receipt)
  assert "**epsilon = 2** at **delta = 1e-05**" in card
  assert "when one example is in the data or nothing in its place:" in card
  assert "NOT PRIVATE" not in card
  assert "pets, split `train`, 180 examples" in card
  assert "3 epsilons, 2 draw(s)" in card
  together = printable(receipt["composition"]["composed_epsilon"])
  of_all = f"all heads of the same ledger entry together | epsilon = {together}"
  assert of_all in card
  for line in receipt["assumptions"] + receipt["not_protected"]:
    assert f"- {line}" in card


@pytest.mark.parametrize(
  ("epsilon", "share"),
  # (e^ε + δ) / (e^ε + 1), rounded up.
  [(0.1, "52.5 %"), (2.0, "88.08 %"), (8.0, "99.97 %"), (800.0, "100 %")],
)
def test_the_promise_is_as_strong_as_epsilon_is(receipt, epsilon, share):
  receipt["privacy"]["epsilon"] = epsilon
  assert f"it was at most {share} of the time." in model_card(receipt)


def test_it_names_the_neighbours(receipt):
  receipt["privacy"]["neighboring_relation"] = "REPLACE_ONE"
  card = model_card(receipt)
  assert "when one example is in the data or another in its place:" in card
  assert "knows the number of examples and all the rest" in card


def test_it_says_what_to_do_with_the_weights(receipt):
  line = "logits = {} @ kernel + bias."
  assert line.format("embedding") in model_card(receipt)
  rule = WhiteningRule(
    num_examples=180,
    feature_dim=6,
    num_classes=4,
    noise_multiplier=1.0,
    centres=True,
  )
  receipt["mechanism"] = rule.as_json()
  assert line.format("(embedding / its L2 norm)") in model_card(receipt)


def test_what_is_not_private_promises_nothing(finished_sweep, receipt):
  folder = finished_sweep.path / "heads/baseline-NOT-PRIVATE"
  seeded = receipt | {"private": False}
  seeded["privacy"]["noise_source"] = "seeded: NOT PRIVATE"
  for card, source in (
    ((folder / "README.md").read_text(), "none"),
    (model_card(seeded), "seeded"),
  ):
    assert f"**NOT PRIVATE** (noise: {source}: NOT PRIVATE)" in card
    assert "Differentially private with" not in card


def test_it_is_the_card_beside_the_head(finished_sweep, receipt):
  folder = finished_sweep.path / "heads/epsilon-2-draw-0"
  assert (folder / "README.md").read_text() == model_card(receipt)
