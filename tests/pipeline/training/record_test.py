"""A paid training that is stopped goes on: nothing is drawn or paid twice."""

import dataclasses
import functools
import itertools
import json
import pathlib
import re
import shutil
import signal
import time
from typing import Any

import numpy as np
import pytest

from oneshot_dp.linear_dp.heads import own_noise
from oneshot_dp.linear_dp.heads.multi_step import training
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.training import record
from tests.pipeline.command_line import fails, start, succeeds
from tests.pipeline.sample_caches import write_clusters

AUTO = "train --cache {train} --epsilon 20 --delta 1e-5 --out {out}"
STEPS = (
  "train --cache {train} --epsilon 1 --delta 1e-5 --head multi-step"
  " --steps.epochs 2 --steps.batch-size 60 --steps.sampling %s --out {out}"
)
SWEEP = (
  "sweep --cache {train} --eval-cache {eval} --epsilons 4 20 --delta 1e-5"
  " --head auto --balanced --baseline --out {out}"
)
SEEDED = " --noise-seed 3"
WEIGHTS = "**/head.safetensors"


@pytest.fixture
def out(tmp_path) -> pathlib.Path:
  return tmp_path / "out"


@pytest.fixture
def kept(tmp_path) -> pathlib.Path:
  """Where steps are until the head is delivered."""
  return tmp_path / ".out.unfinished" / "steps"


@pytest.fixture
def entries(train_cache):
  """The entries of this test's ledger."""
  return Ledger(train_cache.info.dataset).entries


def stop_at(
  monkeypatch: pytest.MonkeyPatch, number: int, when: str
) -> list[bytes]:
  """Ctrl-C in the n-th write of a run: with half of it on the disk, or all.

  Returns:
    What is written from now on; the first is what a training is known by.
  """
  count, written, put = itertools.count(), [], record.LocalStore.put

  def stopping(store: Any, name: str, data: bytes, **options: Any) -> bool:
    this = next(count)
    if (this, when) == (number, "within"):
      (store.path / f"{name}.x.tmp").write_bytes(data[: len(data) // 2])
      raise KeyboardInterrupt
    done = put(store, name, data, **options)
    written.append(data)
    if (this, when) == (number, "after"):
      raise KeyboardInterrupt
    return done

  monkeypatch.setattr(record.LocalStore, "put", stopping)
  return written


def weights(folder: pathlib.Path) -> dict[str, bytes]:
  """The weights of all heads in a folder."""
  found = folder.glob(WEIGHTS)
  return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def undisturbed(
  command: list[str], out: pathlib.Path
) -> tuple[dict[str, bytes], int]:
  """What a run makes, and how often it writes a release."""
  with pytest.MonkeyPatch.context() as patch:
    written = stop_at(patch, -1, "never")
    assert main(command) == 0
  heads = weights(out)
  shutil.rmtree(out)
  return heads, len(written) - 1


@pytest.mark.parametrize(
  ("command", "points"),
  [
    (AUTO, ((1, "within"), (2, "after"), (12, "within"), (21, "after"))),
    (STEPS % "partition", tuple(itertools.product(range(1, 9), ["after"]))),
    (STEPS % "poisson", ((3, "within"), (3, "after"))),
    (SWEEP, ((22, "within"), (23, "after"))),
  ],
  ids=["auto", "partition", "poisson", "sweep"],
)
def test_it_goes_on(
  place, capsys, monkeypatch, out, kept, entries, command, points
):
  """Wherever it is stopped: the same bytes, one charge, no second draw."""
  command = place(command + SEEDED)
  heads, releases = undisturbed(command, out)
  for number, when in points:
    if number > releases:
      continue
    before = len(entries())
    with monkeypatch.context() as patch:
      first = stop_at(patch, number, when)
      assert main(command) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    steps = record.kept_steps(kept)
    assert f"{out} was not finished: {steps} are kept, and the same" in said
    assert "stays charged" in said
    written = [p for p in kept.glob("0*") if p.suffix != ".tmp"]
    assert len(written) == len(first) - 1 == number - int(when == "within")

    with monkeypatch.context() as patch:
      then = stop_at(patch, -1, "never")
      assert main(command) == 0
    assert f"going on: {steps} are kept" in capsys.readouterr().err
    # No release is made again: both runs together make each once.
    assert len(first) - 1 + len(then) == releases
    assert weights(out) == heads
    assert len(entries()) == before + 1 + command.count("--baseline")
    assert not kept.parent.exists()
    assert main(["verify", str(next(out.glob(WEIGHTS)).parent)]) == 0
    capsys.readouterr()
    shutil.rmtree(out)


@pytest.mark.parametrize("number", [0, 1])
def test_stopped_about_the_charge(
  place, capsys, monkeypatch, out, kept, entries, number
):
  """Stopped before it, nothing is left; after it, the charge is not lost."""
  charged = (
    "oneshot_dp.pipeline.training.train_heads.charge_aloud",
    lambda *_: (_ for _ in ()).throw(KeyboardInterrupt),
  )
  with monkeypatch.context() as patch:
    if number:
      stop_at(patch, number, "within")
    else:
      patch.setattr(*charged)
    assert main(place(AUTO)) == 130
  said = capsys.readouterr().err
  assert ("0 of 19 steps are kept" in said) == bool(number)
  assert kept.parent.exists() == bool(number)
  assert len(entries()) == number
  succeeds(capsys, *place(AUTO))
  assert len(entries()) == 1


@pytest.mark.parametrize("size", [2**62, 2**64])
def test_more_steps_than_the_disk_holds_are_not_charged(
  place, capsys, monkeypatch, kept, entries, size
):
  sized = functools.partial(dataclasses.replace, num_bytes=size)
  resumes_by = own_noise.OwnNoiseTrainer.resumes_by
  monkeypatch.setattr(
    own_noise.OwnNoiseTrainer,
    "resumes_by",
    lambda *args: sized(resumes_by(*args)),
  )
  assert main(place(AUTO)) == 1
  assert f"{kept} cannot be written: " in capsys.readouterr().err
  assert not entries()
  assert not kept.exists()


def test_bits_of_the_system_are_never_drawn_for_a_kept_step(
  place, monkeypatch, out
):
  with monkeypatch.context() as patch:
    stop_at(patch, 21, "after")
    assert main(place(AUTO)) == 130

  def drawn(*_: Any) -> None:
    raise AssertionError("noise for what was released")

  monkeypatch.setattr(NoiseSource, "_bytes", drawn)
  assert main(place(AUTO)) == 0
  assert weights(out)


def test_an_epoch_goes_on_with_its_parts(place, monkeypatch):
  """A row is in one of them; what T steps cost rests on it."""
  sums = training.clipped_gradient
  parts = []

  def summed(*args: Any, chosen: np.ndarray, **options: Any) -> Any:
    parts.append(chosen)
    return sums(*args, chosen=chosen, **options)

  monkeypatch.setattr(training, "clipped_gradient", summed)
  with monkeypatch.context() as patch:
    stop_at(patch, 2, "after")
    assert main(place(STEPS % "partition")) == 130
  assert main(place(STEPS % "partition")) == 0
  assert len(parts) == 6
  for epoch in (parts[:3], parts[3:]):
    assert (np.sum(epoch, axis=0) == 1).all()


class TestRefused:
  """Each in one line; what is kept stays as it is."""

  @pytest.fixture(autouse=True)
  def stopped(self, place, capsys, monkeypatch, kept) -> None:
    with monkeypatch.context() as patch:
      stop_at(patch, 7, "after")
      assert main(place(AUTO)) == 130
    capsys.readouterr()
    self.before = {path: path.read_bytes() for path in kept.iterdir()}

  def refused(self, capsys, command: list[str], kept: pathlib.Path) -> str:
    line = fails(capsys, *command)
    assert {path: path.read_bytes() for path in kept.iterdir()} == self.before
    return line

  @pytest.mark.parametrize(
    ("change", "named"),
    [
      ((" 20 ", " 19 "), "epsilons"),
      (("1e-5", "2e-5"), "delta"),
      (("--out", "--noise-seed 3 --out"), "noise_seed"),
      (("--out", "--balanced --out"), "balanced"),
      (("{train}", "{tmp}/other"), "private_digest"),
      (("--out", "--head lamb --out"), "trainings"),
    ],
  )
  def test_another_training(
    self, place, capsys, kept, entries, tmp_path, change, named
  ):
    write_clusters(tmp_path / "other", (60, 50, 40, 31))
    line = self.refused(capsys, place(AUTO.replace(*change)), kept)
    assert "has 5 of 19 steps of a training that was charged, and" in line
    assert named in line
    assert len(entries()) == 1

  @pytest.mark.parametrize(
    ("file", "change"),
    [
      ("000000-mean", lambda body: body[:-1] + bytes([body[-1] ^ 1])),
      ("000006-gradient-sum", lambda body: body[:-1] + bytes([body[-1] ^ 1])),
      ("000006-gradient-sum", lambda body: body[:90]),
      ("000003-gradient-sum", None),
    ],
  )
  def test_what_is_kept_was_changed(
    self, place, capsys, kept, entries, file, change
  ):
    if change is None:
      (kept / file).unlink()
    else:
      (kept / file).write_bytes(change((kept / file).read_bytes()))
    assert main(place(AUTO)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "is not what was released there" in line
    assert len(entries()) == 1

  def test_what_it_is_known_by_is_no_such_thing(self, place, capsys, kept):
    path = kept / "training.json"
    header = json.loads(path.read_text()) | {"trainings": [{"x": 1}]}
    path.write_text(json.dumps(header))
    line = fails(capsys, *place(AUTO))
    assert "training.json is damaged (Object missing required field" in line

  def test_steps_of_another_training(
    self, place, capsys, monkeypatch, kept, tmp_path
  ):
    """Though all is the same, a step was paid by another charge."""
    with monkeypatch.context() as patch:
      stop_at(patch, 7, "after")
      assert main(place(AUTO.replace("{out}", "{tmp}/second"))) == 130
    other = tmp_path / ".second.unfinished" / "steps"
    for file in other.glob("0*"):
      shutil.copy(file, kept / file.name)
    assert main(place(AUTO)) == 2
    assert "not what was released" in capsys.readouterr().err

  def test_other_doors(self, place, capsys, kept, tmp_path):
    words = ["recover", str(tmp_path / "out")]
    assert "5 of 19 steps are kept" in self.refused(capsys, words, kept)
    ablate = place(
      "ablate --cache {train} --eval-cache {eval} --epsilon 1 --delta 1e-5"
      " --axes clip --clip-norms 2 --out {out}"
    )
    line = self.refused(capsys, ablate, kept)
    assert "was charged and not finished: 5 of 19 steps are kept" in line
    elsewhere = [*place(AUTO), "--ledger-dir", str(tmp_path / "elsewhere")]
    line = self.refused(capsys, elsewhere, kept)
    assert "was not charged for 5 of 19 steps" in line

  def test_modes(self, kept):
    assert kept.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in kept.iterdir()} == {0o600}
    said = json.loads((kept / "training.json").read_text())
    # Nothing of the rows, under whatever key: the one hash-like text is random.
    assert set(said) == {
      *("version", "noise_seed", "step", "num_steps", "num_bytes"),
      *("trainings", "name"),
    }
    assert re.findall("[0-9a-f]{32,}", json.dumps(said)) == [said["name"]]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 9])
def test_killed(place, out, kept, entries, steps):
  """(SIGKILL.) The next process makes the bytes of one that was let be."""
  command = place(AUTO + SEEDED)
  heads, _ = undisturbed(command, out)
  process = start(command)
  while process.poll() is None and (
    len(entries()) == 1 or len(list(kept.glob("*-gradient-sum"))) < steps
  ):
    time.sleep(0.001)
  process.send_signal(signal.SIGKILL)
  process.communicate(timeout=60)
  assert process.returncode == -signal.SIGKILL
  assert main(command) == 0
  assert weights(out) == heads
  assert len(entries()) == 2
