"""What a ledger charges: costs, rows, parents, and stopped runs."""

import sqlite3
from fractions import Fraction
from pathlib import Path

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.ledger.entries import ReleasedHead, sha256, spent
from tests.pipeline.sample_heads import make_charge_request, row_keys

UNKNOWN_CHARGE = "0".zfill(32)
WEIGHTS_SHA256 = sha256(b"weights")
RECEIPT_SHA256 = sha256(b"receipt")


class TestCosts:
  def test_costs_add_up_without_rounding(self, ledger, charge):
    # The second is less than half of the last bit of the first: a sum of
    # floats would forget it.
    costs = [Fraction(0.1), Fraction(1e-18), Fraction(1, 3)]
    assert Fraction(0.1 + 1e-18) == Fraction(0.1)

    charge(*costs)

    assert spent(ledger.entries("pets")) == sum(costs, Fraction(0))

  def test_another_data_set_is_not_charged(self, ledger, charge):
    charge(1.0)

    assert spent(ledger.entries("cats")) == 0

  def test_ids_are_random_and_kept_in_order(self, ledger, charge):
    ids = charge(1.0, 2.0, 3.0)

    assert len(set(ids)) == 3
    for charge_id in ids:
      assert len(charge_id) == 32
    assert [entry.id for entry in ledger.entries("pets")] == ids

  @pytest.mark.parametrize("cost", [0.0, -1.0])
  def test_a_cost_that_is_not_positive_is_refused(self, ledger, charge, cost):
    with pytest.raises(InputError, match="must be positive"):
      charge(1.0, cost)

    assert ledger.entries() == []

  def test_fields_keep_their_names_on_the_disk(self, ledger, charge):
    (first,) = charge(1.0)
    charge(0.5, parent_charge_id=first, identity={"epsilon": 1})
    ledger.deliver([first], {})

    # As the file has it, and not through the code that renames the fields.
    with sqlite3.connect(ledger.path) as database:
      text = str(database.execute("SELECT body FROM entry").fetchall())
    for name in "what", "mu2", "came_from", "asked", "charges", "of":
      assert f'"{name}":' in text
    for name in "description", "mu_squared", "identity", "key_kind":
      assert f'"{name}":' not in text


class TestRows:
  @pytest.mark.parametrize("kind", ["image", "direction"])
  def test_rows_under_another_name_are_refused(self, charge, kind):
    charge(1.0, keys=row_keys(1, 2, 3, kind=kind))

    with pytest.raises(InputError, match="some rows of CACHE are charged as"):
      charge(1.0, dataset="cats", keys=row_keys(2, 3, 4, 5, kind=kind))

    charge(1.0, dataset="cats", keys=row_keys(4, 5, kind=kind))

  def test_rows_that_a_later_charge_added_are_refused_too(self, charge):
    charge(1.0, keys=row_keys(1, 2, 3))
    charge(1.0, keys=row_keys(2, 9))

    with pytest.raises(
      InputError, match="some rows of CACHE are charged as 'pet"
    ):
      charge(1.0, dataset="cats", keys=row_keys(9))

  def test_rows_of_requests_of_one_command_are_compared(self, ledger):
    requests = [
      make_charge_request(0.1, dataset="a"),
      make_charge_request(0.1, dataset="b", keys=row_keys(3, 4)),
    ]

    with pytest.raises(
      InputError, match="some rows of CACHE are charged as 'b'"
    ):
      ledger.charge(requests, Path("/runs/x"), {})

    assert ledger.entries() == []

  def test_rows_and_units_that_are_known_are_counted(self, ledger, charge):
    keys = row_keys(1, 2) | row_keys(11, 12, kind="unit")
    charge(1.0, keys=keys, unit="user")

    new_keys = row_keys(2, 3) | row_keys(12, 13, kind="unit")
    new_keys |= row_keys(5, kind="direction")
    assert ledger.shared(new_keys) == {"pets": (1, 1, 1)}

  def test_rows_that_are_not_known_are_shared_with_nobody(self, ledger, charge):
    charge(1.0, keys=row_keys(1, 2))

    assert ledger.shared(row_keys(3)) == {}

  def test_nothing_is_known_without_a_file(self, ledger):
    assert ledger.shared(row_keys(1)) == {}

  def test_units_of_one_data_set_do_not_mix_in_a_command(self, ledger):
    requests = [
      make_charge_request(0.1, unit="patient"),
      make_charge_request(0.1, keys=row_keys(7)),
    ]

    with pytest.raises(
      InputError, match="per patient, and this would be charged per exa"
    ):
      ledger.charge(requests, Path("/runs/x"), {})

    assert ledger.entries() == []

  def test_units_of_one_data_set_do_not_mix_later(self, charge):
    charge(0.1)

    with pytest.raises(
      InputError, match="per example, and this would be charged per pat"
    ):
      charge(0.1, unit="patient")


class TestParents:
  def test_a_charge_leads_to_those_it_continues_from(self, ledger, charge):
    (first,) = charge(1.0)
    (second,) = charge(0.5, parent_charge_id=first)

    assert [entry.id for entry in ledger.paid(second)] == [second, first]

  def test_a_parent_that_was_not_charged_is_refused(self, charge):
    with pytest.raises(InputError, match="continue from was not charged here"):
      charge(0.5, parent_charge_id=UNKNOWN_CHARGE)

  def test_a_parent_of_another_data_set_is_refused(self, charge):
    (first,) = charge(1.0)

    with pytest.raises(InputError, match="continue from was not charged here"):
      charge(0.5, parent_charge_id=first, dataset="cats", keys=row_keys(77))


class TestStoppedRuns:
  def test_a_stopped_run_is_found_and_pays_nothing(self, ledger, charge):
    ids = charge(1.0, 2.0, run="/out", identity={"epsilons": (1, 2)})

    again = charge(1.0, 2.0, run="/out", identity={"epsilons": [1, 2]})

    assert again == ids
    assert spent(ledger.entries("pets")) == 3

  def test_another_run_into_its_place_is_refused_by_what_differs(self, charge):
    charge(1.0, 2.0, run="/out", identity={"epsilons": (1, 2)})

    with pytest.raises(InputError, match="another by its epsilons, seed"):
      charge(1.0, run="/out", identity={"epsilons": [1], "seed": 3})

  def test_other_rows_into_its_place_are_refused(self, charge):
    identity = {"epsilons": [1, 2]}
    charge(1.0, 2.0, run="/out", identity=identity)

    with pytest.raises(InputError, match="another by its rows"):
      charge(1.0, 2.0, run="/out", identity=identity, keys=row_keys(1, 2))

  def test_a_delivered_run_pays_again(self, ledger, charge):
    ids = charge(1.0, run="/out")
    ledger.deliver(ids, {})

    again = charge(1.0, run="/out")  # somebody removed what was there

    assert again != ids
    assert spent(ledger.entries("pets")) == 2


class TestDeliver:
  def test_a_charge_pays_for_one_release(self, ledger, charge):
    ids = charge(1.0, 2.0)
    heads = {WEIGHTS_SHA256: ReleasedHead(ids[0], RECEIPT_SHA256)}
    ledger.deliver(ids, heads)

    # Again, a part of it, and one of its charges beside a fresh one.
    for delivered in ids, ids[1:], [*charge(1.0), ids[0]]:
      with pytest.raises(InputError, match="pays for one release"):
        ledger.deliver(delivered, {})

    assert ledger.heads() == heads

  def test_charges_that_are_not_in_the_file_are_refused(self, ledger, charge):
    charge(1.0)

    with pytest.raises(InputError, match="was replaced while the run"):
      ledger.deliver([UNKNOWN_CHARGE], {})

  def test_a_ledger_that_is_gone_is_not_made_anew(self, ledger, charge):
    ids = charge(1.0)
    ledger.path.unlink()

    with pytest.raises(RunError, match="does not exist any more"):
      ledger.deliver(ids, {})

    assert not ledger.path.exists()
