"""Labels of rows: which of the named classes each of them is."""

import pytest

from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.sources.annotations.labels import (
  class_names,
  label_numbers,
)
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  labels_of,
  open_dataset,
  write_table,
)


def numbers(values, names, are_indices=False):
  return label_numbers(values, names, "label", str, are_indices)


@pytest.mark.parametrize("values", [[1, 2, 1], ["1", "2", "1"]])
def test_labels_among_decimal_class_names_are_those_names(values):
  """They are not shifted by one: the label 1 is the class "1"."""
  assert numbers(values, ("1", "2", "3")) == [0, 1, 0]


def test_labels_among_swapped_decimal_names_are_those_names():
  assert numbers([0, 1, 1], ("1", "0")) == [1, 0, 0]


@pytest.mark.parametrize(
  "names",
  [
    ("1.0", "2.0", "3.0"),
    ("+1", "+2", "+3"),
    ("1 ", "2 ", "3 "),
    ("\uff11", "\uff12", "\uff13"),
  ],
)
def test_labels_among_names_that_are_numbers_are_those_numbers(names):
  assert numbers([1, 2, 1], names) == [0, 1, 0]


def test_labels_among_negative_and_positive_names_are_those_numbers():
  assert numbers([-1, 1, -1], ("-1", "1")) == [0, 1, 0]


@pytest.mark.parametrize("form", ["grade {}", "{}-star", "class{}"])
def test_numbers_among_classes_counted_from_one_are_warned_of(form, capsys):
  names = tuple(form.format(number) for number in (1, 2, 3))

  assert numbers([1, 2, 0], names) == [1, 2, 0]
  assert f"from 0: 0 is {names[0]!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
  "names", [("a0", "a1", "a2"), ("b737", "a320", "md80"), ("2", "1", "0")]
)
def test_numbers_among_other_names_are_not_warned_of(names, capsys):
  numbers([0, 1, 2], names)

  assert not capsys.readouterr().err


def test_labels_from_zero_among_names_from_zero_are_as_ever():
  assert numbers([0, 2, 1], ("0", "1", "2")) == [0, 2, 1]


def test_a_label_that_no_decimal_name_is_is_refused():
  with refused("rows whose label in 'label' .*: '1'"):
    numbers([1, 0], ("1", "2", "3"))


def test_an_integer_where_only_some_names_are_decimal_is_refused():
  """It may be the second class, or the class that is called 1."""
  with refused("numbers are names here"):
    numbers([1], ("1", "cat"))


def test_two_decimal_names_of_one_number_are_refused():
  with refused("two classes have one number as their name: '1', '01'"):
    numbers([1], ("1", "01"))


def test_integers_of_a_class_label_are_indices_whatever_its_names(tmp_path):
  write_table(tmp_path / "x.parquet", [b"x"] * 2, ["1", "2", "3"], label=[1, 2])
  source = open_dataset(tmp_path / "x.parquet")
  assert labels_of(source) == [1, 2]


def test_classes_that_differ_in_capitals_only_are_warned_of(capsys):
  config = SourceConfig(location=("x",), class_names=("Cats", "cats", "dogs"))
  assert len(class_names((), config, "x")) == 3
  assert "'Cats', 'cats' are different classes" in capsys.readouterr().err


def test_labels_beyond_num_classes_are_told_what_the_classes_are():
  message = "not one of the 3 classes, which are numbered from 0 to 2: '1'\\."
  with refused(message):
    label_numbers([0, 9, 2], ("0", "1", "2"), "label", str)


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_numbers_from_1_to_one_less_than_the_classes_are_warned_of(
  tmp_path, capsys, kind
):
  write_table(
    tmp_path / f"pets.{kind}", [b"1", b"2", b"3", b"4"], label=[1, 2, 1, 2]
  )

  open_dataset(tmp_path / f"pets.{kind}", class_names=("cat", "dog", "rat"))

  assert "no row has the label 0" in capsys.readouterr().err


def test_indices_of_a_class_label_are_not_warned_of(tmp_path, capsys):
  names = ("cat", "dog", "rat")
  write_table(tmp_path / "pets.parquet", [b"1", b"2"], names, label=[1, 2])

  open_dataset(tmp_path / "pets.parquet")

  assert "label 0" not in capsys.readouterr().err


def test_one_class_is_warned_of(tmp_path, capsys):
  write_table(tmp_path / "pets.parquet", [b"a", b"b"], label=[0, 0])

  open_dataset(tmp_path / "pets.parquet", class_names=("cat",))

  warning = "has one class, 'cat', and no head can be trained on one"
  assert warning in capsys.readouterr().err
