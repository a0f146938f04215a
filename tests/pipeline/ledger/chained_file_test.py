"""The file under the ledger: kills, tampering, modes."""

import errno
import functools
import json
import os
import pathlib
import stat
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.ledger import chained_file
from oneshot_dp.pipeline.ledger.chained_file import ChainedFile
from tests.pipeline import crashing
from tests.pipeline.command_line import ROOT
from tests.pipeline.small_disk import files_no_larger_than
from tests.syncs import noted_syncs

ZEROS = "0" * 64


def file_in(folder: pathlib.Path) -> ChainedFile:
  return ChainedFile(folder / crashing.NAME, crashing.IDENTITY)


def append(file: ChainedFile, name: str) -> str:
  with file.locked() as chain:
    return chain.append({"name": name})


def names(file: ChainedFile) -> list[str]:
  return [entry["name"] for entry in file.entries()]


@pytest.fixture
def three(tmp_path) -> ChainedFile:
  """Two entries under one lock, and a third."""
  file = file_in(tmp_path / "ledgers")
  with file.locked() as chain:
    chain.append({"name": "a"})
    chain.append({"name": "b"})
    assert [e["name"] for e in chain.entries] == ["a", "b"]
  append(file, "c")
  return file


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("crashes")
  subprocess.run(
    [sys.executable, crashing.__file__, str(folder)],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    check=True,
    timeout=100,
  )
  return folder


def lines_of(file: ChainedFile) -> list[bytes]:
  return file.path.read_bytes().splitlines(keepends=True)


def refuses(file: ChainedFile, message: str) -> None:
  """Readers and writers both, and nothing is mended on the way."""
  before = file.path.read_bytes() if file.path.exists() else b""
  with pytest.raises(InputError, match=message):
    file.entries()
  with pytest.raises(InputError, match=message):
    append(file, "more")
  assert file.path.read_bytes() == before


class TestChain:
  def test_numbers_that_json_has_no_word_for(self, tmp_path):
    """Python reads what it wrote, in a new process, too."""
    entry = {"least": float("-inf"), "most": float("inf"), "seed": 2**200}
    file = file_in(tmp_path)
    with file.locked() as chain:
      chain.append(entry)
    chained_file._checked.clear()
    (found,) = file.entries()
    assert entry.items() <= found.items()

  def test_each_line_names_the_one_before(self, three):
    entries = [json.loads(line) for line in lines_of(three)]
    assert entries == three.entries()
    assert [e["previous"] for e in entries] == (
      [ZEROS] + [e["entry"] for e in entries[:-1]]
    )
    head = {"count": 3, "entry": entries[-1]["entry"]}
    assert json.loads(three.head_path.read_bytes()) == head

  def test_a_name_cannot_be_found_by_trying_what_is_in_the_entry(
    self, tmp_path
  ):
    found = [append(file_in(tmp_path / folder), "a") for folder in "xy"]
    assert found[0] != found[1]
    (entry,) = file_in(tmp_path / "x").entries()
    assert entry["entry"] == found[0]
    assert len(bytes.fromhex(entry["nonce"])) == 32

  def test_nothing_yet(self, tmp_path):
    assert file_in(tmp_path / "ledgers").entries() == []
    assert not list(tmp_path.iterdir())

  def test_only_its_owner_may_read_it(self, tmp_path):
    before = os.umask(0)
    try:
      file = file_in(tmp_path / "ledgers")
      append(file, "a")
    finally:
      os.umask(before)
    folder, *files = sorted(tmp_path.rglob("*"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [p.name for p in files] == ["pets.jsonl", "pets.jsonl.head"]
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}

  @pytest.mark.parametrize("late", [False, True], ids=["append", "late head"])
  def test_the_line_is_on_the_disk_before_the_head(
    self, three, monkeypatch, late
  ):
    if late:  # as a kill between the two leaves it: the line may not be synced
      head = three.head_path.read_bytes()
      append(three, "d")
      three.head_path.write_bytes(head)
    synced = noted_syncs(monkeypatch)
    if late:
      with three.locked():
        pass
    else:
      append(three, "d")
    written = ["pets.jsonl", "pets.jsonl.head.tmp", "replace", "ledgers"]
    # The name of the file is on the disk before any line is.
    assert synced == (written if late else ["ledgers", *written])

  def test_what_fails_after_the_line_is_there_takes_nothing_back(
    self, three, monkeypatch
  ):
    """A charge that stays, without its release, would be budget for nothing."""
    real = {name: getattr(os, name) for name in ("fsync", "close")}

    def fails_later(name: str, descriptor: int) -> None:
      real[name](descriptor)
      if (
        len(lines_of(three)) == 4
        and json.loads(three.head_path.read_bytes())["count"] == 4
      ):
        raise OSError(errno.EIO, "Input/output error")

    for name in real:
      monkeypatch.setattr(os, name, functools.partial(fails_later, name))
    append(three, "d")
    monkeypatch.undo()
    assert names(three) == ["a", "b", "c", "d"]

  def test_a_reader_waits_for_a_writer(self, three):
    """Between line and head, the two do not fit each other."""
    reader = (
      "import sys; from tests.pipeline.ledger.chained_file_test import *;"
      "print('ready', flush=True);"
      "print(*names(file_in(pathlib.Path(sys.argv[1]))))"
    )
    with three.locked() as chain:
      process = subprocess.Popen(
        [sys.executable, "-c", reader, str(three.path.parent)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
      )
      assert process.stdout is not None
      assert process.stdout.readline() == "ready\n"
      for i in range(10):
        chain.append({"name": str(i)})
    out, _ = process.communicate(timeout=60)
    assert out.split() == ["a", "b", "c", *map(str, range(10))]


@pytest.mark.slow
class TestKills:
  def test_no_state_loses_a_line_or_cries_wolf(self, states):
    found = json.loads((states / "states.json").read_text())
    for folder, expected in found.items():
      file = file_in(states / folder)
      seen = names(file)
      # What returned is there, in order; what was begun may be.
      assert seen[: len(expected["returned"])] == expected["returned"], folder
      assert seen == [n for n in expected["begun"] if n in seen], folder
      append(file, "after")
      assert names(file) == [*seen, "after"], folder
      left = {p.name for p in file.path.parent.iterdir()} - {"steps.json"}
      assert left == {"pets.jsonl", "pets.jsonl.head"}, folder
    assert len(found) > 150

  def test_every_step_was_killed(self, states):
    """And so the table in the module is complete."""
    head = ["open", "half a write", "write", "fsync", "replace", "fsync"]
    line = ["half a write", "write", "fsync"]
    assert crashing.steps(states / "base-2") == ["open", "fsync", *line, *head]
    singles = [p.name for p in states.glob("2-*") if p.name.count("-") == 1]
    assert len(singles) == 11
    charged = ["killed first" in names(file_in(states / n)) for n in singles]
    assert set(charged) == {True, False}

  @pytest.mark.parametrize("cut", [1, 40, 10**6])
  def test_a_torn_line_is_cut_off(self, three, cut):
    head, whole = three.head_path.read_bytes(), three.path.read_bytes()
    append(three, "d" * 500)  # more than what will be written over it
    fourth = three.path.read_bytes()[len(whole) :]
    torn = fourth[: max(1, len(fourth) - cut)]
    three.path.write_bytes(whole + torn)
    three.head_path.write_bytes(head)
    assert names(three) == ["a", "b", "c"]
    append(three, "e")
    assert three.path.read_bytes().startswith(whole + b"{")
    assert three.path.read_bytes().endswith(b"}\n")
    assert names(three) == ["a", "b", "c", "e"]

  def test_a_full_disk_after_the_line_takes_it_back(self, three, monkeypatch):
    def full(*args):
      raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
      context.setattr(os, "replace", full)
      with pytest.raises(RunError, match=r"cannot be written \(No") as caught:
        append(three, "d")
    # Another place would be a ledger in which nothing is spent.
    said = "mend the disk or the permissions, then run the same command again."
    assert str(caught.value).endswith(said)
    assert "--ledger-dir" not in str(caught.value)
    assert names(three) == ["a", "b", "c"]
    append(three, "e")
    assert names(three) == ["a", "b", "c", "e"]

  @pytest.mark.parametrize("room", [0, 97, 485, 1067])
  def test_a_disk_with_little_room(self, three, room):
    try:
      with files_no_larger_than(room):
        append(three, "d")
      expected = {("a", "b", "c", "d")}
    except RunError:
      expected = {("a", "b", "c"), ("a", "b", "c", "d")}
    assert tuple(names(three)) in expected
    append(three, "e")
    assert names(three)[-1] == "e"


class TestTampering:
  @pytest.mark.parametrize(
    ("order", "line"),
    [
      ((1, 0, 2), 1),
      ((0, 2), 2),
      ((0, 0, 1, 2), 2),
      ((0, 1, 2, 1), 4),
    ],
    ids=["swap", "drop", "repeat", "replay"],
  )
  def test_lines_moved_dropped_or_repeated(self, three, order, line):
    lines = lines_of(three)
    three.path.write_bytes(b"".join(lines[i] for i in order))
    refuses(three, f"line {line}: .*damaged or edited; restore")

  def test_the_file_is_gone(self, three):
    three.path.unlink()
    with pytest.raises(InputError, match="3 of 3 entries are missing"):
      three.entries()
    with pytest.raises(InputError, match="3 of 3 entries are missing"):
      append(three, "more")

  @pytest.mark.parametrize("kept", [1, 3])
  def test_the_head_is_gone(self, three, kept):
    three.path.write_bytes(b"".join(lines_of(three)[:kept]))
    three.head_path.unlink()
    refuses(three, r"its pets.jsonl.head is missing")

  def test_an_older_head(self, three):
    """One line behind is a kill, two cannot be."""
    older = three.head_path.read_bytes()
    append(three, "d")
    append(three, "e")
    three.head_path.write_bytes(older)
    refuses(three, "its 5 entries are not those that pets.jsonl.head is about")

  def test_a_line_was_replaced_by_another_that_fits(self, three):
    """The last line again, with a name and a digest of its own."""
    head, lines = three.head_path.read_bytes(), lines_of(three)
    three.path.write_bytes(b"".join(lines[:2]))
    two = {"count": 2, "entry": json.loads(lines[1])["entry"]}
    three.head_path.write_text(json.dumps(two))
    append(three, "forged")
    assert len(three.entries()) == 3
    three.head_path.write_bytes(head)
    refuses(three, "its 3 entries are not those")

  @pytest.mark.parametrize(
    "head",
    [
      *(b"", b"[]", b"{}", b'{"count":"3","entry":"x"}', b"\xff"),
      *(b'{"count":-1}', b"[" * 50_000),
    ],
  )
  def test_a_head_that_is_none(self, three, head):
    three.head_path.write_bytes(head)
    refuses(three, "its pets.jsonl.head was damaged or edited")

  def test_a_line_of_other_data(self, three):
    other = ChainedFile(three.path, {"dataset": "dogs"})
    refuses(other, "line 1")

  @pytest.mark.parametrize(
    "line", [b"", b"[]", b"3", b"null", b"{}", b"\xff", b"[" * 50_000]
  )
  def test_lines_that_are_no_entries(self, three, line):
    with three.path.open("ab") as file:
      file.write(line + b"\n")
    refuses(three, "line 4: the entry was damaged or edited")

  @hypothesis.given(st.data())
  @hypothesis.settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
  )
  def test_any_byte_of_the_two_files_that_changes_a_fact(self, three, data):
    path = data.draw(st.sampled_from([three.path, three.head_path]))
    content, entries = path.read_bytes(), three.entries()
    position = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255))
    path.write_bytes(
      content[:position] + bytes([byte]) + content[position + 1 :]
    )
    try:
      assert three.entries() == entries
    except InputError:
      pass
    finally:
      path.write_bytes(content)

  @hypothesis.given(st.data())
  @hypothesis.settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
  )
  def test_any_truncation(self, three, data):
    content = three.path.read_bytes()
    first, second, _ = map(len, lines_of(three))
    anywhere = data.draw(st.integers(0, len(content) - 1))
    size = data.draw(st.sampled_from([anywhere, first, first + second]))
    left = content[:size].count(b"\n")
    three.path.write_bytes(content[:size])
    try:
      refuses(three, f": {3 - left} of 3 entries are missing from its end")
    finally:
      three.path.write_bytes(content)
