"""Runs `oneshot-dp` in this process, or in one of its own."""

import io
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import pytest

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.data.extract import RUNS

ROOT = pathlib.Path(__file__).parents[2]
TRAIN = "train --cache {train} --epsilon 1 --delta 1e-5 --head lamb --out {out}"
SWEEP = (
  "sweep --cache {train} --eval-cache {eval} --epsilons 1 2 --delta 1e-5"
  " --out {out}"
)
ABLATE = (
  "ablate --cache {train} --eval-cache {eval} --epsilon 1 --delta 1e-5"
  " --out {out} --axes clip --clip-norms 2"
)
# Seeded: of sound releases too, audits flag some.
AUDIT = (
  "audit --epsilon 1 --delta 1e-5 --runs 32 --canaries 16 --num-classes 2"
  " --noise-seed 1"
)
EXTRACT = (
  "extract {config} --source.path {images} --split train --out {out}"
  " --decode-threads 1"
)
EXTRACT_PHOTOS = "extract {tmp}/photos.py --split all --out {out} --quiet"
CONFIG = """
from oneshot_dp.configs.extract_config import *
def get_config():
  return ExtractConfig(
    source=ArraysSource(path="images.npz"),
    backbone=BackboneConfig(name="random_patches"),
    preprocess=PreprocessConfig(image_size=8),
    batch_size=8,
    shard_rows=32,
  )
"""

# A suite that runs in the background ignores Ctrl-C, and so would its children.
_START = (
  "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
  "; from oneshot_dp.pipeline.cli import main; sys.exit(main())"
)
# Copies of a process that has imported all and done nothing: that takes some
# seconds, and pytest's own has threads, with which it must not be copied.
_COPIES = multiprocessing.get_context("forkserver")
_COPIES.set_forkserver_preload(
  [
    "tests.pipeline.command_line",
    "oneshot_dp.extract.job.job",
    "oneshot_dp.pipeline.runs.sweep",
  ]
)


class Terminal(io.StringIO):
  """A stream that says it is one."""

  def isatty(self) -> bool:
    return True


def succeeds(capsys: pytest.CaptureFixture, *argv: object) -> tuple[str, str]:
  """What a command says on standard output and standard error."""
  status = main([str(word) for word in argv])
  said = capsys.readouterr()
  assert status == 0, said.err
  return said.out, said.err


def fails(capsys: pytest.CaptureFixture, *argv: object, status: int = 2) -> str:
  """The one line that a command fails with."""
  found = main([str(word) for word in argv])
  said = capsys.readouterr()
  assert found == status, said.err
  assert said.out == ""
  return one_line(said.err)


def one_line(stderr: str) -> str:
  (line,) = (x for x in stderr.splitlines() if not x.startswith(RUNS))
  assert line.startswith("oneshot-dp: error: ")
  assert "Traceback" not in line
  return line.removeprefix("oneshot-dp: error: ")


def start(
  argv: Sequence[object], *, first: str = "pass"
) -> subprocess.Popen[str]:
  """The command as a person starts it, which does something else first."""
  words = [sys.executable, "-c", f"{first}\n{_START}", *map(str, argv)]
  return subprocess.Popen(
    words,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=_environment(),
  )


class Copy:
  """The command as a process of its own, in a moment; see `subprocess.Popen`.

  Args:
    argv: its words.
    first: what it does before them.
    cwd: the folder that it runs in.
  """

  def __init__(
    self, argv: Sequence[object], *, first: str = "", cwd: object = "."
  ):
    self._said = [  # until it has read them
      tempfile.NamedTemporaryFile("r")  # noqa: SIM115
      for _ in range(2)
    ]
    self._process = _COPIES.Process(
      target=_command,
      args=(
        [str(word) for word in argv],
        *(first, str(cwd), _environment(), [said.name for said in self._said]),
      ),
    )
    with pytest.MonkeyPatch.context() as patch:
      patch.setenv("PYTHONPATH", str(ROOT))  # the first makes what is copied
      self._process.start()
    self.pid: Any = self._process.pid
    self.kill = self._process.kill

  @property
  def returncode(self) -> Any:
    return self._process.exitcode

  def poll(self) -> Any:
    return self.returncode

  def send_signal(self, number: int) -> None:
    if self.poll() is None:
      os.kill(self.pid, number)

  def communicate(self, timeout: float) -> tuple[str, str]:
    self._process.join(timeout)
    assert self.returncode is not None, f"it runs for more than {timeout} s"
    out, err = (said.read() for said in self._said)
    return out, err


def _environment() -> dict[str, str]:
  return os.environ | {"PYTHONPATH": str(ROOT)}


def _command(
  argv: list[str],
  first: str,
  cwd: str,
  environment: dict[str, str],
  said: list[str],
) -> None:
  for descriptor, name in enumerate(said, start=1):
    os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), descriptor)
  signal.signal(signal.SIGINT, signal.default_int_handler)
  os.environ.clear()
  os.environ.update(environment)
  os.chdir(cwd)
  exec(first, {})
  sys.exit(main(argv))
