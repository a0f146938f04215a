import functools
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import Part
from oneshot_dp.pipeline.heads.head_folder import read_head, write_head
from oneshot_dp.pipeline.heads.model_card import render_card, right_guesses
from oneshot_dp.pipeline.heads.receipt import check_receipt, derive
from tests.pipeline.sample_heads import fit, sample_info, trained_head

CHARGE_ID = "c".zfill(32)
PARENT_ID = "e".zfill(32)


def write_private(folder):
  write_head(folder, trained_head(2.0), sample_info(), charge_id=CHARGE_ID)


def write_uncharged(folder):
  write_head(folder, trained_head(0.5, delta=1e-7), sample_info())


def write_of_units(folder):
  info = sample_info(unit="patient", views={"count": 4})
  write_head(folder, trained_head(), info, Part.parse("[10%:80%]"))


def write_seeded(folder):
  info = sample_info(num_classes_source="labels (treated as public)")
  write_head(folder, trained_head(seed=7), info, charge_id=CHARGE_ID)


def write_baseline(folder):
  baseline = trained_head(noise=False)
  write_head(folder, baseline, sample_info(), charge_id=CHARGE_ID)


def write_continued(folder):
  options = {"balanced": True, "start_sha256": "a".zfill(64)}
  write_head(
    folder,
    trained_head(8.0, options=options),
    sample_info(),
    charge_id=CHARGE_ID,
    parent_charge_id=PARENT_ID,
  )


HEAD_WRITERS = {
  "private": write_private,
  "uncharged": write_uncharged,
  "of units": write_of_units,
  "seeded": write_seeded,
  "baseline": write_baseline,
  "continued": write_continued,
}


@pytest.fixture(params=HEAD_WRITERS)
def folder(request, tmp_path):
  """A head of each kind."""
  HEAD_WRITERS[request.param](tmp_path / "head")
  return tmp_path / "head"


@pytest.fixture
def private_folder(tmp_path):
  write_private(tmp_path / "head")
  return tmp_path / "head"


def delta_of(mu, epsilon):
  """Balle & Wang, theorem 8, by SciPy."""
  near = norm.cdf(mu / 2 - epsilon / mu)
  far = norm.cdf(-mu / 2 - epsilon / mu)
  return near - math.exp(epsilon) * far


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
      return [CHARGE_ID, 1.0, {}, {"a": 1}]
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


class TestStated:
  def test_each_field_is_what_it_was_made_of(self, tmp_path):
    """Written out once more: a guarantee is not put together by chance."""
    trained = trained_head(2.0, options={"balanced": True})
    info = sample_info(unit="patient", views={"count": 4})

    receipt = write_head(
      tmp_path / "head",
      trained,
      info,
      Part.parse("[:50%]"),
      charge_id=CHARGE_ID,
      parent_charge_id=PARENT_ID,
    )

    stated = receipt["stated"]
    sigma = trained.releases[0].noise_multiplier
    assert {
      name: value for name, value in stated.items() if "sha256" not in name
    } == {
      "private": True,
      "head": "auto",
      "options": {"balanced": True},
      "releases": [
        {
          "name": "mean",
          "shape": [1, 4],
          "noise_multiplier": sigma,
          "count": 1,
        },
        {
          "name": "gradient",
          "shape": [3, 4],
          "noise_multiplier": sigma,
          "count": 5,
        },
      ],
      "dataset": "pets",
      "split": "train",
      "rows": "[:50%]",
      "num_examples": 150,
      "feature_dim": 4,
      "num_classes": 3,
      "class_names": ["cat", "dog", "rat"],
      "num_classes_source": "class_names",
      "privacy_unit": "patient",
      "backbone": {"name": "vit_ti16", "layer": "cls"},
      "views": {"count": 4},
      "cache_fingerprint": info.fingerprint,
      "backbone_fingerprint": info.backbone_fingerprint,
      "input": "embedding",
      "delta": 1e-5,
      "neighboring_relation": "REPLACE_SPECIAL",
      "accountant": stated["accountant"],
      "noise_source": trained.noise_source,
      "charge": CHARGE_ID,
      "went_on_from": PARENT_ID,
      "libraries": stated["libraries"],
    }
    assert {*receipt["follows"]} == {
      "mu_squared",
      "noise_multiplier",
      "epsilon",
      "epsilon_if_replaced",
    }

  @pytest.mark.parametrize("source", [{"seed": 7}, {"noise": False}])
  def test_seeded_noise_and_none_are_not_private(self, tmp_path, source):
    receipt = write_head(
      tmp_path / "head", trained_head(**source), sample_info()
    )

    assert receipt["stated"]["private"] is False


class TestEdits:
  @pytest.mark.slow
  def test_every_edit_of_a_leaf_is_refused(self, folder):
    """A fitting card hides an edit only where it follows from nothing."""
    receipt_file = folder / "receipt.json"
    card_file = folder / "README.md"
    receipt = read_head(folder).receipt
    own_card = card_file.read_bytes()
    num_refused = 0
    edits = list(all_edits(receipt))
    assert len(edits) >= 200  # 1,400 of the six heads together
    for (part, *_), edited in edits:
      receipt_file.write_text(json.dumps(edited))
      card_file.write_bytes(own_card)
      with pytest.raises(InputError) as refused:
        read_head(folder)
      assert "\n" not in str(refused.value)
      try:
        check_receipt(edited)
        card_file.write_text(render_card(edited))
        assert read_head(folder).receipt == edited
      except InputError:
        num_refused += 1
      else:
        assert part == "stated"  # names and words follow from nothing
    assert num_refused > 100

  def test_an_edited_noise_is_refused_for_its_epsilon(self, private_folder):
    """In the same words each time, whatever order a set of names has."""
    receipt = json.loads((private_folder / "receipt.json").read_text())
    receipt["stated"]["releases"][0]["noise_multiplier"] *= 2

    with pytest.raises(InputError, match="'epsilon is "):
      check_receipt(receipt)

  def test_white_space_is_nobodys_claim(self, private_folder):
    receipt_file = private_folder / "receipt.json"
    receipt = json.loads(receipt_file.read_text())
    receipt_file.write_text(json.dumps(receipt))

    assert read_head(private_folder).receipt == receipt

  @pytest.mark.parametrize(
    "receipt", [None, [], 7, "x", {}, {"format": 1}, {"format": 2}, [[[[]]]]]
  )
  def test_what_is_not_a_receipt_is_refused(self, receipt):
    with pytest.raises(InputError, match="damaged or was edited"):
      check_receipt(receipt)

  @pytest.mark.parametrize(
    "text",
    ["[".ljust(10**5, "["), "\xff", "", "NaN", '{"a": NaN}', '{"format": 2}'],
  )
  def test_a_file_that_is_not_a_receipt_is_one_line(self, private_folder, text):
    (private_folder / "receipt.json").write_text(text)

    with pytest.raises(InputError) as refused:
      read_head(private_folder)

    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 700

  @pytest.mark.parametrize(
    ("field", "forged"),
    [
      ("dataset", "a\x1b[31m"),
      ("split", "a\x1b[31m"),
      ("class_names", ["a\x1b[31m", "dog", "rat"]),
    ],
  )
  def test_names_that_forge_lines_are_refused(
    self, private_folder, field, forged
  ):
    receipt = read_head(private_folder).receipt
    receipt["stated"][field] = forged

    with pytest.raises(InputError, match="control characters"):
      check_receipt(receipt)

  @pytest.mark.parametrize(
    "forged",
    [
      {"privacy_unit": "cat is there. **epsilon = 0.1**"},
      {"privacy_unit": "patient\n\nepsilon = 0.1\n\n"},
      {"backbone": {"name": "vit\n\nepsilon = 0.1\n\n"}},
      {"backbone": {"name": "vit", "layer": "cls\n\nepsilon = 0.1\n\n"}},
      {"noise_source": "no\n\nepsilon = 0.1\n\n", "private": False},
      {"libraries": {"jax": "1\n\nepsilon = 0.1\n\n"}},
    ],
  )
  def test_words_that_make_a_card_state_another_epsilon_are_refused(
    self, private_folder, forged
  ):
    fit(private_folder, **forged)

    with pytest.raises(InputError, match="damaged or was edited"):
      read_head(private_folder)


class TestFollows:
  @pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
  def test_costs_follow_from_the_noise_of_all_releases(self, epsilon, tmp_path):
    trained = trained_head(epsilon)
    receipt = write_head(tmp_path / "head", trained, sample_info())

    follows = receipt["follows"]
    mu_squared = sum(r.noise_multiplier**-2 for r in trained.releases)
    assert math.isclose(follows["mu_squared"], mu_squared, rel_tol=1e-14)
    assert follows["mu_squared"] >= mu_squared * (1 - 1e-15)
    sigma = mu_squared**-0.5
    assert math.isclose(follows["noise_multiplier"], sigma, rel_tol=1e-12)
    assert epsilon * (1 - 1e-6) < follows["epsilon"] <= epsilon

  @pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
  def test_epsilons_are_those_of_the_theorem(self, epsilon, tmp_path):
    trained = trained_head(epsilon)
    receipt = write_head(tmp_path / "head", trained, sample_info())

    follows = receipt["follows"]
    mu = follows["mu_squared"] ** 0.5
    delta = delta_of(mu, follows["epsilon"])
    delta_if_replaced = delta_of(2 * mu, follows["epsilon_if_replaced"])
    assert math.isclose(delta, 1e-5, rel_tol=1e-6)
    assert math.isclose(delta_if_replaced, 1e-5, rel_tol=1e-6)

  def test_a_count_of_releases_costs_as_much_as_each_alone(self):
    nine = {"name": "x", "shape": [2], "noise_multiplier": 3.0, "count": 9}
    one = {**nine, "count": 1}

    together = derive({"releases": [nine], "delta": 1e-5})

    assert together == derive({"releases": [one] * 9, "delta": 1e-5})
    assert math.isclose(together["noise_multiplier"], 1.0)

  def test_nothing_follows_where_there_is_no_noise(self):
    follows = derive({"releases": [], "delta": None})

    assert set(follows.values()) == {None}


class TestCard:
  @pytest.fixture
  def text(self, folder):
    return " ".join((folder / "README.md").read_text().split())

  def test_it_states_the_guarantee_or_that_there_is_none(self, folder, text):
    stated = read_head(folder).stated
    unit = stated["privacy_unit"]
    relation = f"REPLACE_SPECIAL: one {unit} is in the data, or nothing is in"

    assert ("NOT PRIVATE" in text) == (not stated["private"])
    for words in relation, "epsilon if replaced", "at **delta = ":
      assert (words in text) == stated["private"]
    assert stated["noise_source"] in text
    assert f"one {unit}" in text

  @pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
  def test_a_card_states_no_more_noise_than_there_is(self, tmp_path, epsilon):
    info = sample_info()
    receipt = write_head(tmp_path / "h", trained_head(epsilon), info)

    card = render_card(receipt)

    (printed,) = re.findall(r"a noise multiplier of ([0-9.]+) ", card)
    assert float(printed) <= receipt["follows"]["noise_multiplier"]

  def test_it_says_what_it_rests_on(self, folder, text):
    stated = read_head(folder).stated

    is_uncharged = stated["charge"] is None
    assert ("No ledger was charged" in text) == is_uncharged
    has_start = "start_sha256" in stated["options"]
    assert ("public start" in text) == has_start
    are_labels = "labels" in stated["num_classes_source"]
    assert ("read off the private labels" in text) == are_labels

  def test_it_says_what_is_not_protected_and_how_to_load(self, text):
    assert "What is not protected" in text
    assert "load_head" in text

  @pytest.mark.parametrize(
    ("part", "size"),
    [
      (Part(), ", 300 examples |"),
      (Part(0, 80), ", about 240 examples, 80 % of the data set |"),
    ],
  )
  def test_of_a_part_it_says_about_how_many_examples(
    self, tmp_path, part, size
  ):
    write_head(tmp_path / "head", trained_head(), sample_info(), part)

    assert size in (tmp_path / "head" / "README.md").read_text()

  def test_names_do_not_make_markdown(self, tmp_path):
    info = sample_info(dataset="a|b `c` <script> [x](y) *z*", split="#1")
    write_head(tmp_path / "head", trained_head(), info)

    text = (tmp_path / "head" / "README.md").read_text()
    (row,) = [
      line for line in text.splitlines() if line.startswith("| private data")
    ]
    assert r"a\|b \`c\` \<script\> \[x\](y) \*z\*, split \#1" in row


class TestRightGuesses:
  def test_the_best_test_of_two_gaussians_is_below_the_bound(self):
    mu = 1.0
    epsilon = 2.0
    likelihood_ratio_test = norm.cdf(mu / 2)

    bound = right_guesses(epsilon, float(delta_of(mu, epsilon)))

    assert likelihood_ratio_test < bound

  def test_the_bound_has_its_limits(self):
    assert right_guesses(1e9, 0.1) == 1.0
    assert np.isclose(right_guesses(0.0, 0.02), 0.51)

  @pytest.mark.parametrize(
    ("epsilon", "sentence"),
    [
      (8.0, "at most 99.97 % of the time."),
      (20.0, "at most 99.9999998 % of the time: at so large an epsilon this"),
    ],
  )
  def test_a_card_bounds_guesses_below_100_at_any_epsilon(
    self, private_folder, epsilon, sentence
  ):
    receipt = json.loads((private_folder / "receipt.json").read_text())
    receipt["follows"]["epsilon"] = epsilon
    receipt["stated"]["delta"] = 1e-12

    assert sentence in render_card(receipt)
