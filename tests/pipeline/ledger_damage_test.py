"""A ledger that is not as it was written lets nothing out of any data set."""

import hashlib
import json
import re
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.entries import Cap, ReleasedHead
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.faults.harness import damaged_copies, odd_files
from tests.pipeline.sample_heads import make_charge_request

WEIGHTS_SHA256 = "a".zfill(64)
RECEIPT_SHA256 = "b".zfill(64)
KEYS = {"image": np.array([1, 2, 3], np.uint64)}
OTHER_KEYS = {"image": np.array([8, 9], np.uint64)}


@pytest.fixture(scope="module")
def sound_ledger(tmp_path_factory):
  """Two data sets, a cap, and a released head; not in the usual place."""
  path = tmp_path_factory.mktemp("sound") / "ledger.sqlite"
  ledger = Ledger(path)
  ledger.set_cap("pets", Cap(20.0, 1e-5))
  ids = ledger.charge([make_charge_request(1.0)], Path("/a"), {"epsilon": 1})
  head = ReleasedHead(ids[0], RECEIPT_SHA256)
  ledger.deliver(ids, {WEIGHTS_SHA256: head})
  cats = make_charge_request(1.0, dataset="cats", keys=OTHER_KEYS)
  ledger.charge([cats], Path("/b"), {"epsilon": 2})
  return path


@pytest.fixture
def path(sound_ledger, tmp_path):
  """A copy of it, to be damaged."""
  return Path(shutil.copy(sound_ledger, tmp_path / "ledger.sqlite"))


def uses_of(path):
  """Everything that reads a ledger, for a data set that was not edited."""
  ledger = Ledger(path, wait=0.05)
  rows = {"image": np.array([50], np.uint64)}
  new = make_charge_request(1.0, dataset="wolves", keys=rows)
  return {
    "charge": lambda: ledger.charge([new], Path("/new"), {}),
    "shared": lambda: ledger.shared(OTHER_KEYS),
    "heads": ledger.heads,
    "entries": lambda: ledger.entries("cats"),
    "deliver": lambda: ledger.deliver([], {}),
    "set_cap": lambda: ledger.set_cap("wolves", Cap(1.0, 1e-5)),
  }


EDITS = {
  "a cost": "UPDATE entry SET body = replace(body, '\"1\"', '\"0\"')",
  "a cap": "UPDATE entry SET body = replace(body, '20.0', '40.0')",
  "a name": "UPDATE entry SET body = replace(body, 'pets', 'dogs')",
  "a body of another type": "UPDATE entry SET body = 7 WHERE seq = 2",
  "the first entry": "DELETE FROM entry WHERE seq = 1",
  "one in the middle": "DELETE FROM entry WHERE seq = 3",
  "the last entry": "DELETE FROM entry WHERE seq >= 5",
  "all entries": "DELETE FROM entry",
  "another order": "UPDATE entry SET seq = -seq; UPDATE entry SET seq ="
  " CASE seq WHEN -2 THEN 3 WHEN -3 THEN 2 ELSE -seq END",
  "an entry twice": "INSERT INTO entry SELECT seq + 100, body, digest, keys"
  " FROM entry WHERE seq = 2",
  "one more": "INSERT INTO entry VALUES (99, '{}', '', NULL)",
  "no last": "DELETE FROM last",
  "two last": "INSERT INTO last SELECT * FROM last",
  "no table": "DROP TABLE entry",
  "an empty table": "DROP TABLE last; CREATE TABLE last (seq, digest)",
  "a trigger": "CREATE TRIGGER t AFTER INSERT ON entry BEGIN"
  " DELETE FROM entry; END",
  "its end, by who knows of last": "DELETE FROM entry WHERE seq > 2;"
  " UPDATE last SET seq = 2",
  "somebody's database": "DROP TABLE entry; DROP TABLE last; PRAGMA"
  " user_version = 0; PRAGMA application_id = 0; CREATE TABLE mine (x)",
  "another format": "PRAGMA user_version = 2",
  "another program's": "PRAGMA application_id = 7",
}


def edit_database(path, script):
  with sqlite3.connect(path) as database:
    database.executescript(script)
  database.close()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_stops_every_use_of_every_data_set(path, edit):
  edit_database(path, EDITS[edit])

  for use in uses_of(path).values():
    with pytest.raises(InputError, match=re.escape(str(path))):
      use()


@pytest.mark.parametrize(
  "value", ["NULL", "x'00'", "'text'", "zeroblob(24)", "substr(keys, 1, 8)"]
)
def test_edited_keys_stop_every_use(path, value):
  edit_database(path, f"UPDATE entry SET keys = {value} WHERE keys IS NOT NULL")

  for use in uses_of(path).values():
    with pytest.raises(InputError, match=r"is damaged .keys of entry"):
      use()


def test_keys_beside_an_entry_that_has_none_stop_every_use(path):
  edit_database(path, "UPDATE entry SET keys = x'00' WHERE keys IS NULL")

  for use in uses_of(path).values():
    with pytest.raises(InputError, match=r"is damaged .keys of entry"):
      use()


@pytest.mark.parametrize("command", ["budget --ledger", "inspect"])
def test_commands_that_only_read_refuse_edited_keys(path, command, capsys):
  edit_database(path, "UPDATE entry SET keys = NULL")

  status = main([*command.split(), str(path)])

  said = capsys.readouterr()
  assert status != 0
  assert "keys of entry 3 are not as written" in said.out + said.err


def forge_entry(path, seq, **fields):
  """Edits an entry as somebody would who computes all digests anew."""
  digest = hashlib.sha256(b"oneshot-dp ledger").hexdigest()
  with sqlite3.connect(path) as database:
    rows = database.execute("SELECT seq, body FROM entry ORDER BY seq")
    for number, body in rows.fetchall():
      if number == seq:
        body = json.dumps(json.loads(body) | fields)
      digest = hashlib.sha256(f"{digest}\n{body}".encode()).hexdigest()
      database.execute(
        "UPDATE entry SET body = ?, digest = ? WHERE seq = ?",
        (body, digest, number),
      )
    database.execute("UPDATE last SET digest = ?", (digest,))
  database.close()


FORGERIES = {
  "a cost of 5,000 digits": (2, {"mu2": "1".ljust(5000, "1")}),
  "a cost of 4,000 digits": (2, {"mu2": "9".ljust(4000, "9")}),
  "a cost that is not a number": (2, {"mu2": "1e400"}),
  "a cost over nothing": (2, {"mu2": "1/0"}),
  "a cap without delta": (1, {"delta": None}),
  "a cap of delta 2": (1, {"delta": 2.0}),
  "a cap of a negative epsilon": (1, {"epsilon": -1.0}),
  "a cap of epsilon 1e308": (1, {"epsilon": 1e308}),
}


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("command", ["budget --ledger", "inspect"])
def test_forged_numbers_with_fitting_digests_are_one_line(
  path, forgery, command, capsys
):
  seq, fields = FORGERIES[forgery]
  forge_entry(path, seq, **fields)

  status = main([*command.split(), str(path)])

  said = capsys.readouterr()
  assert status != 0
  assert f"entry {seq} is not as written" in said.out + said.err
  assert "Traceback" not in said.err


def test_an_entry_that_is_forged_soundly_is_read(path):
  """So that the test above fails for its numbers, not for its digests."""
  forge_entry(path, 1, epsilon=19.0)

  assert Ledger(path).entries("pets")[0].epsilon == 19.0


@pytest.mark.slow
def test_flipped_and_cut_bytes_are_found_or_change_nothing(
  sound_ledger, tmp_path
):
  """Free space and SQLite's counters may differ; what is read may not."""

  def read(path):
    return Ledger(path).entries(), Ledger(path).shared(KEYS | OTHER_KEYS)

  as_written = read(sound_ledger)
  path = tmp_path / "ledger.sqlite"
  num_found = 0
  for data in damaged_copies(sound_ledger.read_bytes(), 400):
    path.write_bytes(data)
    path.with_name("ledger.sqlite-journal").unlink(missing_ok=True)
    try:
      contents = read(path)
    except (InputError, RunError) as error:
      assert str(path) in str(error)  # noqa: PT017
      num_found += 1
    else:
      assert contents == as_written
  assert num_found > 100


@pytest.mark.parametrize("data", [b"", b"\0" * 8192, b"no database" * 99])
def test_another_file_is_not_taken_for_a_new_ledger(path, data):
  path.write_bytes(data)

  for use in uses_of(path).values():
    with pytest.raises(InputError, match="is damaged"):
      use()

  assert path.read_bytes() == data


def test_what_is_not_a_file_is_refused_at_once(tmp_path):
  for name, place in odd_files(tmp_path / "odd").items():
    if name != "sparse":
      for use in uses_of(place).values():
        with pytest.raises(InputError, match="cannot be"):
          use()


def test_a_sparse_file_is_damaged(tmp_path):
  sparse = odd_files(tmp_path / "odd")["sparse"]

  with pytest.raises(InputError, match="is damaged"):
    Ledger(sparse).entries()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
  (tmp_path / "file").touch()
  request = make_charge_request(1.0)

  for place in (
    tmp_path / "file" / "ledger",
    Path("/proc/ledger"),
    tmp_path / "x".ljust(300, "x"),
  ):
    with pytest.raises((InputError, RunError)) as refused:
      Ledger(place).charge([request], Path("/run"), {})
    assert str(place) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_ledger_of_write_ahead_logging_is_turned_back(path):
  database = sqlite3.connect(path)
  mode = database.execute("PRAGMA journal_mode = WAL").fetchone()
  assert mode == ("wal",)
  database.close()

  entries = Ledger(path).entries()

  assert len(entries) == 3
  assert path.read_bytes()[18:20] == b"\1\1"  # the format of before
