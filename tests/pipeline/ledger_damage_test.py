"""A ledger that is not as it was written lets nothing out of any data set."""

import re
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.ledger.entries import Cap, ReleasedHead
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.faults.harness import damaged_copies, odd_files
from tests.pipeline.sample_heads import bill_of

KEYS = {"image": np.array([1, 2, 3], np.uint64)}
OTHERS = {"image": np.array([8, 9], np.uint64)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Two data sets, a cap, what left; another than the usual place."""
  path = tmp_path_factory.mktemp("whole") / "ledger.sqlite"
  ledger = Ledger(path)
  ledger.set_cap("pets", Cap(20.0, 1e-5))
  ids = ledger.charge([bill_of(1.0)], Path("/a"), {"epsilon": 1})
  ledger.deliver(ids, {"a" * 64: ReleasedHead(ids[0], "b" * 64)})
  ledger.charge(
    [bill_of(1.0, dataset="cats", keys=OTHERS)], Path("/b"), {"epsilon": 2}
  )
  return path


@pytest.fixture
def path(whole, tmp_path):
  return Path(shutil.copy(whole, tmp_path / "ledger.sqlite"))


def uses(path):
  """All that reads it, of another data set than was edited."""
  ledger = Ledger(path, wait=0.05)
  rows = {"image": np.array([50], np.uint64)}
  new = bill_of(1.0, dataset="wolves", keys=rows)
  return {
    "charge": lambda: ledger.charge([new], Path("/new"), {}),
    "shared": lambda: ledger.shared(OTHERS),
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


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_stops_every_data_set(path, edit):
  with sqlite3.connect(path) as db:
    db.executescript(EDITS[edit])
  db.close()
  for use in uses(path).values():
    with pytest.raises(InputError, match=re.escape(str(path))):
      use()


@pytest.mark.parametrize(
  "value", ["NULL", "x'00'", "'text'", "zeroblob(24)", "substr(keys, 1, 8)"]
)
def test_edited_keys_stop_who_asks_for_rows(path, value):
  with sqlite3.connect(path) as db:
    db.execute(f"UPDATE entry SET keys = {value} WHERE keys IS NOT NULL")
  db.close()
  for name in "charge", "shared":
    with pytest.raises(InputError, match=r"is damaged .keys of entry"):
      uses(path)[name]()


def test_flips_and_cuts_are_found_or_change_nothing(whole, tmp_path):
  """Free space and SQLite's counters may differ; what is read may not."""
  as_written = Ledger(whole).entries(), Ledger(whole).shared(KEYS | OTHERS)
  path, found = tmp_path / "ledger.sqlite", 0
  for data in damaged_copies(whole.read_bytes(), 400):
    path.write_bytes(data)
    path.with_name("ledger.sqlite-journal").unlink(missing_ok=True)
    try:
      read = Ledger(path).entries(), Ledger(path).shared(KEYS | OTHERS)
    except (InputError, RunError) as error:
      read, found = as_written, found + (str(path) in str(error))
    assert read == as_written
  assert found > 100


@pytest.mark.parametrize("data", [b"", b"\0" * 8192, b"no database" * 99])
def test_what_is_no_ledger_is_no_new_ledger(path, data):
  path.write_bytes(data)
  for use in uses(path).values():
    with pytest.raises(InputError, match="is damaged"):
      use()
  assert path.read_bytes() == data


def test_what_is_no_file_is_refused_at_once(tmp_path):
  for name, place in odd_files(tmp_path / "odd").items():
    if name != "sparse":
      for use in uses(place).values():
        with pytest.raises(InputError, match="cannot be"):
          use()
  with pytest.raises(InputError, match="is damaged"):
    Ledger(tmp_path / "odd" / "sparse").entries()


def test_a_place_that_cannot_be_is_one_line(tmp_path):
  (tmp_path / "file").touch()
  new = bill_of(1.0)
  for place in tmp_path / "file" / "ledger", Path("/proc/ledger"):
    with pytest.raises((InputError, RunError), match=str(place)):
      Ledger(place).charge([new], Path("/run"), {})
  with pytest.raises(InputError, match="no place on a disk"):
    Ledger(Path("s3://bucket/ledger"))
  with pytest.raises((InputError, RunError)):
    Ledger(tmp_path / ("x" * 300)).charge([new], Path("/run"), {})


def test_a_ledger_of_write_ahead_logging_is_turned_back(path):
  db = sqlite3.connect(path)
  assert db.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
  db.close()
  before = Ledger(path).entries()
  assert len(before) == 3
  assert path.read_bytes()[18:20] == b"\1\1"  # the format of before
