"""Files that may not be read, and standard output that takes nothing."""

import contextlib
import ctypes
import io
import os
import pathlib
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator

import pytest

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.ledger import Ledger

TRAIN = "train --cache {}/cache --epsilon 1 --delta 1e-5 --head lamb"
INTO = f"{TRAIN} --out {{}}/out --ledger-dir {{}}/ledgers"
DENIED = "Permission denied"


@contextlib.contextmanager
def modes_hold() -> Iterator[None]:
  """Whoever runs the tests is held to modes; root, too."""
  libc = ctypes.CDLL(None)
  header = (ctypes.c_uint32 * 2)(0x20080522, 0)
  before = (ctypes.c_uint32 * 6)()
  assert libc.capget(header, before) == 0
  without = (ctypes.c_uint32 * 6)(*before)
  without[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
  assert libc.capset(header, without) == 0
  try:
    yield
  finally:
    assert libc.capset(header, before) == 0


@pytest.fixture(scope="module")
def sound(tmp_path_factory, train_cache) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("places")
  shutil.copytree(train_cache.path, folder / "cache")
  line = f"{TRAIN} --out {{}}/head --ledger-dir {{}}/ledgers"
  assert main(line.replace("{}", str(folder)).split()) == 0
  (folder / "shut").mkdir()
  return folder


@pytest.mark.parametrize(
  ("name", "line", "said"),
  [
    ("cache", "inspect {}/cache", DENIED),
    ("cache/cache_info.json", "inspect {}/cache", "json: cannot be read: "),
    ("cache/shards.json", "inspect {}/cache", "json: cannot be read: "),
    ("cache/*.array_record*", "verify {}/cache", DENIED),
    ("cache/*.array_record*", INTO, DENIED),
    ("cache/*content_keys*", INTO, DENIED),
    ("head", "verify {}/head", DENIED),
    ("head/head.safetensors", "verify {}/head", "tensors cannot be read: "),
    ("head/receipt.json", "verify {}/head", "receipt.json cannot be read: "),
    ("head/README.md", "verify {}/head", "README.md cannot be read: "),
    ("ledgers", INTO, DENIED),
    ("ledgers/*.jsonl", INTO, "nothing is released, nor charged"),
    ("ledgers/*.jsonl", "budget --cache {}/cache", "cannot be read: "),
    ("ledgers/*.head", INTO, "nothing is released, nor charged"),
    ("shut", INTO.replace("{}/out", "{}/shut/out"), "no place for results"),
    ("shut", "report {}/shut/run", DENIED),
  ],
)
def test_what_may_not_be_read(sound, capsys, name, line, said):
  """A line says so; nothing is called damaged, or charged."""
  words = line.replace("{}", str(sound)).split()
  if words[0] in ("budget", "verify") and "/cache" not in line[:9]:
    words += ["--ledger-dir", str(sound / "ledgers")]
  if words[:2] == ["verify", f"{sound}/cache"]:
    words = words[:2]
  file, *_ = sorted(sound.glob(name))
  mode = stat.S_IMODE(file.stat().st_mode)
  file.chmod(0)
  try:
    with modes_hold():
      assert main(words) in (1, 2)
  finally:
    file.chmod(mode)
  err = capsys.readouterr().err
  assert said in err
  assert DENIED in err
  assert "damaged" not in err
  assert "changed" not in err
  assert len(Ledger("pets", sound / "ledgers").entries()) == 1
  assert not (sound / "out").exists()
  assert not list(sound.glob(".*.unfinished"))


@pytest.mark.parametrize("out", ["/", "//", ".", "..", ""])
@pytest.mark.parametrize(
  "line", ["train --cache {}/cache --epsilon 1 --delta 1e-5", "predict {} {}"]
)
def test_what_has_no_name_of_its_own(sound, tmp_path, monkeypatch, out, line):
  """Nothing can be renamed to it, which is said before any charge."""
  (tmp_path / "empty").mkdir()
  monkeypatch.chdir(tmp_path / "empty")
  words = line.replace("{}", str(sound)).split()
  ledgers = tmp_path / "ledgers"
  assert main([*words, "--ledger-dir", str(ledgers), "--out", out]) == 2
  assert not ledgers.exists()


def test_a_full_disk_takes_the_answer(sound, capsys, monkeypatch):
  with open("/dev/full", "w") as full:
    monkeypatch.setattr(sys, "stdout", full)
    assert main(["inspect", str(sound / "cache")]) == 1
    monkeypatch.undo()
    with contextlib.suppress(OSError):
      full.close()
  assert capsys.readouterr().err == (
    "oneshot-dp: error: all is done, but standard output cannot be written: No"
    " space left on device.\n"
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "ends"),
  [("cache", (0, "")), ("x\n", (2, "oneshot-dp: error: a word of the"))],
)
def test_standard_output_may_be_closed(sound, name, ends):
  """And no file is opened in its place: what a library prints is gone."""
  program = (
    "import os, sys\n"
    "from oneshot_dp.pipeline.cli import main\n"
    "status = main(sys.argv[1:])\n"
    "assert os.path.samefile('/dev/fd/1', os.devnull)\n"
    "sys.exit(status)\n"
  )
  words = [sys.executable, "-c", program, "inspect"]
  done = subprocess.run(
    ["sh", "-c", 'exec "$@" <&- >&-', "sh", *words, str(sound / name)],
    capture_output=True,
    text=True,
    check=False,
  )
  assert (done.returncode, done.stderr[:32]) == ends


def test_a_locale_without_the_signs(monkeypatch):
  """What is charged and written is told all the same, in escapes."""
  out = io.BytesIO()
  said = io.TextIOWrapper(out, encoding="ascii")
  monkeypatch.setattr(sys, "stderr", said)
  assert main(["inspect", "\N{PLUS-MINUS SIGN}"]) == 2
  said.flush()
  assert rb"\xb1: no such directory" in out.getvalue()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folders_of_a_ledger_are_its_owners(tmp_path, umask):
  before = os.umask(umask)
  try:
    Ledger("pets", tmp_path / "a" / "b").publish()
  finally:
    os.umask(before)
  for path in tmp_path.rglob("*"):
    assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
