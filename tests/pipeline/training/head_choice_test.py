"""Which head `auto` is, and in which order heads may be released."""

import dataclasses
from typing import Any

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, StepsConfig
from oneshot_dp.linear_dp.heads.registry import head_kind
from oneshot_dp.linear_dp.statistics.class_moments import MAX_ROWS
from oneshot_dp.pipeline.training.head_choice import choose_head

ONE_STEP = ("lamb", "adam", "momentum")
SETTINGS: dict[str, Any] = {
  "l2_clip_norm": 0.5,
  "initial_bias": 0.0,
  "train_bias": True,
  "learning_rate": 0.1,
  "eps": 1e-3,
  "eps_in_noise_sds": 2.0,
}


@pytest.fixture
def examples(train_cache):
  return train_cache.info


@pytest.fixture
def units(examples):
  return dataclasses.replace(examples, privacy_unit="user")


def test_auto_is_whitened_and_says_why(examples, capsys):
  assert choose_head(HeadConfig(head="auto"), examples) == HeadConfig(
    head="whitened"
  )
  said = capsys.readouterr()
  assert said.out == ""
  (line,) = said.err.splitlines()
  assert line.startswith("head: whitened, as it ")


def test_auto_is_lamb_where_there_are_units(units, capsys):
  assert choose_head(HeadConfig(head="auto"), units) == HeadConfig()
  assert capsys.readouterr().err == (
    "head: lamb, as it clips all rows of a user as one\n"
  )


@pytest.mark.parametrize(
  ("n", "head"), [(MAX_ROWS, "whitened"), (MAX_ROWS + 1, "lamb")]
)
def test_auto_is_lamb_where_the_moment_cannot_be_summed(
  examples, capsys, n, head
):
  many = dataclasses.replace(examples, num_examples=n)
  assert choose_head(HeadConfig(head="auto"), many).head == head
  assert f"head: {head}, as" in capsys.readouterr().err


@pytest.mark.parametrize("head", [*ONE_STEP, "whitened"])
def test_a_head_that_was_asked_for_is_left_as_it_is(examples, capsys, head):
  config = HeadConfig(head=head)
  assert choose_head(config, examples) is config
  assert capsys.readouterr() == ("", "")


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
  assert fields == {"head", "steps", *SETTINGS}


@pytest.mark.parametrize("head", [*ONE_STEP, "whitened", "auto"])
def test_settings_of_several_steps_are_refused(head):
  with pytest.raises(InputError, match="are for head='multi-step', not") as e:
    HeadConfig(head=head, steps=StepsConfig(epochs=2))
  assert repr(head) in str(e.value)


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
  with pytest.raises(InputError, match="release='nested' is for heads of one"):
    head_kind(head).order("nested")
