"""The card of a head: what it promises, and what it does not, in words."""

import re

import numpy as np
import pytest
from scipy.stats import norm

from oneshot_dp.configs.parts import Part
from oneshot_dp.pipeline.heads.head_folder import read_head, write_head
from oneshot_dp.pipeline.heads.model_card import render_card, right_guesses
from tests.pipeline.sample_heads import (
  HEAD_WRITERS,
  delta_of,
  sample_info,
  trained_head,
)


@pytest.fixture(params=HEAD_WRITERS)
def folder(request, tmp_path):
  """A head of each kind."""
  HEAD_WRITERS[request.param](tmp_path / "head")
  return tmp_path / "head"


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
    self, tmp_path, epsilon, sentence
  ):
    receipt = write_head(tmp_path / "h", trained_head(), sample_info())
    receipt["follows"]["epsilon"] = epsilon
    receipt["stated"]["delta"] = 1e-12

    assert sentence in render_card(receipt)
