"""The file of a ledger: whose it is, who waits for whom, and where it lies."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.ledger import store
from oneshot_dp.pipeline.ledger.entries import Cap, LedgerEntry, spent
from oneshot_dp.pipeline.ledger.ledger import Ledger, open_existing_ledger
from oneshot_dp.pipeline.ledger.store import default_ledger
from tests.pipeline.sample_heads import make_charge_request

DELTA = 1e-5


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

    # Removed between the look whether it exists and the opening: a ledger made
    # anew at that moment would have no cap.
    def exists_then_gone(path, exists=store.ledger_exists):
      there = exists(path)
      path.unlink(missing_ok=True)
      return there

    monkeypatch.setattr(store, "ledger_exists", exists_then_gone)
    with pytest.raises(RunError, match="nothing was charged"):
      ledger.charge([make_charge_request(100.0)], Path("/run"), {})

  def test_a_write_waits_for_the_disk_and_is_alone(self, ledger, charge):
    charge(1.0)

    # SQLite's own settings, as the open transaction has them; 3 is EXTRA.
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
      impatient.charge([make_charge_request(1.0)], Path("/a"), {})
    with pytest.raises(RunError, match=r"again; what was charged .* stays"):
      impatient.deliver([], {})
    with pytest.raises(RunError, match=r"again; no cap was set.$"):
      impatient.set_cap("pets", Cap(1.0, DELTA))

    database.close()
    assert len(impatient.entries()) == 1

  def test_links_lead_to_one_ledger(self, ledger, charge, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(ledger.path)  # dangling, until it is made

    Ledger(link).charge([make_charge_request(1.0)], Path("/a"), {})
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
