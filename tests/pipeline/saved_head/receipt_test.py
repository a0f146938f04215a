import copy
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from dp_accounting import gaussian_mechanism

from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head, write_head
from oneshot_dp.pipeline.training.train_heads import make_plan, train_heads

HEADS = ["epsilon-8-draw-0", "epsilon-0.5-draw-1", "baseline-NOT-PRIVATE"]
CHECKED = ("privacy", "composition", "mechanism")
Path = tuple[str | int, ...]


@pytest.fixture
def receipt(finished_sweep) -> dict[str, Any]:
  """From the head whose epsilon is 2: neither the first nor the last."""
  return read_head(finished_sweep.path / "heads/epsilon-2-draw-1").receipt


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from leaves(inner, (*path, key))
  elif isinstance(value, list):
    for index, inner in enumerate(value):
      yield from leaves(inner, (*path, index))
  else:
    yield path, value


MISSING = object()


def changed(receipt: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
  """A copy with another value somewhere, or without it."""
  copied = copy.deepcopy(receipt)
  inner: Any = copied
  for key in path[:-1]:
    inner = inner[key]
  inner[path[-1]] = value
  if value is MISSING:
    del inner[path[-1]]
  return copied


def costs_nothing(receipt: dict[str, Any], path: Path) -> bool:
  """Whether it is another head's epsilon, below the one that pays for both."""
  if path[:2] != ("composition", "epsilons"):
    return False
  asked = receipt["composition"]["epsilons"]
  return asked[path[2]] not in (receipt["privacy"]["epsilon"], max(asked))


@pytest.mark.parametrize("name", HEADS)
def test_an_honest_receipt_has_no_problems(finished_sweep, name):
  saved = read_head(finished_sweep.path / "heads" / name)
  assert problems(saved.receipt) == []


PAPER = HeadConfig()
BIAS = HeadConfig(l2_clip_norm=0.37, train_bias=True, head="momentum")
ADAM = HeadConfig(initial_bias=0.0, head="adam", eps_in_noise_sds=2.0)


@pytest.mark.parametrize(
  ("epsilon", "delta", "relation", "config"),
  [
    (1e-3, 1e-9, "replace-special", PAPER),
    (0.01, 1e-5, "replace-one", BIAS),
    (1.0, 1e-12, "replace-special", ADAM),
    (10.0, 1e-3, "replace-one", PAPER),
    (300.0, 1e-5, "replace-special", BIAS),
    (0.5, 1e-5, "replace-one", ADAM),
  ],
)
def test_every_honest_receipt_holds(
  train_cache, tmp_path, epsilon, delta, relation, config
):
  privacy = PrivacyConfig(delta=delta, neighboring_relation=relation)
  plan = make_plan((epsilon,), privacy)
  (head,) = train_heads(train_cache, plan, config, privacy, ledger_dir=None)
  receipt = write_head(tmp_path / "head", head, train_cache.info)
  assert problems(receipt) == []
  (said,) = problems(changed(receipt, ("composition", "order"), "twice"))
  assert said == "composition.order is 'twice', not nested or independent."
  # From first principles, with no code of ours: the noise is as much as the
  # sensitivity times the sigma that dp_accounting wants.
  found = receipt["privacy"]
  removals = 2 if relation == "replace-one" else 1
  p0 = 1 / (1 + math.exp(-config.initial_bias))
  residual = math.hypot(1 - p0, p0, p0, p0)
  width = train_cache.info.feature_dim + config.train_bias
  least = removals * (2**20 * residual + math.sqrt(4 * width))
  assert found["sensitivity_steps"] >= least
  sigma = found["noise_sd_steps"] / found["sensitivity_steps"]
  assert gaussian_mechanism.get_epsilon_gaussian(sigma, delta) <= epsilon


def test_any_number_that_is_changed_is_reported(receipt):
  unseen = []
  for path, value in leaves({key: receipt[key] for key in CHECKED}):
    if isinstance(value, str) or costs_nothing(receipt, path):
      continue
    tries: list[Any] = [0, -1, math.nan, math.inf, "1", None]
    if isinstance(value, bool):
      tries = [not value]
    elif isinstance(value, int):
      tries += [value + 1, value - 1]
    else:
      tries += [value * (1 + 1e-6), value * (1 - 1e-6), 2 * value, value / 2]
    unseen += [
      (path, attempt)
      for attempt in tries
      if not problems(changed(receipt, path, attempt))
    ]
  assert unseen == []


@pytest.mark.parametrize(
  ("path", "value"),
  [
    (("format_version",), 4),
    (("private",), False),
    (("privacy", "noise_source"), "seeded: NOT PRIVATE"),
    (("privacy", "neighboring_relation"), "REPLACE_ONE"),
    (("privacy", "neighboring_relation"), "ADD_OR_REMOVE_ONE"),
    (("privacy", "neighboring_relation"), "ADD_NOTHING"),
    (("privacy", "privacy_unit"), "user"),
    (("privacy", "epsilon"), "NOT PRIVATE"),
    (("composition", "order"), "independent"),
    (("composition", "order"), "twice"),
    (("composition", "epsilons"), [2.0]),
    (("composition", "epsilons"), []),
    (("composition", "ledger_entry"), None),
    (("composition", "ledger_entry"), "paid"),
    (("training", "l2_clip_norm"), 2.0),
    (("training", "initial_bias"), 0.0),
    (("training", "train_bias"), True),
    (("data", "class_names"), ["a", "b"]),
    (("data", "num_examples"), 0),
    (("data", "num_examples"), True),
    (("data", "num_examples"), 180.0),
    (("data", "num_examples"), MISSING),
  ],
)
def test_a_fact_that_is_changed_is_reported(receipt, path, value):
  assert problems(changed(receipt, path, value))


def test_a_smaller_epsilon_is_reported_even_with_its_sigma(receipt):
  """Whoever edits epsilon and sigma has left the noise itself as it was."""
  privacy = receipt["privacy"]
  sigma = 2 * privacy["noise_multiplier"]
  forged = changed(receipt, ("privacy", "noise_multiplier"), sigma)
  forged = changed(forged, ("privacy", "epsilon"), 0.5)
  found = problems(forged)
  assert any("this noise only gives" in line for line in found)


@pytest.mark.parametrize("name", HEADS)
def test_a_field_that_is_missing_is_reported(finished_sweep, name):
  receipt = read_head(finished_sweep.path / "heads" / name).receipt
  unread = {"accountant", "name", "statistic", "sensitivity"}
  unseen = [
    path
    for path, _ in leaves({key: receipt[key] for key in CHECKED})
    if path[-1] not in unread
    and not costs_nothing(receipt, path)
    and not problems(changed(receipt, path, MISSING))
  ]
  unseen += [
    key
    for key in (*CHECKED, "data", "training", "private", "format_version")
    if not problems(changed(receipt, (key,), MISSING))
  ]
  assert unseen == []


@pytest.mark.parametrize("receipt", [{}, {"privacy": []}, {"privacy": {}}])
def test_what_is_no_receipt_is_said_to_be_none(receipt):
  (line,) = problems(receipt)
  assert line.startswith("receipt.json is incomplete or malformed")
  assert "\n" not in line


def test_a_baseline_says_so_and_cannot_pass_for_private(finished_sweep):
  folder = finished_sweep.path / "heads/baseline-NOT-PRIVATE"
  baseline = json.loads((folder / "receipt.json").read_text())
  assert baseline["private"] is False
  assert baseline["privacy"]["epsilon"] == "NOT PRIVATE"
  assert baseline["privacy"]["noise_source"] == "none: NOT PRIVATE"
  assert len(baseline["composition"]["ledger_entry"]) == 64
  for path, value in (
    (("private",), True),
    (("privacy", "epsilon"), 1.0),
    (("privacy", "noise_sd_steps"), 1e7),
    (("privacy", "noise_multiplier"), 1.0),
    (("privacy", "epsilon_by_relation", "REPLACE_ONE"), 1.0),
    (("composition", "ledger_entry"), None),
  ):
    assert problems(changed(baseline, path, value)), path


def test_seeded_noise_is_not_private(train_cache, tmp_path):
  privacy = PrivacyConfig(delta=1e-5, noise_seed=1)
  plan = make_plan((1.0,), privacy)
  config = HeadConfig()
  (head,) = train_heads(train_cache, plan, config, privacy, ledger_dir=None)
  receipt = write_head(tmp_path / "head", head, train_cache.info)
  assert receipt["private"] is False
  assert receipt["privacy"]["noise_source"] == "seeded: NOT PRIVATE"
  assert problems(receipt) == []
  assert problems(changed(receipt, ("private",), True))


def test_it_states_what_the_promise_rests_on(receipt):
  assert receipt["privacy"]["privacy_unit"] == "example"
  assert receipt["privacy"]["accountant"].startswith("dp_accounting")
  assert any("public" in line for line in receipt["assumptions"])
  assert any("evaluated on" in line for line in receipt["not_protected"])
  assert receipt["software"].keys() >= {"oneshot-dp", "dp-accounting", "jax"}
  replace = receipt["privacy"]["epsilon_by_relation"]["REPLACE_ONE"]
  assert replace > receipt["privacy"]["epsilon"]


def test_an_epsilon_that_the_run_had_not(receipt):
  said = problems(changed(receipt, ("privacy", "epsilon"), 1.7))
  assert "epsilon is 1.7, and those of the run [0.5, 8.0, 2.0]." in said
  assert not any("None" in line for line in said)


def test_numbers_beyond_floats_are_no_receipt(receipt):
  for path in (("privacy", "noise_sd_steps"), ("privacy", "delta")):
    assert problems(changed(receipt, path, 10**400))
