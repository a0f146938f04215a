"""Names of owners: what becomes one number, and what may be one person."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.annotations.owner_names import (
  check_owner_names,
  check_owners,
  units_of_column,
)
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import open_dataset, write_table


def test_names_in_batches_have_the_numbers_of_names_at_once():
  names = [f"u{i}" for i in range(50)]
  known: dict[int, str] = {}
  first = units_of_column(names, "user", str, known)
  assert units_of_column(names, "user", str, known) == first


def test_two_names_of_one_number_in_two_batches_are_refused():
  known: dict[int, str] = {}
  number = units_of_column(["u7"], "user", str, known)[0]
  known[number] = "somebody"
  with refused("'somebody' and 'u7' have one number"):
    units_of_column(["u7"], "user", str, known)


def test_rows_that_share_a_long_name_share_its_copy():
  name = "x".ljust(4096) + "y "  # is stripped, which makes a copy
  tracemalloc.start()
  try:
    with pytest.raises(InputError, match="4,097 characters"):
      units_of_column([name] * 50_000, "user", str)
    units_of_column([name[2:]] * 50_000, "user", str)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 1 << 24  # and not 200 MB


@pytest.mark.parametrize("name", ["nan", "NaN", "None", "<NA>", "NULL"])
def test_what_programs_write_for_a_missing_owner_is_no_owner(name):
  with refused(r"images without user: '1'; each"):
    units_of_column(["anna", name], "user", str)


@pytest.mark.parametrize(
  ("one", "other"),
  [
    ("P7", "p7"),
    ("01", "1"),
    ("7", "7.0"),
    ("Jose\u0301", "Jos\u00e9"),
    ("P-7", "P_7"),
    ("P7", "P7\0"),
  ],
)
def test_owners_who_are_spelled_nearly_alike_are_warned_of(capsys, one, other):
  check_owner_names([one, other, "eve"], "patient")

  message = capsys.readouterr().err
  assert f"{one!r}, {other!r} count as different: if they are one pa" in message


@pytest.mark.parametrize(
  ("one", "other"),
  [("anna", "bo"), ("-2", "2"), ("1-11", "11-1"), ("P1-1", "P11")],
)
def test_owners_who_are_different_are_not_warned_of(capsys, one, other):
  check_owner_names([one, other], "patient")

  assert not capsys.readouterr().err


@pytest.mark.parametrize("name", ["unknown", "Unknown", "-1", "?", "NA"])
def test_an_owner_that_stands_for_the_unknown_is_warned_of(capsys, name):
  check_owner_names(["anna", name], "patient")

  message = capsys.readouterr().err
  assert f"{name!r} counts as one patient: an image of somebody unkn" in message


@pytest.mark.parametrize("name", ["1.23457E+12", "5e+10"])
def test_a_number_that_a_spreadsheet_has_rounded_is_warned_of(capsys, name):
  check_owner_names(["anna", name], "patient")

  assert f"{name!r} are numbers that a spread" in capsys.readouterr().err


def owners_warning(capsys, owners, labels) -> str:
  """What is printed about rows of these owners and classes."""
  check_owners("user", np.array(owners, np.int64), np.array(labels, np.int32))
  return capsys.readouterr().err


def test_one_owner_of_all_rows_is_warned_of(capsys):
  assert "all rows are of one user" in owners_warning(capsys, [7, 7], [0, 1])


def test_an_owner_for_each_class_is_warned_of(capsys):
  warning = owners_warning(capsys, [7, 8, 7, 8], [1, 0, 1, 0])

  assert "each class has one user, as if that were the label" in warning


def test_an_owner_for_each_row_is_noted(capsys):
  warning = owners_warning(capsys, [5, 6, 7], [0, 0, 1])

  assert "note: each row has a user of its own" in warning


@pytest.mark.parametrize(
  ("owners", "labels"),
  [
    ([7, 7, 8, 8], [0, 1, 0, 1]),
    ([7, 7, 8, 8, 9], [0, 0, 1, 1, 1]),
    ([[7, 8], [7, -1]], [0, 1]),
    ([7, 8, -1, 8], [0, 0, 1, 1]),
    ([7], [0]),
  ],
)
def test_usual_owners_are_not_warned_of(capsys, owners, labels):
  assert not owners_warning(capsys, owners, labels)


def test_several_rows_of_the_owner_minus_one_are_warned_of(capsys):
  """pandas numbers all that is missing so."""
  warning = owners_warning(capsys, [7, -1, -1, 8], [0, 0, 1, 1])

  assert "-1 counts as one user: an image of somebody unknown" in warning


@pytest.mark.parametrize("suffix", ["parquet", "tar"])
def test_owners_of_a_table_are_checked_as_those_of_a_folder(tmp_path, suffix):
  path = tmp_path / f"x.{suffix}"
  images = [bytes([i, 2, 3]) for i in range(3)]
  write_table(
    path,
    images,
    ["cat", "dog"],
    label=[0, 1, 0],
    who=["anna", "anna, bo", "bo"],
  )

  with refused("the who 'anna, bo' is several of the others"):
    open_dataset(path, num_classes=2, units="who")


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_owners_of_two_kinds_in_two_files_are_refused(tmp_path, kind):
  """Else 7 and "7" would be two, and each be protected in half of the rows."""
  for name, owners in (("a", [7, 8]), ("b", ["7", "8"])):
    columns: dict[str, Any] = {"label": [0, 1], "user": owners}
    write_table(tmp_path / f"{name}.{kind}", [b"a", b"b"], **columns)

  with refused("--units 'user' must be all integers .* in all files"):
    open_dataset(tmp_path, num_classes=2, units="user")
