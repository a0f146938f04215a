"""Whatever is typed, and whatever is damaged: one line, or what is right.

ONESHOT_DP_INPUTS=5000 pytest tests/faults/bad_inputs_test.py is the long form.
"""

import contextlib
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.format import INFO_FILE, CacheInfo
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.faults.bad_inputs import LINES, Spoilt, make, nonsense, spoil
from tests.faults.harness import everything_in

INPUTS = int(os.environ.get("ONESHOT_DP_INPUTS", "200"))
LEDGER = Path("ledger.sqlite")
PAYING = ("train", "sweep", "evaluate", "export", "budget", "audit")


class Ended(NamedTuple):
  """How a command ended, and what it said."""

  status: int
  out: str
  err: str


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """One of each thing that commands read."""
  folder = tmp_path_factory.mktemp("made")
  with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
    patch.setenv("ONESHOT_DP_LEDGER", str(LEDGER))
    make(folder)
  return folder


@pytest.fixture
def in_copies(tmp_path, monkeypatch, made):
  """A context for each line: a new folder, with copies of what it reads."""
  monkeypatch.setenv("ONESHOT_DP_LEDGER", str(LEDGER))
  signal.signal(signal.SIGALRM, signal.default_int_handler)

  @contextlib.contextmanager
  def copies(line):
    work = tmp_path / "in" / "work"
    work.mkdir(parents=True)
    signal.alarm(600)  # a hang; a busy machine may take long
    with contextlib.chdir(work):
      for name in {*names_in(line), LEDGER.name}:
        copy = shutil.copytree if (made / name).is_dir() else shutil.copy
        copy(made / name, name)
      yield re.sub("[{}]", "", line).split()
    signal.alarm(0)
    shutil.rmtree(tmp_path / "in")

  return copies


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.* so K = 4 is taken from the labels")
def test_bad_inputs_are_one_line_or_change_nothing(made, in_copies):
  usual = {}
  for line in LINES:
    with in_copies(line) as words:
      usual[line] = result_of(run(words))

  faults = []
  for seed in range(INPUTS):
    line = random.Random(seed).choice(LINES)
    if line.startswith("demo") and INPUTS < 1000:  # takes long
      continue
    with in_copies(line) as words:
      try:
        check_broken(line, words, random.Random(~seed), made, usual[line])
      except BaseException as error:
        how = traceback.TracebackException.from_exception
        lines = how(error, capture_locals=True).format()
        faults.append((seed, "".join(lines)))

  assert faults == []


def names_in(line: str) -> set[str]:
  """The things that a line reads."""
  return set(re.findall("{(.*?)}", line))


def run(words: list[str]) -> Ended:
  """Runs a command in this process."""
  out = io.StringIO()
  err = io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      status = main(words)
    except SystemExit as stop:  # --help
      status = stop.code or 0
  return Ended(int(status), out.getvalue(), err.getvalue())


def result_of(ended: Ended) -> Any:
  """What must be equal, of equal files: all but what noise is in."""
  if ended.status or "±" in ended.out:
    return ended.status
  if Path("out", INFO_FILE).is_file():
    rows = []
    for block in open_cache("out").blocks():
      rows.append({name: column.tolist() for name, column in block.items()})
    return rows
  if Path("out.csv").is_file():
    return Path("out.csv").read_text()
  if Path("out").exists():
    return None
  return ended.out


def check_broken(
  line: str, words: list[str], draw: random.Random, made: Path, usual: Any
) -> None:
  """Breaks the line, or a thing that it reads, and runs it."""
  spoilt = None
  if draw.random() < 0.45 or words[0] == "demo":
    words = nonsense(words, sorted(os.listdir(made)), draw)
  else:
    names = sorted(names_in(line))
    if words[0] in PAYING:
      names.append(LEDGER.name)
    others = sorted(path for path in made.rglob("*") if path.is_file())
    spoilt = spoil(Path(draw.choice(names)), others, draw)
  before = everything_in(Path(".."))
  entries = Ledger(made / LEDGER).entries()
  ledger_is_new = not LEDGER.exists()

  ended = run(words)

  new = everything_in(Path("..")) - before
  assert "Traceback" not in ended.out + ended.err
  file = spoilt.file if spoilt else None
  if ended.status:
    check_refusal(ended, words, new, file, entries)
    return
  check_heads_and_caches(words, new)
  if file == LEDGER:
    assert ledger_is_new or Ledger(LEDGER).entries()[: len(entries)] == entries
  elif spoilt and not is_same(spoilt.file, made / spoilt.file):
    assert not is_believed_wrongly(words, spoilt, usual, result_of(ended))


def check_refusal(
  ended: Ended, words: list[str], new: set[str], file: Path | None, entries: Any
) -> None:
  """One line says why; nothing new lies about, and nothing was charged."""
  lines = ended.err.splitlines()
  errors = [text for text in lines if text.startswith("oneshot-dp: error: ")]
  assert ended.status in (1, 2)
  assert errors == lines[-1:]
  if words[0] == "extract":  # which keeps shards for when it is run again
    new = {name for name in new if INFO_FILE in name}
  # An audit that says that a leak was found, as up to one of a sound head in
  # twenty does, was paid for: where the ledger was lost, by a new one.
  if words[0] == "audit" and ended.status == 1:
    new = {name for name in new if LEDGER.name not in name}
  if words[0] != "demo":  # which keeps its caches
    assert not new
  if file != LEDGER and words[0] != "audit":
    assert Ledger(LEDGER).entries() == entries


def check_heads_and_caches(words: list[str], new: set[str]) -> None:
  """What a command made is as it says, and paid for, as `verify` finds."""
  given = []
  for flag, value in itertools.pairwise(words):
    if flag == "--ledger":
      given.append(value)
  ledger = Path(given[-1] if given else LEDGER)
  for name in new:
    place = Path("..", name)
    if place.name not in ("head.safetensors", INFO_FILE):
      continue
    book = ledger
    if words[0] == "demo":  # whose ledger lies in its folder
      own = [parent / LEDGER for parent in place.parents]
      book = next(filter(Path.exists, own), ledger)
    verify = ["verify", str(place.parent), "--ledger", str(book)]
    assert run(verify).status == 0


def is_same(file: Path, original: Path) -> bool:
  """Whether a file says what it said."""
  if not file.is_file() or file.stat().st_size > 2 * original.stat().st_size:
    return False
  now = file.read_bytes()
  before = original.read_bytes()
  with contextlib.suppress(InputError, ValueError):
    if file.name == INFO_FILE:  # what is left out is what it was without
      return CacheInfo.from_json(now, "") == CacheInfo.from_json(before, "")
    if file.suffix == ".json":
      return json.loads(now) == json.loads(before)
  return now == before


def is_believed_wrongly(
  words: list[str], spoilt: Spoilt, usual: Any, result: Any
) -> bool:
  """Whether a command took for right what it can know to be wrong."""
  name = spoilt.file.name
  kind = spoilt.file.suffix
  if kind == ".npz":
    return not spoilt.fits and result != usual
  if "hive" in spoilt.file.parts[0] and isinstance(result, list):
    # A file that is gone is not missed; rows of those that are there are.
    return count_rows(result) != rows_in(Path(spoilt.file.parts[0]))
  if kind in (".tar", ".parquet") and isinstance(result, list):
    return count_rows(result) != count_rows(usual)
  if name in ("features.json", "dataset_info.json"):
    return words[0] in ("verify", "inspect")
  if name == "weights.safetensors":
    return words[0] in ("predict", "export")
  if name == "README.md":  # its owner may edit it: `verify` says so
    return words[0] == "verify" and "README.md is not as" not in str(result)
  of_head = kind == ".safetensors" or name == "receipt.json"
  if of_head and (words[0] == "verify" or "--from" in words):
    return True  # fitted or not: the ledger knows them
  of_cache = name == INFO_FILE or ".array_record-" in name
  return not spoilt.fits and (of_head or of_cache)


def rows_in(folder: Path) -> int:
  """Rows of all Parquet files of a folder."""
  total = 0
  for file in folder.rglob("*.parquet"):
    if file.is_file():  # one that is spoilt may be a folder
      total += pq.read_metadata(file).num_rows
  return total


def count_rows(blocks: list[dict[str, list]]) -> int:
  return sum(len(block["label"]) for block in blocks)
