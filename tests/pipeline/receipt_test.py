"""A receipt: what it states, that no edit of it passes, and what follows."""

import functools
import json
import math
from typing import Any

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import Part
from oneshot_dp.pipeline.heads.head_folder import read_head, write_head
from oneshot_dp.pipeline.heads.model_card import render_card
from oneshot_dp.pipeline.heads.receipt import check_receipt, derive
from tests.pipeline.sample_heads import (
  CHARGE_ID,
  HEAD_WRITERS,
  PARENT_ID,
  delta_of,
  fit,
  sample_info,
  trained_head,
  write_private,
)


@pytest.fixture(params=HEAD_WRITERS)
def folder(request, tmp_path):
  """A head of each kind."""
  HEAD_WRITERS[request.param](tmp_path / "head")
  return tmp_path / "head"


@pytest.fixture
def private_folder(tmp_path):
  write_private(tmp_path / "head")
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


@pytest.mark.parametrize(
  ("name", "count"), [("shape", 9), ("shape", 10**6), ("releases", 10**5)]
)
def test_lists_that_take_hours_to_add_up_are_refused_at_once(
  private_folder, name, count
):
  receipt = read_head(private_folder).receipt
  release = receipt["stated"]["releases"][0]
  if name == "shape":
    release["shape"] = [2**53] * count
  else:
    receipt["stated"]["releases"] = [release] * count

  with pytest.raises(InputError, match=r"damaged or was edited.*of length <="):
    check_receipt(receipt)
