"""Runs `oneshot-dp` in this process, or in one of its own."""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import pytest

from oneshot_dp.pipeline.cli import main

ROOT = pathlib.Path(__file__).parents[2]
# A suite that runs in the background ignores Ctrl-C, and so would its children.
_START = """
import signal, sys
from oneshot_dp.pipeline.cli import program
signal.signal(signal.SIGINT, signal.default_int_handler)
if {tried}:
  program._check_jax_environment = lambda: None
sys.exit(program.main())
"""


def with_changes(words: Sequence[object]) -> list[str]:
  """A usual command line in which a flag that is given again is changed.

  The command itself refuses a flag that is given twice.
  """
  kept: list[list[str]] = []  # each a flag with its values, or one word
  for word in map(str, words):
    is_flag = word.startswith("--")
    if kept and not is_flag and kept[-1][0].startswith("--"):
      kept[-1].append(word)
      continue
    if is_flag:
      kept = [group for group in kept if group[0] != word]
    kept.append([word])
  return [word for group in kept for word in group]


def succeeds(capsys: pytest.CaptureFixture, *argv: object) -> tuple[str, str]:
  """What a command says on standard output and standard error."""
  status = main(with_changes(argv))
  said = capsys.readouterr()
  assert status == 0, said.err
  return said.out, said.err


def prints(*argv: object) -> tuple[str, str]:
  """As `succeeds`, for a fixture that several tests share."""
  out = io.StringIO()
  err = io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    status = main(with_changes(argv))
  assert status == 0, err.getvalue()
  return out.getvalue(), err.getvalue()


def fails(capsys: pytest.CaptureFixture, *argv: object, status: int = 2) -> str:
  """The one line that a command fails with, after what it said before."""
  found = main(with_changes(argv))
  said = capsys.readouterr()
  assert found == status, said.err
  assert said.out == ""
  assert status != 2 or "is charged epsilon" not in said.err  # before it is so
  return one_line(said.err)


def one_line(stderr: str) -> str:
  """The error among lines of standard error, which is the last and the only."""
  assert "Traceback" not in stderr
  *before, line = stderr.splitlines()
  start = "oneshot-dp: error: "
  assert line.startswith(start), stderr
  assert not any(each.startswith(start) for each in before)
  return line.removeprefix(start)


def start(
  argv: Sequence[object], *, first: str = "pass", **environment: str
) -> subprocess.Popen[str]:
  """The command as a person starts it, which does something else first.

  JAX takes the variables of the suite: to try each time takes 0.8 s.
  """
  code = first + _START.format(tried=not environment)
  return subprocess.Popen(
    [sys.executable, "-c", code, *map(str, argv)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
  )
