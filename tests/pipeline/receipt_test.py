import functools
import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import Part
from oneshot_dp.pipeline.heads.head_folder import read_head, write_head
from oneshot_dp.pipeline.heads.model_card import render_card, right_guesses
from oneshot_dp.pipeline.heads.receipt import check_receipt, derive
from tests.pipeline.sample_heads import sample_info, trained_head

CHARGE, EARLIER = "c" * 32, "e" * 32


def heads() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
  """Heads of all kinds, what their folder is written with, by name."""
  info = sample_info()
  unit = sample_info(unit="patient", views={"count": 4})
  of_labels = sample_info(num_classes_source="labels (treated as public)")
  return {
    "private": (trained_head(2.0), info, {"charge_id": CHARGE}),
    "in no ledger": (trained_head(0.5, delta=1e-7), info, {}),
    "of units": (trained_head(), unit, {"part": Part.parse("[10%:80%]")}),
    "seeded": (trained_head(seed=7), of_labels, {"charge_id": CHARGE}),
    "baseline": (trained_head(noise=False), info, {"charge_id": CHARGE}),
    "went on": (
      trained_head(8.0, options={"balanced": True, "start_sha256": "a" * 64}),
      info,
      {"charge_id": CHARGE, "parent_charge_id": EARLIER},
    ),
  }


@pytest.fixture(params=heads())
def folder(request, tmp_path):
  made, info, more = heads()[request.param]
  write_head(tmp_path / "head", made, info, **more)
  return tmp_path / "head"


def leaves(value, path: tuple[Any, ...] = ()):
  """Every leaf of a JSON value, empty containers too."""
  if isinstance(value, dict | list) and value:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
      yield from leaves(each, (*path, key))
  else:
    yield path, value


def edits_of(value):
  match value:
    case bool():
      return [not value, int(not value), None]
    case int():
      return [value + 1, value - 1, -value, 0, float(value) + 0.5, str(value)]
    case float():
      return [value * 1.01, value / 2, -value, 0.0, 1e308, str(value), None]
    case str():
      return [value + "x", value.upper() + "!", "", 7, None, [value]]
    case None:
      return ["a" * 32, 1.0, {}, {"a": 1}]
    case _:
      return [None, [1], {"a": 1}, "x"]


def all_edits(receipt):
  """Paths, and the receipt with another value there, or none."""
  for path, value in leaves(receipt):
    for new in [*edits_of(value), ...]:
      if new == value and type(new) is type(value):
        continue
      copy = json.loads(json.dumps(receipt))
      place = functools.reduce(lambda each, key: each[key], path[:-1], copy)
      place[path[-1]] = new
      if new is ...:
        del place[path[-1]]
      yield path, copy


def test_every_edit_of_a_leaf_is_refused(folder):
  """A card that fits the edit hides it where it follows from nothing alone."""
  place, fitted = folder / "receipt.json", folder / "README.md"
  receipt, own, refused = read_head(folder).receipt, fitted.read_bytes(), 0
  edits = [*all_edits(receipt)]
  assert len(edits) >= 200  # 1,400 of the six heads together
  for (part, *_), changed in edits:
    place.write_text(json.dumps(changed))
    fitted.write_bytes(own)
    with pytest.raises(InputError) as first:
      read_head(folder)
    assert "\n" not in str(first.value)
    try:
      check_receipt(changed)
      fitted.write_text(render_card(changed))
      assert read_head(folder).receipt == changed
    except InputError:
      refused += 1
    else:
      assert part == "stated"  # names and words follow from nothing
  assert refused > 100
  fitted.write_bytes(own)
  place.write_text(json.dumps(receipt))  # its white space is nobody's claim
  read_head(folder)


@pytest.mark.parametrize(
  "receipt", [None, [], 7, "x", {}, {"format": 1}, {"format": 2}, [[[[]]]]]
)
@pytest.mark.parametrize("folder", ["private"], indirect=True)
def test_what_is_no_receipt_is_one_line(receipt, folder):
  with pytest.raises(InputError, match="damaged or was edited"):
    check_receipt(receipt)
  for text in json.dumps(receipt), "[" * 10**5, "\xff", "", "NaN", '{"a": NaN}':
    (folder / "receipt.json").write_text(text)
    with pytest.raises(InputError) as refused:
      read_head(folder)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 700


def delta_of(mu, epsilon):
  """Balle & Wang, theorem 8, by SciPy."""
  return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
    -mu / 2 - epsilon / mu
  )


@pytest.mark.parametrize("folder", ["private"], indirect=True)
def test_names_that_forge_lines_are_refused(folder):
  stated = read_head(folder).receipt["stated"]
  for name in "dataset", "split", "class_names":
    forged = "a\x1b[31m", *stated["class_names"][1:]
    value = list(forged) if name == "class_names" else forged[0]
    with pytest.raises(InputError, match="control characters"):
      check_receipt(
        read_head(folder).receipt | {"stated": stated | {name: value}}
      )


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_what_follows_is_the_theorem_s(epsilon, tmp_path):
  made = trained_head(epsilon)
  receipt = write_head(tmp_path / "head", made, sample_info())
  found, mu2 = receipt["follows"], sum(s**-2 for *_, s in made.releases)
  assert math.isclose(found["mu_squared"], mu2, rel_tol=1e-14)
  assert found["mu_squared"] >= mu2 * (1 - 1e-15)
  assert math.isclose(found["noise_multiplier"], mu2**-0.5, rel_tol=1e-12)
  assert epsilon * (1 - 1e-6) < found["epsilon"] <= epsilon
  assert made.delta is not None
  for name, mu in ("epsilon", mu2**0.5), ("epsilon_if_replaced", 2 * mu2**0.5):
    assert math.isclose(delta_of(mu, found[name]), made.delta, rel_tol=1e-6)


def test_releases_that_are_alike_are_counted_one_by_one():
  run = {"name": "x", "shape": [2], "noise_multiplier": 3.0, "count": 9}
  one = derive({"releases": [run], "delta": 1e-5})
  ones = derive({"releases": [run | {"count": 1}] * 9, "delta": 1e-5})
  assert one == ones
  assert math.isclose(one["noise_multiplier"], 1.0)


def test_the_card_says_what_it_rests_on(folder):
  stated, text = read_head(folder).stated, (folder / "README.md").read_text()
  text, unit = " ".join(text.split()), stated["privacy_unit"]
  relation = f"REPLACE_SPECIAL: one {unit} is in the data, or nothing is in"
  private = relation, "epsilon if replaced", "at **delta = "
  for words, said in {
    "NOT PRIVATE": not stated["private"],
    "No ledger was charged": stated["charge"] is None,
    "public start": "start_sha256" in stated["options"],
    "read off the private labels": "labels" in stated["num_classes_source"],
    **dict.fromkeys([f"one {unit}", "load_head", "not protected"], True),
    **dict.fromkeys(private, stated["private"]),
  }.items():
    assert (words in text) == said, words
  assert stated["noise_source"] in text


def test_names_do_not_make_markdown(tmp_path):
  odd = sample_info(dataset="a|b `c` <script> [x](y) *z*", split="#1")
  write_head(tmp_path / "head", trained_head(), odd)
  text = (tmp_path / "head" / "README.md").read_text()
  (line,) = (each for each in text.splitlines() if each.startswith("| private"))
  assert r"a\|b \`c\` \<script\> \[x\](y) \*z\*, split \#1" in line


def test_right_guesses_of_the_best_guess():
  """The likelihood ratio test between N(0, 1) and N(μ, 1), simulated."""
  mu, epsilon = 1.0, 2.0
  best = norm.cdf(mu / 2)
  assert best < right_guesses(epsilon, float(delta_of(mu, epsilon)))
  assert right_guesses(1e9, 0.1) == 1.0
  assert np.isclose(right_guesses(0.0, 0.02), 0.51)
