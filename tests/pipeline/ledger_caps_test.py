"""The cap of a data set: what it lets out, and what is said of it."""

import dataclasses
import shlex
from fractions import Fraction
from pathlib import Path

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.keys import keys_of
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.pipeline.ledger.entries import Cap, cap_of, spent
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.command_line import succeeds
from tests.pipeline.sample_heads import make_charge_request, row_keys

DELTA = 1e-5
SMALLEST_FLOAT = 5e-324


def mu_squared(epsilon):
  return Fraction(mu_squared_from_epsilon(epsilon, DELTA))


# What a cap lets out.


@pytest.fixture
def remaining(ledger, charge):
  """The μ² that a cap of ε = 8 leaves after a charge of ε = 1."""
  ledger.set_cap("pets", Cap(8.0, DELTA))
  charge(mu_squared(1.0))
  return mu_squared(8.0) - mu_squared(1.0)


def test_cap_lets_out_its_budget_to_the_last_bit(ledger, charge, remaining):
  charge(remaining)

  assert spent(ledger.entries("pets")) == mu_squared(8.0)


def test_cap_refuses_a_charge_larger_by_one_part_in_2_to_the_80(
  charge, remaining
):
  with pytest.raises(InputError, match="would break the cap of 'pets'"):
    charge(remaining * (1 + Fraction(1, 2**80)))


def test_cap_that_is_used_up_refuses_the_smallest_charge(charge, remaining):
  charge(remaining)

  with pytest.raises(InputError, match="nothing is left"):
    charge(SMALLEST_FLOAT)


def test_epsilon_that_is_called_left_fits_and_little_more_does_not(
  charge, remaining
):
  with pytest.raises(InputError) as refused:
    charge(mu_squared(8.0))

  message = str(refused.value)
  left = float(message.split("release at epsilon ")[1].split(",")[0])
  # Rounded down to five digits: never too large, and hardly too small.
  assert mu_squared(left) <= remaining
  assert mu_squared(left * 1.0001) > remaining


def test_cap_of_one_data_set_does_not_bind_another(ledger, charge):
  ledger.set_cap("pets", Cap(1.0, DELTA))

  charge(100.0, dataset="cats", keys=row_keys(9))

  assert spent(ledger.entries("cats")) == 100


def test_charges_of_one_run_are_all_or_nothing(ledger):
  ledger.set_cap("pets", Cap(1.0, DELTA))
  # The first two would fit: it is the third that breaks the cap.
  cost = mu_squared(0.9)
  requests = [
    make_charge_request(cost, dataset="cats", keys=row_keys(7)),
    make_charge_request(cost, cost),
  ]

  with pytest.raises(InputError, match="break the cap"):
    ledger.charge(requests, Path("/run"), {})

  assert [entry.kind for entry in ledger.entries()] == ["cap"]


def test_cap_refuses_what_is_not_private(ledger, charge):
  ledger.set_cap("pets", Cap(1.0, DELTA))

  with pytest.raises(InputError, match="covers nothing that is NOT PRIVATE"):
    charge(None)


def test_what_is_not_private_is_recorded_without_a_cost(ledger, charge):
  charge(None)

  (entry,) = ledger.entries()
  assert entry.mu_squared is None
  assert spent([entry]) == 0


def test_rows_of_a_cap_are_refused_under_any_other_name(ledger, charge):
  ledger.set_cap("a", Cap(1.0, DELTA), row_keys(1, 2))

  with pytest.raises(
    InputError, match=r"are charged as 'a' already.* with --name a \(--dataset"
  ):
    charge(9.0, dataset="b", keys=row_keys(2, 3))


def test_rows_of_a_cap_are_bound_by_it_under_their_own_name(ledger, charge):
  ledger.set_cap("a", Cap(1.0, DELTA), row_keys(1, 2))

  with pytest.raises(InputError, match="would break the cap of 'a'"):
    charge(9.0, dataset="a", keys=row_keys(1))


def test_refused_charge_names_the_command_that_lets_it_in(
  ledger, charge, capsys, train_cache
):
  dataset = train_cache.info.dataset
  cap = ["--max-epsilon", 2, "--max-delta", DELTA]
  succeeds(capsys, "budget", "--cache", train_cache.path, *cap)
  charge(mu_squared(1.0), dataset=dataset)
  request = dataclasses.replace(
    make_charge_request(mu_squared(2.0), dataset=dataset),
    cache=train_cache.path,
  )
  with pytest.raises(InputError) as refused:
    ledger.charge([request], Path("/run"), {})

  _, command = str(refused.value).split(": oneshot-dp ")
  succeeds(capsys, *shlex.split(command))

  ledger.charge([request], Path("/run"), {})


def test_refused_charge_names_a_ledger_that_is_not_the_usual_one(tmp_path):
  ledger = Ledger(tmp_path / "other.sqlite")
  ledger.set_cap("pets", Cap(1.0, DELTA))

  with pytest.raises(InputError, match=r" --ledger \S*other.sqlite --max-eps"):
    ledger.charge([make_charge_request(9.0)], Path("/run"), {})


def test_cap_that_is_changed_makes_no_other_rows_private(
  ledger, capsys, train_cache
):
  words = ["budget", "--cache", train_cache.path, "--max-delta", DELTA]
  succeeds(capsys, *words, "--max-epsilon", 2, "--rows", "[:80%]")
  before = ledger.shared(keys_of(train_cache.blocks()))

  _, err = succeeds(capsys, *words, "--max-epsilon", 3)

  assert "all rows" not in err
  assert ledger.shared(keys_of(train_cache.blocks())) == before


def test_first_cap_makes_all_rows_private_though_some_were_charged_before(
  ledger, charge, capsys, train_cache
):
  charge(mu_squared(1.0), dataset=train_cache.info.dataset)
  keys = keys_of(train_cache.blocks())
  cap = ["--max-epsilon", 2, "--max-delta", DELTA]

  _, err = succeeds(capsys, "budget", "--cache", train_cache.path, *cap)

  assert "all rows of" in err
  assert ledger.shared(keys)[train_cache.info.dataset].rows == len(
    keys["image"]
  )


def test_changed_cap_makes_all_rows_private_that_are_named(
  ledger, capsys, train_cache
):
  words = ["budget", "--cache", train_cache.path, "--max-delta", DELTA]
  succeeds(capsys, *words, "--max-epsilon", 2, "--rows", "[:80%]")
  keys = keys_of(train_cache.blocks())

  succeeds(capsys, *words, "--max-epsilon", 2, "--rows", "[:]")

  assert ledger.shared(keys)[train_cache.info.dataset].rows == len(
    keys["image"]
  )


# What is said of a cap.


def test_cap_before_the_first_release_has_no_warning(ledger):
  assert ledger.set_cap("pets", Cap(2.0, DELTA)) == []


def test_lower_cap_before_the_first_release_has_no_warning(ledger):
  ledger.set_cap("pets", Cap(2.0, DELTA))

  assert ledger.set_cap("pets", Cap(1.0, DELTA)) == []


@pytest.mark.parametrize("cap", [Cap(1.5, DELTA), Cap(0.5, 2 * DELTA)])
def test_raised_cap_is_called_raised_and_unproven(ledger, cap):
  """A larger δ raises it too, even where ε is smaller."""
  ledger.set_cap("pets", Cap(1.0, DELTA))

  (warning,) = ledger.set_cap("pets", cap)

  assert "THE CAP WAS RAISED" in warning
  assert "no proven guarantee" in warning
  assert cap_of(ledger.entries("pets")) == cap


def test_late_cap_says_what_it_does_not_cover(ledger, charge):
  charge(4.0, None)

  late, exposed, over = ledger.set_cap("pets", Cap(1.0, DELTA))

  assert "after the first release" in late
  assert "no proven guarantee" in late
  assert "1 charges are NOT PRIVATE" in exposed
  assert "more than this is spent already" in over


@pytest.mark.parametrize(
  "cap", [Cap(-1.0, DELTA), Cap(1.0, 1.0), Cap(float("nan"), DELTA)]
)
def test_cap_that_is_not_a_guarantee_is_refused(ledger, cap):
  with pytest.raises(InputError):
    ledger.set_cap("pets", cap)

  assert ledger.entries() == []
