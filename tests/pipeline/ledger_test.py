import itertools
import os
import sqlite3
import stat
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.pipeline.ledger import store
from oneshot_dp.pipeline.ledger.entries import (
  Cap,
  LedgerEntry,
  ReleasedHead,
  cap_of,
  spent,
)
from oneshot_dp.pipeline.ledger.ledger import Ledger, open_existing_ledger
from oneshot_dp.pipeline.ledger.store import default_ledger
from tests.pipeline.sample_heads import make_charge_request

DELTA = 1e-5


def keys(*numbers, kind="image"):
  return {kind: np.array(sorted(numbers), np.uint64)}


def request(*costs, rows=None, **changes):
  return make_charge_request(*costs, keys=rows, **changes)


@pytest.fixture
def charge(ledger):
  """Charges costs for a run of its own; returns the charges' ids."""
  run_numbers = itertools.count()

  def charge_run(*costs, run=None, identity=None, **changes):
    run = run or f"/runs/{next(run_numbers)}"
    return ledger.charge(
      [request(*costs, **changes)], Path(run), identity or {}
    )

  return charge_run


class TestCosts:
  def test_costs_add_up_without_rounding(self, ledger, charge):
    costs = [Fraction(0.1), Fraction(1e-18), Fraction(1, 3)]

    charge(*costs)

    assert spent(ledger.entries("pets")) == sum(costs, Fraction(0))
    assert Fraction(0.1 + 1e-18) == Fraction(0.1)  # floats would forget it

  def test_another_data_set_is_not_charged(self, ledger, charge):
    charge(1.0)

    assert spent(ledger.entries("cats")) == 0

  def test_ids_are_random_and_kept_in_order(self, ledger, charge):
    ids = charge(1.0, 2.0, 3.0)

    assert len(set(ids)) == 3
    assert all(len(charge_id) == 32 for charge_id in ids)
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

    with sqlite3.connect(ledger.path) as database:
      text = " ".join(
        body for (body,) in database.execute("SELECT body FROM entry")
      )
    for name in "what", "mu2", "came_from", "asked", "charges", "of":
      assert f'"{name}":' in text
    for name in "description", "mu_squared", "identity", "key_kind":
      assert f'"{name}":' not in text


class TestCaps:
  def test_a_cap_lets_out_its_budget_and_not_a_bit_more(self, ledger, charge):
    first = Fraction(mu_squared_from_epsilon(1.0, DELTA))
    most = Fraction(mu_squared_from_epsilon(8.0, DELTA))
    ledger.set_cap("pets", Cap(8.0, DELTA))
    charge(first)
    rest = most - first

    with pytest.raises(InputError, match="would break the cap of 'pets'"):
      charge(rest * (1 + Fraction(1, 2**80)))
    charge(rest)

    assert spent(ledger.entries("pets")) == most
    with pytest.raises(InputError, match="nothing is left"):
      charge(5e-324)

  def test_the_epsilon_that_is_called_left_fits_and_little_more_does_not(
    self, ledger, charge
  ):
    first = Fraction(mu_squared_from_epsilon(1.0, DELTA))
    most = Fraction(mu_squared_from_epsilon(8.0, DELTA))
    ledger.set_cap("pets", Cap(8.0, DELTA))
    charge(first)

    with pytest.raises(InputError) as refused:
      charge(most)

    message = str(refused.value)
    left = float(message.split("one release of epsilon ")[1].split()[0])
    assert mu_squared_from_epsilon(left, DELTA) <= most - first
    assert mu_squared_from_epsilon(left * 1.0001, DELTA) > most - first

  def test_a_cap_of_one_data_set_does_not_bind_another(self, ledger, charge):
    ledger.set_cap("pets", Cap(1.0, DELTA))

    charge(100.0, dataset="cats", rows=keys(9))

    assert spent(ledger.entries("cats")) == 100

  def test_charges_of_one_run_are_all_or_nothing(self, ledger):
    ledger.set_cap("pets", Cap(1.0, DELTA))
    cost = mu_squared_from_epsilon(0.9, DELTA)
    requests = [
      request(cost, dataset="cats", rows=keys(7)),
      request(cost, cost),
    ]

    with pytest.raises(InputError, match="break the cap"):
      ledger.charge(requests, Path("/run"), {})

    assert [entry.kind for entry in ledger.entries()] == ["cap"]

  def test_a_cap_refuses_what_is_not_private(self, ledger, charge):
    ledger.set_cap("pets", Cap(1.0, DELTA))

    with pytest.raises(InputError, match="covers nothing that is NOT PRIVATE"):
      charge(None)

  def test_what_is_not_private_is_recorded_without_a_cost(self, ledger, charge):
    charge(None)

    assert [entry.mu_squared for entry in ledger.entries()] == [None]
    assert spent(ledger.entries("pets")) == 0

  def test_a_cap_before_the_first_release_has_no_warning(self, ledger):
    assert ledger.set_cap("pets", Cap(2.0, DELTA)) == []
    assert ledger.set_cap("pets", Cap(1.0, DELTA)) == []  # a lower one

  @pytest.mark.parametrize("cap", [Cap(1.5, DELTA), Cap(0.5, 2 * DELTA)])
  def test_a_raised_cap_is_called_raised_and_unproven(self, ledger, cap):
    ledger.set_cap("pets", Cap(1.0, DELTA))

    (warning,) = ledger.set_cap("pets", cap)

    assert "THE CAP WAS RAISED" in warning
    assert "no proven guarantee" in warning
    assert cap_of(ledger.entries("pets")) == cap

  def test_a_late_cap_says_what_it_does_not_cover(self, ledger, charge):
    charge(4.0, None)

    late, exposed, over = ledger.set_cap("pets", Cap(1.0, DELTA))

    assert "after the first release" in late
    assert "no proven guarantee" in late
    assert "1 charges are NOT PRIVATE" in exposed
    assert "more than this is spent already" in over

  @pytest.mark.parametrize(
    "cap", [Cap(-1.0, DELTA), Cap(1.0, 1.0), Cap(float("nan"), DELTA)]
  )
  def test_a_cap_that_is_not_a_guarantee_is_refused(self, ledger, cap):
    with pytest.raises(InputError):
      ledger.set_cap("pets", cap)

    assert ledger.entries() == []

  def test_rows_of_a_cap_are_refused_under_any_other_name(self, ledger):
    ledger.set_cap("a", Cap(1.0, DELTA), keys(1, 2))

    with pytest.raises(InputError, match="1 of these rows are charged as 'a'"):
      ledger.charge(
        [request(9.0, dataset="b", rows=keys(2, 3))], Path("/r/x"), {}
      )
    with pytest.raises(InputError, match="would break the cap of 'a'"):
      ledger.charge([request(9.0, dataset="a", rows=keys(1))], Path("/r/x"), {})


class TestRows:
  @pytest.mark.parametrize("kind", ["image", "direction"])
  def test_rows_under_another_name_are_refused(self, charge, kind):
    charge(1.0, rows=keys(1, 2, 3, kind=kind))

    with pytest.raises(InputError, match="at least 2 of these rows are charge"):
      charge(1.0, dataset="cats", rows=keys(2, 3, 4, 5, kind=kind))

    charge(1.0, dataset="cats", rows=keys(4, 5, kind=kind))

  def test_rows_that_a_later_charge_added_are_refused_too(self, charge):
    charge(1.0, rows=keys(1, 2, 3))
    charge(1.0, rows=keys(2, 9))

    with pytest.raises(InputError, match="1 of these rows are charged as 'pet"):
      charge(1.0, dataset="cats", rows=keys(9))

  def test_rows_of_requests_of_one_command_are_compared(self, ledger):
    requests = [
      request(0.1, dataset="a"),
      request(0.1, dataset="b", rows=keys(3, 4)),
    ]

    with pytest.raises(InputError, match="1 of these rows are charged as 'b'"):
      ledger.charge(requests, Path("/runs/x"), {})

    assert ledger.entries() == []

  def test_rows_and_units_that_are_known_are_counted(self, ledger, charge):
    charge(1.0, rows=keys(1, 2) | keys(11, 12, kind="unit"), unit="user")

    rows = keys(2, 3) | keys(12, 13, kind="unit") | keys(5, kind="direction")
    assert ledger.shared(rows) == {"pets": (1, 1, 1)}
    assert ledger.shared(keys(3)) == {}

  def test_nothing_is_known_without_a_file(self, ledger):
    assert ledger.shared(keys(1)) == {}

  def test_units_of_one_data_set_do_not_mix_in_a_command(self, ledger):
    requests = [request(0.1, unit="patient"), request(0.1, rows=keys(7))]

    with pytest.raises(InputError, match="charged per example and per patient"):
      ledger.charge(requests, Path("/runs/x"), {})

    assert ledger.entries() == []

  def test_units_of_one_data_set_do_not_mix_later(self, charge):
    charge(0.1)

    with pytest.raises(InputError, match="charged per example and per patient"):
      charge(0.1, unit="patient")


class TestParents:
  def test_a_charge_leads_to_those_it_continues_from(self, ledger, charge):
    (first,) = charge(1.0)
    (second,) = charge(0.5, parent_charge_id=first)

    assert [entry.id for entry in ledger.paid(second)] == [second, first]

  def test_a_parent_that_was_not_charged_is_refused(self, charge):
    with pytest.raises(InputError, match="continue from was not charged here"):
      charge(0.5, parent_charge_id="0" * 32)

  def test_a_parent_of_another_data_set_is_refused(self, charge):
    (first,) = charge(1.0)

    with pytest.raises(InputError, match="continue from was not charged here"):
      charge(0.5, parent_charge_id=first, dataset="cats", rows=keys(77))


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
    with pytest.raises(InputError, match="another by its rows"):
      charge(
        1.0,
        2.0,
        run="/out",
        identity={"epsilons": [1, 2]},
        rows=keys(1, 2),
      )

  def test_a_delivered_run_pays_again(self, ledger, charge):
    ids = charge(1.0, run="/out")
    ledger.deliver(ids, {})

    again = charge(1.0, run="/out")  # somebody removed what was there

    assert again != ids
    assert spent(ledger.entries("pets")) == 2


class TestDeliver:
  def test_a_charge_pays_for_one_release(self, ledger, charge):
    ids = charge(1.0, 2.0)
    heads = {"a" * 64: ReleasedHead(ids[0], "b" * 64)}
    ledger.deliver(ids, heads)

    for delivered in ids, ids[1:], [*charge(1.0), ids[0]]:
      with pytest.raises(InputError, match="pays for one release"):
        ledger.deliver(delivered, {})

    assert ledger.heads() == heads

  def test_charges_that_are_not_in_the_file_are_refused(self, ledger, charge):
    charge(1.0)

    with pytest.raises(InputError, match="was replaced while the run"):
      ledger.deliver(["0" * 32], {})

  def test_a_ledger_that_is_gone_is_not_made_anew(self, ledger, charge):
    ids = charge(1.0)
    ledger.path.unlink()

    with pytest.raises(RunError, match="does not exist any more"):
      ledger.deliver(ids, {})

    assert not ledger.path.exists()


class TestFile:
  def test_reading_makes_no_file(self, ledger):
    assert ledger.entries() == []
    assert not ledger.heads()
    assert not ledger.path.parent.exists()

  def test_the_first_charge_makes_it_for_its_owner_alone(self, ledger, charge):
    charge(1.0)

    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ledger.path.parent.stat().st_mode) == 0o700
    assert [*ledger.path.parent.iterdir()] == [ledger.path]

  def test_the_first_charge_of_a_data_set_says_so_once(self, charge, capsys):
    charge(1.0)
    assert "new ledger entry for 'pets'" in capsys.readouterr().err

    charge(1.0)
    assert capsys.readouterr().err == ""

  def test_a_ledger_that_has_just_gone_takes_no_charge(
    self, ledger, monkeypatch
  ):
    ledger.set_cap("pets", Cap(1.0, DELTA))

    def exists_then_gone(path, exists=store.ledger_exists):
      there = exists(path)
      path.unlink(missing_ok=True)
      return there

    monkeypatch.setattr(store, "ledger_exists", exists_then_gone)
    with pytest.raises(RunError, match="nothing was charged"):
      ledger.charge([request(100.0)], Path("/run"), {})

  def test_a_write_waits_for_the_disk_and_is_alone(self, ledger, charge):
    charge(1.0)

    with store.transaction(ledger.path, wait=1.0, write=True) as entries:
      for name, value in ("journal_mode", "delete"), ("synchronous", 3):
        pragma = entries.connection.execute(f"PRAGMA {name}")
        assert pragma.fetchone() == (value,)
      other = sqlite3.connect(ledger.path, timeout=0)
      with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
      other.close()

  def test_a_block_that_fails_writes_nothing(self, ledger, charge):
    charge(1.0)

    def fail_in_the_middle():
      with store.transaction(ledger.path, wait=1.0, write=True) as entries:
        cap = LedgerEntry(kind="cap", dataset="pets", epsilon=1.0, delta=1e-5)
        entries.add(cap)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
      fail_in_the_middle()

    assert len(ledger.entries()) == 1

  def test_a_busy_file_is_one_line_and_stays_whole(self, ledger, charge):
    charge(1.0)
    impatient = Ledger(ledger.path, wait=0.05)
    database = sqlite3.connect(ledger.path, isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")

    with pytest.raises(RunError, match=r"to it; try again.$"):
      impatient.entries()
    with pytest.raises(RunError, match=r"again; nothing was charged.$"):
      impatient.charge([request(1.0)], Path("/a"), {})
    with pytest.raises(RunError, match=r"again; what was charged .* stays"):
      impatient.deliver([], {})
    with pytest.raises(RunError, match=r"again; no cap was set.$"):
      impatient.set_cap("pets", Cap(1.0, DELTA))

    database.close()
    assert len(impatient.entries()) == 1

  def test_links_lead_to_one_ledger(self, ledger, charge, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(ledger.path)  # dangling, until it is made

    Ledger(link).charge([request(1.0)], Path("/a"), {})
    charge(1.0)

    assert link.is_symlink()
    assert spent(Ledger(link).entries()) == 2

  @pytest.mark.skipif(os.geteuid() == 0, reason="no mode stops this user")
  def test_a_read_only_ledger_is_read_and_takes_no_charge(self, ledger, charge):
    charge(1.0)
    ledger.path.chmod(0o400)
    ledger.path.parent.chmod(0o500)
    try:
      assert len(ledger.entries()) == 1
      with pytest.raises(RunError, match="cannot be read or written"):
        charge(1.0)
    finally:
      ledger.path.parent.chmod(0o700)


class TestPlace:
  @pytest.fixture(autouse=True)
  def without_variables(self, monkeypatch, tmp_path):
    monkeypatch.delenv("ONESHOT_DP_LEDGER", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

  def test_it_is_in_the_state_folder(self, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    assert default_ledger() == tmp_path / "state/oneshot-dp/ledger.sqlite"

  @pytest.mark.parametrize("state", ["", "relative"])
  def test_without_a_state_folder_it_is_at_home(
    self, monkeypatch, tmp_path, state
  ):
    monkeypatch.setenv("XDG_STATE_HOME", state)

    usual = ".local/state/oneshot-dp/ledger.sqlite"
    assert default_ledger() == tmp_path / usual

  def test_without_home_the_system_knows_one(self, monkeypatch):
    monkeypatch.delenv("HOME")

    assert default_ledger().is_absolute()

  @pytest.mark.parametrize("home", ["", "not/absolute"])
  def test_a_home_that_is_not_a_place_is_refused(self, monkeypatch, home):
    monkeypatch.setenv("HOME", home)

    with pytest.raises(InputError, match=r"HOME=.* is not a place for a led"):
      default_ledger()

  def test_the_variable_names_another_file(self, monkeypatch, tmp_path):
    monkeypatch.setenv("ONESHOT_DP_LEDGER", str(tmp_path / "mine"))

    assert Ledger().path == tmp_path / "mine"

  def test_a_bucket_is_refused_with_the_reason(self):
    with pytest.raises(InputError, match="needs a file system's locks"):
      Ledger(Path("s3://bucket/ledger"))

  def test_a_named_ledger_must_exist_where_nothing_is_charged(self, tmp_path):
    with pytest.raises(InputError, match=r"--ledger .*typo does not exist"):
      open_existing_ledger(tmp_path / "typo")

    assert open_existing_ledger(None).path == default_ledger()
