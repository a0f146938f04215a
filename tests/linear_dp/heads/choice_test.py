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


@pytest.mark.parametrize("head", ["whitened", "auto"])
@pytest.mark.parametrize("field", sorted(SETTINGS))
def test_settings_of_one_step_are_refused(head, field):
  value = SETTINGS[field]
  with pytest.raises(InputError) as caught:
    HeadConfig(head=head, **{field: value})
  message = str(caught.value)
  assert f"{field}={value} is for heads of one step" in message
  assert "\n" not in message


def test_every_setting_is_tried_above():
  fields = {field.name for field in dataclasses.fields(HeadConfig)}
  assert fields == {"head", "steps", "balanced", *SETTINGS}


@pytest.mark.parametrize("head", [*ONE_STEP, "whitened", "auto"])
def test_settings_of_several_steps_are_refused(head):
  with pytest.raises(InputError, match="are for head='multi-step', not") as e:
    HeadConfig(head=head, steps=StepsConfig(epochs=2))
  assert repr(head) in str(e.value)


def test_balanced_is_a_setting_of_auto():
  assert HeadConfig(head="auto", balanced=True).settings()["balanced"]
  with pytest.raises(
    InputError, match="a setting of head='auto', not of 'lamb'"
  ):
    HeadConfig(balanced=True)


@pytest.mark.parametrize("field", sorted(SETTINGS))
def test_settings_of_one_step_are_not_those_of_several(field):
  with pytest.raises(InputError, match="settings of its own, see steps"):
    HeadConfig(head="multi-step", **{field: SETTINGS[field]})


def test_what_counts_for_a_head():
  several = HeadConfig(head="multi-step", steps=StepsConfig(epochs=2))
  assert several.settings().keys() == {"head", "steps"}
  assert several.settings()["steps"]["epochs"] == 2
  assert HeadConfig(head="whitened").settings() == {"head": "whitened"}
  assert HeadConfig().settings().keys() == {"head", *SETTINGS}


@pytest.mark.parametrize("head", ONE_STEP)
def test_order_of_one_step(head):
  assert head_kind(head).order() == "nested"
  assert head_kind(head).order("nested") == "nested"
  assert head_kind(head).order("independent") == "independent"


@pytest.mark.parametrize("head", ["whitened", "multi-step"])
def test_order_of_several_steps(head):
  assert head_kind(head).order() == "independent"
  assert head_kind(head).order("independent") == "independent"
  if head == "whitened":
    assert head_kind(head).order("nested") == "nested"
    return
  with pytest.raises(InputError, match="release='nested' is for heads of one"):
    head_kind(head).order("nested")
