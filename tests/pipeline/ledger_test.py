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
from oneshot_dp.pipeline.ledger import entries as charges
from oneshot_dp.pipeline.ledger.entries import Cap, ReleasedHead
from oneshot_dp.pipeline.ledger.ledger import Ledger, default_ledger
from tests.pipeline.sample_heads import bill_of

DELTA = 1e-5


def keys(*numbers, of="image"):
  return {of: np.array(sorted(numbers), np.uint64)}


def bill(*costs, rows=None, **changes):
  return bill_of(*costs, keys=rows, **changes)


@pytest.fixture
def charge(ledger):
  """Charges costs for a run of its own, and says their ids."""
  runs = itertools.count()

  def charge_them(*costs, run=None, asked=None, **changes):
    run = run or f"/runs/{next(runs)}"
    return ledger.charge([bill(*costs, **changes)], Path(run), asked or {})

  return charge_them


def test_costs_add_up_without_rounding(ledger, charge):
  costs = [0.1, 1e-18, Fraction(1, 3)]
  ids = charge(*costs)
  assert len({*ids}) == 3
  assert all(len(i) == 32 for i in ids)
  exact = sum(Fraction(cost) for cost in costs)
  assert charges.spent(ledger.entries("pets")) == exact
  assert charges.spent(ledger.entries("cats")) == 0
  assert [e.id for e in ledger.entries("pets")] == ids
  assert Fraction(0.1 + 1e-18) == Fraction(0.1)  # floats would forget it


def test_a_ledger_that_has_just_gone_takes_no_charge(ledger, monkeypatch):
  ledger.set_cap("pets", Cap(1.0, 1e-5))

  def gone(path, exists=charges.exists):
    there = exists(path)
    path.unlink(missing_ok=True)
    return there

  monkeypatch.setattr(charges, "exists", gone)
  with pytest.raises(RunError, match="nothing was charged"):
    ledger.charge([bill_of(100.0)], Path("/run"), {})


def test_a_cap_lets_out_what_it_is_for_and_not_a_bit_more(ledger, charge):
  ledger.set_cap("pets", Cap(8.0, DELTA))
  first, most = (
    mu_squared_from_epsilon(1.0, DELTA),
    mu_squared_from_epsilon(8.0, DELTA),
  )
  charge(first)
  with pytest.raises(InputError) as refused:
    charge(most)
  said = str(refused.value).split("one release of epsilon ")[1]
  left, rest = float(said.split()[0]), Fraction(most) - Fraction(first)
  fits, more = (mu_squared_from_epsilon(left * by, DELTA) for by in (1, 1.0001))
  assert fits <= rest < more
  with pytest.raises(InputError, match="would break the cap of 'pets'"):
    charge(rest * (1 + Fraction(1, 2**80)))
  charge(rest)
  assert charges.spent(ledger.entries("pets")) == Fraction(most)
  with pytest.raises(InputError, match="nothing is left"):
    charge(5e-324)
  charge(1.0, dataset="cats", rows=keys(9))  # another data set has no cap


def test_charges_of_one_run_are_all_or_nothing(ledger):
  ledger.set_cap("pets", Cap(1.0, DELTA))
  cost = mu_squared_from_epsilon(0.9, DELTA)
  both = bill(cost, dataset="cats", rows=keys(7)), bill(cost, cost)
  with pytest.raises(InputError, match="break the cap"):
    ledger.charge(both, Path("/run"), {})
  assert not charges.spent(ledger.entries("cats"))
  assert [e.dataset for e in ledger.entries()] == ["pets"]  # the cap


def test_no_cap_covers_what_is_not_private(ledger, charge):
  ledger.set_cap("pets", Cap(1.0, DELTA))
  with pytest.raises(InputError, match="covers nothing that is NOT PRIVATE"):
    charge(None)
  charge(None, dataset="cats", rows=keys(8))
  assert ledger.entries("cats")[0].mu2 is None
  assert not charges.spent(ledger.entries("cats"))


@pytest.mark.parametrize("cost", [0.0, -1.0])
def test_a_cost_that_is_none_is_refused(ledger, charge, cost):
  with pytest.raises(InputError, match="must be positive"):
    charge(1.0, cost)
  assert ledger.entries() == []


def test_caps_say_when_they_are_no_proven_guarantee(ledger, charge):
  assert ledger.set_cap("pets", Cap(2.0, DELTA)) == []
  assert ledger.set_cap("pets", Cap(1.0, DELTA)) == []
  for cap in Cap(1.5, DELTA), Cap(0.5, 2 * DELTA):
    (raised,) = ledger.set_cap("pets", cap)
    assert "THE CAP WAS RAISED" in raised
    assert "no proven guarantee" in raised
  charge(4.0, None, dataset="cats", rows=keys(8))
  late, exposed, over = ledger.set_cap("cats", Cap(1.0, DELTA))
  assert "after the first release" in late
  assert "no proven guarantee" in late
  assert "1 charges are NOT PRIVATE" in exposed
  assert "more than this is spent already" in over
  for numbers in (-1.0, DELTA), (1.0, 1.0), (float("nan"), DELTA):
    with pytest.raises(InputError):
      ledger.set_cap("pets", Cap(*numbers))
  assert charges.cap_of(ledger.entries("pets")) == Cap(0.5, 2 * DELTA)


@pytest.mark.parametrize("of", ["image", "direction"])
def test_rows_under_another_name_are_refused(ledger, charge, of):
  charge(1.0, rows=keys(1, 2, 3, of=of))
  with pytest.raises(InputError) as refused:
    charge(1.0, dataset="cats", rows=keys(2, 3, 4, 5, of=of))
  assert "at least 2 of these rows are charged as 'pets'" in str(refused.value)
  charge(1.0, rows=keys(2, 9, of=of))
  with pytest.raises(InputError):  # what a later charge of the data set added
    charge(1.0, dataset="cats", rows=keys(9, of=of))
  charge(1.0, dataset="cats", rows=keys(4, 5, of=of))


def test_rows_and_units_that_are_known_are_counted(ledger, charge):
  assert ledger.shared(keys(1)) == {}
  charge(1.0, rows=keys(1, 2) | keys(11, 12, of="unit"), unit="user")
  asked = keys(2, 3) | keys(12, 13, of="unit") | keys(5, of="direction")
  assert ledger.shared(asked) == {"pets": (1, 1)}
  assert ledger.shared(keys(3)) == {}


def test_a_head_goes_on_from_a_charge_that_is_known(ledger, charge):
  (first,) = charge(1.0)
  (second,) = charge(0.5, came_from=first)
  assert [e.id for e in ledger.paid(second)] == [second, first]
  for unknown, dataset in ("0" * 32, "pets"), (first, "cats"):
    with pytest.raises(InputError, match="to go on from was not charged here"):
      charge(0.5, came_from=unknown, dataset=dataset, rows=keys(77))


def test_a_stopped_run_is_found_and_pays_nothing(ledger, charge):
  ids = charge(1.0, 2.0, run="/out", asked={"epsilons": (1, 2)})
  assert charge(1.0, 2.0, run="/out", asked={"epsilons": [1, 2]}) == ids
  assert charges.spent(ledger.entries("pets")) == 3
  with pytest.raises(InputError, match="another by its epsilons, seed"):
    charge(1.0, run="/out", asked={"epsilons": [1], "seed": 3})
  with pytest.raises(InputError, match="another by its rows"):
    charge(1.0, 2.0, run="/out", asked={"epsilons": [1, 2]}, rows=keys(1, 2))
  ledger.deliver(ids, {})
  again = charge(1.0, run="/out")  # somebody removed what was there
  assert not {*again} & {*ids}
  assert charges.spent(ledger.entries("pets")) == 4


def test_a_charge_pays_for_one_release(ledger, charge):
  ids = charge(1.0, 2.0)
  left = {"a" * 64: ReleasedHead(ids[0], "b" * 64)}
  ledger.deliver(ids, left)
  for again in ids, ids[1:], [*charge(1.0), ids[0]], ["0" * 32]:
    with pytest.raises(InputError, match="pays for one release"):
      ledger.deliver(again, {})
  assert ledger.heads() == left


def test_it_is_made_for_its_owner_at_the_first_charge(ledger, charge, capsys):
  assert not ledger.path.exists()
  assert ledger.entries() == []
  assert not ledger.heads()
  assert not ledger.path.parent.exists()
  charge(1.0)
  assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
  assert stat.S_IMODE(ledger.path.parent.stat().st_mode) == 0o700
  assert [*ledger.path.parent.iterdir()] == [ledger.path]
  assert "the first charge of 'pets'" in capsys.readouterr().err
  charge(1.0)
  assert capsys.readouterr().err == ""


def test_a_write_waits_for_the_disk_and_a_busy_file_is_one_line(ledger, charge):
  charge(1.0)
  with ledger._open(write=True) as entries:
    for name, value in ("journal_mode", "delete"), ("synchronous", 3):
      assert entries._db.execute(f"PRAGMA {name}").fetchone() == (value,)
    other = sqlite3.connect(ledger.path, timeout=0)  # IMMEDIATE: alone
    with pytest.raises(sqlite3.OperationalError, match="locked"):
      other.execute("BEGIN IMMEDIATE")
    other.close()
  impatient = Ledger(ledger.path, wait=0.05)
  db = sqlite3.connect(ledger.path, isolation_level=None)
  db.execute("BEGIN EXCLUSIVE")
  for use in (impatient.entries, lambda: impatient.deliver([], {})):
    with pytest.raises(RunError, match="is busy: another process"):
      use()
  db.close()
  assert len(impatient.entries()) == 1


def test_where_it_is(monkeypatch, tmp_path):
  monkeypatch.delenv("ONESHOT_DP_LEDGER", raising=False)
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  usual = "oneshot-dp/ledger.sqlite"
  assert default_ledger() == tmp_path / "state" / usual
  monkeypatch.setenv("XDG_STATE_HOME", "relative")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert default_ledger() == tmp_path / ".local/state" / usual
  monkeypatch.delenv("HOME")
  assert default_ledger().is_absolute()  # of the system's list of users
  for home in "", "not/absolute":
    monkeypatch.setenv("HOME", home)
    with pytest.raises(InputError, match=r"HOME=.* is no place for a ledger"):
      default_ledger()
  monkeypatch.setenv("ONESHOT_DP_LEDGER", str(tmp_path / "mine"))
  assert Ledger().path == tmp_path / "mine"


def test_links_lead_to_one_ledger(ledger, charge, tmp_path):
  link = tmp_path / "link"
  link.symlink_to(ledger.path)  # dangling, until it is made
  Ledger(link).charge([bill(1.0)], Path("/a"), {})
  charge(1.0)
  assert link.is_symlink()
  assert charges.spent(Ledger(link).entries()) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="no mode stops this user")
def test_a_read_only_ledger_is_read(ledger, charge):
  charge(1.0)
  ledger.path.chmod(0o400)
  ledger.path.parent.chmod(0o500)
  try:
    assert len(ledger.entries()) == 1
    with pytest.raises(RunError, match="cannot be read or written"):
      charge(1.0)
  finally:
    ledger.path.parent.chmod(0o700)


def test_bills_of_one_command_are_compared_with_one_another(ledger):
  """Neither may have the other's rows, or units of another kind."""
  same = [bill(0.1, dataset="a"), bill(0.1, dataset="b", rows=keys(3, 4))]
  with pytest.raises(InputError, match="1 of these rows are charged as 'b'"):
    ledger.charge(same, Path("/runs/x"), {})
  kinds = [bill(0.1, unit="patient"), bill(0.1, rows=keys(7))]
  with pytest.raises(InputError, match="charged per example and per patient"):
    ledger.charge(kinds, Path("/runs/x"), {})
  assert ledger.entries() == []
  apart = [bill(0.1, dataset="a"), bill(0.1, dataset="b", rows=keys(4))]
  assert len(ledger.charge(apart, Path("/runs/x"), {})) == 2
  with pytest.raises(InputError, match="charged per example and per patient"):
    ledger.charge([bill(0.1, dataset="a", unit="patient")], Path("/y"), {})


def test_a_cap_is_of_rows_by_any_name(ledger):
  """Or whoever calls them otherwise would not meet it."""
  assert ledger.set_cap("a", Cap(1.0, DELTA), keys(1, 2)) == []
  with pytest.raises(InputError, match="1 of these rows are charged as 'a'"):
    ledger.charge([bill(9.0, dataset="b", rows=keys(2, 3))], Path("/r/x"), {})
  with pytest.raises(InputError, match="would break the cap of 'a'"):
    ledger.charge([bill(9.0, dataset="a", rows=keys(1))], Path("/r/x"), {})
