"""Names and messages from outside: none forges a line of output."""

import itertools
import os

import pytest

from oneshot_dp.configs.errors import (
  check_name,
  check_num_classes,
  escaped,
  format_count,
  names_alike,
  one_line,
)
from oneshot_dp.configs.extract_config import SourceConfig
from tests.extract.refusals import refused

FORGING = [
  *map(chr, itertools.chain(range(32), range(127, 160))),  # C0, DEL, C1
  *os.fsdecode(b"\xff\x80"),
  *"\u2028\u2029",  # break lines
  *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))),  # turn them
]
HARMLESS = ["", "žlutý kůň", "猫 🐈", "\N{RIGHT-TO-LEFT MARK}\u200d\xa0"]
TOO_LONG_NAME = "x".ljust(1001, "x")

# Loops, as there are some eighty characters, each tried in a moment.


def test_name_with_a_character_that_forges_lines_is_refused():
  for character in FORGING:
    with refused("control characters"):
      check_name("a word", f"cat{character}dog")


def test_location_with_a_character_that_forges_lines_is_refused():
  for character in FORGING:
    with refused("control characters|UTF-8"):
      SourceConfig(location=(f"cat{character}dog",))


def test_escaped_text_has_no_character_that_forges_lines():
  for character in FORGING:
    if character in "\t\n":  # which tables are made of
      continue
    text = escaped(f"cat{character}dog")
    assert text.isascii()
    assert text.isprintable()


def test_one_line_has_no_character_that_forges_lines():
  for character in FORGING:
    assert one_line(ValueError(f"cat{character}dog")).isprintable()


@pytest.mark.parametrize("text", HARMLESS)
def test_name_in_any_script_is_taken_and_shown_as_it_is(text):
  check_name("a word", f"x{text}")

  assert escaped(f"{text}\tx\ny") == f"{text}\tx\ny"


@pytest.mark.parametrize("name", ["", "  ", TOO_LONG_NAME, None, 3, "a\nb"])
def test_name_that_is_blank_too_long_or_no_text_is_refused(name):
  with refused("class"):
    check_name("class", name)


def test_one_line_of_an_error_without_words_is_its_kind():
  assert one_line(KeyError()) == "KeyError"


def test_one_line_joins_lines_and_drops_the_last_period():
  assert one_line(ValueError("a\n  b.")) == "a b"


def test_one_line_is_cut_after_200_characters():
  assert len(one_line(ValueError("x".ljust(9999, "x")))) == 200


def test_number_of_classes_is_at_most_a_million():
  check_num_classes(1_000_000, "it")

  with refused("it makes 1000001 classes: at most 1000000 are possible"):
    check_num_classes(1_000_001, "it")


@pytest.mark.parametrize(
  ("number", "text"), [(0, "0 files"), (1, "1 file"), (2000, "2,000 files")]
)
def test_a_count_agrees_with_its_noun(number, text):
  assert format_count(number, "file") == text


def test_a_count_takes_a_plural_that_is_not_an_s():
  assert format_count(2, "class", "classes") == "2 classes"


@pytest.mark.parametrize(
  ("one", "other"),
  [
    ("Cats", "cats"),
    ("big cat", " big  cat"),
    ("Jose\u0301", "Jos\u00e9"),
    ("\uff27", "g"),  # wide letters
    ("cat\u200b", "cat"),  # a space without a width
    ("007", "7.0"),
  ],
)
def test_names_that_a_person_takes_for_one_are_alike(one, other):
  assert names_alike([one, "dog", other]) == [[one, other]]


@pytest.mark.parametrize("other", ["cat2", "ca t", "cät", "cat."])
def test_names_of_other_letters_are_not_alike(other):
  assert names_alike(["cat", other, "7.5", "75", "0", "10"]) == []
