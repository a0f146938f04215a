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

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.format import INFO_FILE, CacheInfo
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.faults.bad_inputs import LINES, make, nonsense, spoilt
from tests.faults.harness import everything_in

INPUTS = int(os.environ.get("ONESHOT_DP_INPUTS", "200"))
SECONDS = 90
LEDGER = Path("ledger.sqlite")
PAYING = "train", "sweep", "evaluate", "export", "budget", "audit"


@pytest.mark.filterwarnings("ignore:.* so K = 4 is taken from the labels")
def test_bad_inputs_are_one_line_or_change_nothing(tmp_path, monkeypatch):
  monkeypatch.setenv("ONESHOT_DP_LEDGER", str(LEDGER))
  (made := tmp_path / "made").mkdir()
  monkeypatch.chdir(made)
  make(made)
  usual, found = {}, []
  signal.signal(signal.SIGALRM, signal.default_int_handler)
  for seed in range(-len(LINES), INPUTS):
    line = random.Random(seed).choice(LINES) if seed >= 0 else LINES[seed]
    if line.startswith("demo") and seed >= 0 and INPUTS < 1000:  # takes long
      continue
    work = tmp_path / "in" / "work"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    words = copied(line, made)
    signal.alarm(SECONDS)
    try:
      if seed < 0:
        usual[line] = result(*run(words)[:2])
      else:
        said = faults_of(line, words, random.Random(~seed), made, usual[line])
        found += [(seed, fault) for fault in said]
    except BaseException:
      found.append((seed, traceback.format_exc()))
    signal.alarm(0)
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path / "in")
  assert found == []


def copied(line, made):
  """The words of a line, whose things, and the ledger, are copied to here."""
  for name in {*re.findall("{(.*?)}", line), LEDGER.name}:
    copy = shutil.copytree if (made / name).is_dir() else shutil.copy
    copy(made / name, name)
  return re.sub("[{}]", "", line).split()


def run(words):
  """Status, standard output and error of a command in this process."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      status = main(words)
    except SystemExit as stop:  # --help
      status = stop.code or 0
  return status, out.getvalue(), err.getvalue()


def result(status, said):
  """What must be equal, of equal files: all but what noise is in."""
  if status or "±" in said:
    return status
  if Path("out", INFO_FILE).is_file():
    blocks = open_cache("out").blocks()
    return [{name: c.tolist() for name, c in rows.items()} for rows in blocks]
  if Path("out.csv").is_file():
    return Path("out.csv").read_text()
  return said if not Path("out").exists() else None


def faults_of(line, words, draw, made, was):
  """Breaks the line or a thing that it reads, runs it: all that is wrong."""
  file, fits, names = None, False, sorted({*re.findall("{(.*?)}", line)})
  names += [LEDGER.name] * (words[0] in PAYING)
  if draw.random() < 0.45 or words[0] == "demo":
    words = nonsense(words, sorted(os.listdir(made)), draw)
  else:
    others = sorted(p for p in made.rglob("*") if p.is_file())
    file, fits = spoilt(Path(draw.choice(names)), others, draw)
  what = f"{words} {file} {fits}"
  before, entries = everything_in(Path("..")), Ledger(made / LEDGER).entries()
  is_new = not LEDGER.exists()
  status, said, err = run(words)
  new = everything_in(Path("..")) - before
  if "Traceback" in said + err:
    yield what, "a traceback"
  if status:
    lines = err.splitlines()
    errors = [x for x in lines if x.startswith("oneshot-dp: error: ")]
    if status not in (1, 2) or errors != lines[-1:]:
      yield what, status, err
    left = {n for n in new if words[0] != "extract" or INFO_FILE in n}
    if left and words[0] != "demo":  # which keeps its caches
      yield what, left
    # (An audit that finds a leak was paid for.)
    free = file != LEDGER and words[0] != "audit"
    if free and Ledger(LEDGER).entries() != entries:
      yield what, "charged, and failed"
    return
  given = [b for a, b in itertools.pairwise(words) if a == "--ledger"]
  for place in Path("..").rglob("*"):
    own = [p / LEDGER for p in place.parents if words[0] == "demo"]
    book = next((p for p in own if p.exists()), Path(*given[-1:] or [LEDGER]))
    names = {
      str(place.relative_to("..") / x) for x in ("head.safetensors", INFO_FILE)
    }
    if names & new and run(["verify", str(place), "--ledger", str(book)])[0]:
      yield what, place, "is not what it says, or was not paid"
  if file == LEDGER:
    right = is_new or Ledger(LEDGER).entries()[: len(entries)] == entries
  else:
    right = not file or same(file, made / file)
    now = result(status, said)
    right = right or not believed(words, file, fits, was, now)
  if not right:
    yield what, "believed"


def same(file, was):
  """Whether a file says what it said."""
  if not file.is_file() or file.stat().st_size > 2 * was.stat().st_size:
    return False
  if file.name == INFO_FILE:  # what is left out is what it was without
    with contextlib.suppress(InputError):
      here, there = file.read_bytes(), was.read_bytes()
      return CacheInfo.from_json(here, "") == CacheInfo.from_json(there, "")
  elif file.suffix == ".json":
    with contextlib.suppress(ValueError):
      return json.loads(file.read_bytes()) == json.loads(was.read_bytes())
  return file.read_bytes() == was.read_bytes()


def believed(words, file, fits, was, now):
  """Whether a command took for right what it can know to be wrong."""
  if file.suffix == ".npz":
    return not fits and now != was
  if file.suffix in (".tar", ".parquet") and isinstance(now, list):
    return sum(len(b["label"]) for b in now) != sum(
      len(b["label"]) for b in was
    )
  if file.name in ("features.json", "dataset_info.json"):
    return words[0] in ("verify", "inspect")
  if file.name == "weights.safetensors":
    return words[0] in ("predict", "export")
  of_head = file.suffix == ".safetensors"
  of_head |= file.name in ("receipt.json", "README.md")
  if of_head and (words[0] == "verify" or "--from" in words):
    return True  # fitted or not: the ledger knows them
  of_cache = file.name == INFO_FILE or ".array_record-" in file.name
  return not fits and (of_head or of_cache)
