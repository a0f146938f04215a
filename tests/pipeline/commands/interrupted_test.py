"""Ctrl-C: one line that says what was charged and what is left of the work."""

import pathlib
import signal
import time
from typing import Any

import pytest

from oneshot_dp.extract.job import job
from oneshot_dp.linear_dp.one_step.trainer import OneStepTrainer
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.run import Run
from tests.pipeline.command_line import (
  ABLATE,
  EXTRACT,
  SWEEP,
  TRAIN,
  Copy,
  fails,
  one_line,
  succeeds,
)


def stop(*_: object, **__: object) -> None:
  raise KeyboardInterrupt


def nothing_is_half_written(folder: pathlib.Path) -> bool:
  return not (folder / "out").exists() and not list(folder.glob(".out-*"))


@pytest.mark.parametrize("command", [TRAIN, SWEEP, ABLATE])
def test_before_anything_is_charged(
  place, capsys, monkeypatch, tmp_path, train_cache, command
):
  if command == TRAIN:  # what was charged before is not told again
    succeeds(capsys, *place(SWEEP.replace("{out}", "{tmp}/first")))
  before = Ledger(train_cache.info.dataset).entries()
  monkeypatch.setattr(OneStepTrainer, "read", stop)
  line = fails(capsys, *place(command), status=130)
  assert line == (
    f"interrupted: {tmp_path / 'out'} was not written; nothing was charged"
  )
  assert Ledger(train_cache.info.dataset).entries() == before
  assert nothing_is_half_written(tmp_path)


@pytest.mark.parametrize(
  ("command", "epsilon"), [(TRAIN, "1"), (SWEEP, "2")], ids=["train", "sweep"]
)
def test_after_the_charge(
  place, capsys, monkeypatch, tmp_path, train_cache, command, epsilon
):
  monkeypatch.setattr("oneshot_dp.pipeline.runs.run.write_head", stop)
  monkeypatch.setattr(
    "oneshot_dp.pipeline.saved_head.directory.write_head", stop
  )
  assert main(place(command)) == 130
  line = one_line(capsys.readouterr().err.splitlines()[-1])
  ledger = Ledger(train_cache.info.dataset)
  assert line == (
    f"interrupted: {tmp_path / 'out'} was not finished: 1 release is kept, and"
    f" the same command goes on without a new charge; epsilon {epsilon} at"
    f" delta 1e-05 (REPLACE_SPECIAL) was charged to {ledger.path} and stays"
    " charged"
  )
  assert len(ledger.entries()) == 1
  assert nothing_is_half_written(tmp_path)


def test_noisy_accuracies(place, capsys, monkeypatch):
  ask = "evaluate {head} --cache {eval} --private-eval 1 --delta 1e-5"
  monkeypatch.setattr(
    "oneshot_dp.pipeline.runs.evaluation.release_accuracies", stop
  )
  line = fails(capsys, *place(ask), status=130)
  assert line == "interrupted: no result was shown; nothing was charged"


def test_after_the_last_file(place, capsys, monkeypatch, tmp_path):
  write = Run.write

  def written(run: Run, *args: Any, **options: Any) -> None:
    write(run, *args, **options)
    raise KeyboardInterrupt

  monkeypatch.setattr(Run, "write", written)
  assert main(place(SWEEP)) == 130
  line = one_line(capsys.readouterr().err.splitlines()[-1])
  assert f"{tmp_path / 'out'} is finished; epsilon 2 at" in line


def test_an_extraction_says_how_many_shards_are_kept(
  place, capsys, monkeypatch, images, tmp_path
):
  """(Real ones are stopped in tests/integration.)"""
  monkeypatch.setattr(job.cache_writer, "finish", stop)
  line = fails(capsys, *place(EXTRACT), status=130)
  assert line == (
    "interrupted: 3 of 3 shards are finished and kept; an extraction resumes"
    " when the same command is run again"
  )
  monkeypatch.undo()
  out, _ = succeeds(capsys, *place(EXTRACT))
  assert "3 shards kept from an earlier run" in out


@pytest.mark.slow
def test_a_sweep_in_a_process_of_its_own(place, tmp_path, train_cache):
  """Wherever it is stopped: the ledger and the message agree, nothing else."""
  process = Copy(place(f"{SWEEP} --num-draws 300"))
  ledger = Ledger(train_cache.info.dataset)
  while not ledger.path.exists() and process.poll() is None:
    time.sleep(0.01)
  process.send_signal(signal.SIGINT)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out) == (130, "")
  line = one_line(err.splitlines()[-1])
  assert line.startswith(f"interrupted: {tmp_path / 'out'} was not ")
  assert ("nothing was charged" in line) == (not ledger.entries())
  assert nothing_is_half_written(tmp_path)
