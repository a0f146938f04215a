"""Which head `auto` is, and in which order heads may be released."""

import dataclasses
from typing import Any

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, StepsConfig
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.choice import choose_head, in_a_line
from oneshot_dp.linear_dp.heads.registry import head_kind
from oneshot_dp.linear_dp.statistics.class_moments import MAX_ROWS
from oneshot_dp.linear_dp.trainer import TrainingRows

ONE_STEP = ("lamb", "adam", "momentum")
SETTINGS: dict[str, Any] = {
  "l2_clip_norm": 0.5,
  "initial_bias": 0.0,
  "train_bias": True,
  "learning_rate": 0.1,
  "eps": 1e-3,
  "eps_in_noise_sds": 2.0,
}


def rows(n: int = 4000, **changes: Any) -> TrainingRows:
  """Their public sizes: they are never read."""

  def read():
    raise AssertionError("the rows were read")

  return TrainingRows(
    blocks=read, feature_dim=8, num_classes=10, num_examples=n, **changes
  )


@pytest.mark.parametrize(
  ("asked", "given", "head", "why"),
  [
    ("auto", rows(), "whitened", "the most accurate"),
    ("auto", rows(MAX_ROWS), "whitened", "the most accurate"),
    ("auto", rows(MAX_ROWS + 1), "lamb", "single step, as auto is for at"),
    ("lamb", rows(), "lamb", "the paper's single step"),
    ("momentum", rows(), "momentum", "as asked"),
    ("whitened", rows(), "whitened", "as asked"),
  ],
)
def test_auto_is_the_most_accurate_that_the_rows_allow(asked, given, head, why):
  choice = choose_head(HeadConfig(head=asked), given)
  assert choice.config == HeadConfig(head=head)
  assert why in choice.why


def test_of_units_no_gain_is_said():
  """How many there are is private, and so is what n/(K·σ) would be."""
  given = rows(40_000, privacy_unit="user")
  choice = choose_head(HeadConfig(head="auto"), given)
  plan = ReleasePlan(epsilons=(1.0,), delta=1e-5, order="independent")
  assert choice.config.head == "whitened"
  said = in_a_line(choice, plan, given)
  assert said.endswith("lamb (the paper's single step) would cost as much")


@pytest.mark.parametrize(
  ("head", "epsilons", "n", "line"),
  [
    (
      *("auto", (1.0,), 40_000),
      "head: auto, the most accurate at nearly every size that was tried;"
      " costs epsilon 1 at delta 1e-05; lamb (the paper's single step) would"
      " cost as much and is likely 1 to 20 points less accurate",
    ),
    (
      *("lamb", (1.0, 8.0), 40_000),
      "head: lamb, the paper's single step; costs epsilon 8 at delta 1e-05;"
      " auto would cost epsilon 8.1246, or as much with sweep --release nested"
      " and, at epsilon 1, is likely 1 to 20 points more accurate",
    ),
    (
      *("lamb", (1.0,), 50),
      "head: lamb, the paper's single step; costs epsilon 1 at delta 1e-05;"
      " auto would cost as much and is likely no better, with so few rows of a"
      " class",
    ),
    (
      *("least-squares", (1.0,), 40_000),
      "head: least-squares, as asked; costs epsilon 1 at delta 1e-05; auto"
      " would cost as much",
    ),
    (
      *("lamb", (1.0,), MAX_ROWS + 1),
      "head: lamb, the paper's single step; costs epsilon 1 at delta 1e-05",
    ),
  ],
)
def test_one_line_about_cost_and_gain(head, epsilons, n, line):
  choice = choose_head(HeadConfig(head=head), rows(n))
  kind = head_kind(choice.config.head)
  plan = ReleasePlan(epsilons=epsilons, delta=1e-5, order=kind.order())
  assert in_a_line(choice, plan, rows(n)) == line


def test_every_setting_is_tried_above():
  fields = {field.name for field in dataclasses.fields(HeadConfig)}
  assert fields == {"head", "steps", "balanced", *SETTINGS}


def test_what_counts_for_a_head():
  assert HeadConfig(head="auto", balanced=True).settings()["balanced"]
  several = HeadConfig(head="multi-step", steps=StepsConfig(epochs=2))
  assert several.settings().keys() == {"head", "steps"}
  assert several.settings()["steps"]["epochs"] == 2
  assert HeadConfig(head="whitened").settings() == {"head": "whitened"}
  assert HeadConfig().settings().keys() == {"head", *SETTINGS}


MISPLACED = [
  *(
    ({"head": head, field: value}, f"{field}={value} is for heads of one step")
    for head, (field, value) in zip(
      ("whitened", "auto") * 3, SETTINGS.items(), strict=True
    )
  ),
  *(
    ({"head": "multi-step", field: value}, "settings of its own, see steps")
    for field, value in SETTINGS.items()
  ),
  *(
    (
      {"head": head, "steps": StepsConfig(epochs=2)},
      f"are for head='multi-step', not .*{head!r}",
    )
    for head in (*ONE_STEP, "whitened", "auto")
  ),
  ({"balanced": True}, "a setting of head='auto', not of 'lamb'"),
]


@pytest.mark.parametrize(("given", "message"), MISPLACED)
def test_settings_of_other_heads_are_refused(given, message):
  with pytest.raises(InputError, match=message) as caught:
    HeadConfig(**given)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("head", [*ONE_STEP, "whitened", "multi-step"])
def test_order_of_release(head):
  kind = head_kind(head)
  assert kind.order() == ("nested" if head in ONE_STEP else "independent")
  assert kind.order("independent") == "independent"
  if head == "multi-step":
    with pytest.raises(InputError, match="release='nested' is for heads of"):
      kind.order("nested")
  else:
    assert kind.order("nested") == "nested"
