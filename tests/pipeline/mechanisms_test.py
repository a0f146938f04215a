"""What receipts say of a mechanism can be read back, and recomputed."""

import contextlib
import dataclasses
import json
from typing import Any

import pytest

from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.trainer import OneStep
from oneshot_dp.linear_dp.trainer import (
  AS_STORED,
  UNIT_NORM,
  Mechanism,
)


def whitened(
  sigma: float, n: int = 50_000, centres: bool = True, **changes: Any
) -> WhiteningRule:
  return WhiteningRule(
    num_examples=n,
    feature_dim=192,
    num_classes=10,
    noise_multiplier=sigma,
    centres=centres,
    **changes,
  )


MECHANISMS = {
  "one-step": OneStep(grid=ClippedGradientGrid(num_classes=3, feature_dim=7)),
  "of units": OneStep(
    grid=ClippedGradientGrid(
      num_classes=3, feature_dim=7, clipped="unit", train_bias=True
    )
  ),
  "few rows": OneStep(
    grid=ClippedGradientGrid(num_classes=3, feature_dim=7, rows_per_unit=4)
  ),
  "whitened": whitened(3.7),
  "little noise": whitened(0.5),
  "no noise": whitened(0.0),
  "few rows to whiten": whitened(3.7, n=2000),
  "public mean": whitened(3.7, centres=False),
  "public mean, few rows": whitened(3.7, n=2000, centres=False),
  "balanced": whitened(3.7, balances=True),
  "means of units": whitened(3.7, clipped="mean", noisy_units=1667),
  "nested": whitened(3.7, before_noise_multiplier=5.5),
  "public start": whitened(3.7, centres=False, start_sha256="0f" * 32),
  "compared with it": whitened(
    3.7, centres=False, start_sha256="0f" * 32, compares=True
  ),
}
LEFT_OUT = {
  "compares": False,
  "balances": False,
  "start_sha256": "",
  "noisy_units": 0,
  "before_noise_multiplier": 0.0,
}
"""Parameters that are not written at these values, as before they were."""


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_what_is_written_is_read_back(name):
  mechanism = MECHANISMS[name]
  section = json.loads(json.dumps(mechanism.as_json()))
  assert mechanism_of(section) == mechanism
  assert isinstance(mechanism, Mechanism)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_the_parameters_are_needed_and_the_rest_follows(name):
  """What follows may say anything: it is never read, only compared."""
  mechanism = MECHANISMS[name]
  section = mechanism.as_json()
  inner = mechanism.grid if isinstance(mechanism, OneStep) else mechanism
  fields = {f.name for f in dataclasses.fields(inner)}
  left_out = {
    key
    for key in fields & LEFT_OUT.keys()
    if getattr(inner, key) == LEFT_OUT[key]
  }
  parameters = {"kind", *fields} - left_out
  assert parameters <= section.keys()
  assert not left_out & section.keys()
  for key in section.keys() - parameters:
    assert mechanism_of(section | {key: "forged"}) == mechanism
  for key in parameters & LEFT_OUT.keys():
    rest = {k: v for k, v in section.items() if k != key}
    with contextlib.suppress(ValueError):
      assert mechanism_of(rest) != mechanism
  for key in parameters - LEFT_OUT.keys():
    with pytest.raises(KeyError):
      mechanism_of({k: v for k, v in section.items() if k != key})


@pytest.mark.parametrize("kind", ["two steps", "", None, 3, [], {}])
def test_an_unknown_kind(kind):
  section = MECHANISMS["whitened"].as_json()
  with pytest.raises((KeyError, TypeError)):
    mechanism_of(section | {"kind": kind})


WHITENED = [
  ("whitened", True, True),
  ("few rows to whiten", True, False),
  ("public mean", False, True),
  ("public mean, few rows", False, False),
]


@pytest.mark.parametrize(("name", "centres", "whitens"), WHITENED)
def test_what_a_whitened_receipt_says(name, centres, whitens):
  """All numbers that the noise of a step follows from."""
  said = MECHANISMS[name].as_json()
  assert said["kind"] == "whitened"
  assert (said["num_steps"], said["clip_norm"]) == (19, 0.03)
  assert (said["centres"], said["whitens"]) == (centres, whitens)
  once = [said["mean_noise_multiplier"], said["moment_noise_multiplier"]]
  assert [sigma is not None for sigma in once] == [centres, whitens]
  spent = sum(sigma**-2 for sigma in once if sigma is not None)
  spent += said["num_steps"] * said["step_noise_multiplier"] ** -2
  assert spent == pytest.approx(3.7**-2, rel=1e-12)
  assert said["input"] == (UNIT_NORM if centres else AS_STORED)
  assert said["grid_radius"] == 2**20
  assert (said["rows_per_unit"], said["clipped"]) == (1, "row")


@pytest.mark.parametrize(
  ("name", "before"),
  [
    ("whitened", "private centring and whitening of the unit-norm embeddings"),
    ("few rows to whiten", "private centring of the unit-norm embeddings"),
    ("public mean", "private whitening of the unit-norm embeddings"),
    ("public mean, few rows", ""),
  ],
)
def test_in_words(name, before):
  said = MECHANISMS[name].in_words({})
  steps = "19 full-batch steps of gradient descent"
  assert said.startswith(f"{before}, then {steps}" if before else steps)
  assert said.endswith("norm 0.03")
  assert "  " not in said
  assert "\n" not in said


def test_one_step_in_words():
  one_step = MECHANISMS["one-step"].in_words({"head": "adam"})
  assert "one full-batch step of adam" in one_step


def test_what_of_the_training_it_fixes():
  assert MECHANISMS["whitened"].training() == {"head": "whitened"}
  assert MECHANISMS["of units"].training() == {
    "l2_clip_norm": 1.0,
    "initial_bias": -10.0,
    "train_bias": True,
  }
