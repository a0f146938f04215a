"""Names of owners: what becomes one number, and what may be one person."""

import tracemalloc

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.owner_names import (
  check_owner_names,
  units_of_column,
)
from tests.extract.refusals import refused


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
  with refused(r"images without user: '1'\. Each"):
    units_of_column(["anna", name], "user", str)


@pytest.mark.parametrize(
  ("one", "other"),
  [("P7", "p7"), ("01", "1"), ("7", "7.0"), ("Jose\u0301", "Jos\u00e9")],
)
def test_owners_who_are_spelled_nearly_alike_are_warned_of(capsys, one, other):
  check_owner_names([one, other, "eve"], "patient")

  message = capsys.readouterr().err
  assert f"{one!r}, {other!r} count as different: if they are one pa" in message


def test_owners_who_are_different_are_not_warned_of(capsys):
  check_owner_names(["anna", "bo"], "patient")

  assert not capsys.readouterr().err
