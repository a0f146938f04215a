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
LEDGER = Path("ledger.sqlite")
PAYING = "train", "sweep", "evaluate", "export", "budget", "audit"


@pytest.mark.slow
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
    signal.alarm(90)
    try:
      if seed < 0:
        usual[line] = result(*run(words)[:2])
      else:
        check(line, words, random.Random(~seed), made, usual[line])
    except BaseException as error:
      how = traceback.TracebackException.from_exception
      found.append((seed, "".join(how(error, capture_locals=True).format())))
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


def check(line, words, draw, made, was):
  """Breaks the line or a thing that it reads, and runs it."""
  file, fits, names = None, False, sorted({*re.findall("{(.*?)}", line)})
  names += [LEDGER.name] * (words[0] in PAYING)
  if draw.random() < 0.45 or words[0] == "demo":
    words = nonsense(words, sorted(os.listdir(made)), draw)
  else:
    others = sorted(p for p in made.rglob("*") if p.is_file())
    file, fits = spoilt(Path(draw.choice(names)), others, draw)
  before, entries = everything_in(Path("..")), Ledger(made / LEDGER).entries()
  is_new = not LEDGER.exists()
  status, said, err = run(words)
  new = everything_in(Path("..")) - before
  assert "Traceback" not in said + err
  if status:
    lines = err.splitlines()
    errors = [x for x in lines if x.startswith("oneshot-dp: error: ")]
    assert status in (1, 2)
    assert errors == lines[-1:]
    if words[0] == "extract":
      new = {name for name in new if INFO_FILE in name}
    assert words[0] == "demo" or not new  # which keeps its caches
    # (An audit that finds a leak was paid for.)
    free = file != LEDGER and words[0] != "audit"
    assert not free or Ledger(LEDGER).entries() == entries
    return
  given = [b for a, b in itertools.pairwise(words) if a == "--ledger"]
  for place in (Path("..", name) for name in new):
    if place.name in ("head.safetensors", INFO_FILE):  # as it says, and paid
      own = [p / LEDGER for p in place.parents if words[0] == "demo"]
      book = next(filter(Path.exists, own), Path(*given[-1:] or [LEDGER]))
      verify = ["verify", str(place.parent), "--ledger", str(book)]
      assert run(verify)[0] == 0
  if file == LEDGER:
    assert is_new or Ledger(LEDGER).entries()[: len(entries)] == entries
  elif file and not same(file, made / file):
    assert not believed(words, file, fits, was, result(status, said))


def same(file, was):
  """Whether a file says what it said."""
  if not file.is_file() or file.stat().st_size > 2 * was.stat().st_size:
    return False
  here, there = file.read_bytes(), was.read_bytes()
  with contextlib.suppress(InputError, ValueError):
    if file.name == INFO_FILE:  # what is left out is what it was without
      return CacheInfo.from_json(here, "") == CacheInfo.from_json(there, "")
    if file.suffix == ".json":
      return json.loads(here) == json.loads(there)
  return here == there


def believed(words, file, fits, was, now):
  """Whether a command took for right what it can know to be wrong."""
  name, kind = file.name, file.suffix
  if kind == ".npz":
    return not fits and now != was
  if kind in (".tar", ".parquet") and isinstance(now, list):
    rows = [sum(len(block["label"]) for block in of) for of in (now, was)]
    return rows[0] != rows[1]
  if name in ("features.json", "dataset_info.json"):
    return words[0] in ("verify", "inspect")
  if name == "weights.safetensors":
    return words[0] in ("predict", "export")
  of_head = kind == ".safetensors" or name in ("receipt.json", "README.md")
  if of_head and (words[0] == "verify" or "--from" in words):
    return True  # fitted or not: the ledger knows them
  of_cache = name == INFO_FILE or ".array_record-" in name
  return not fits and (of_head or of_cache)
