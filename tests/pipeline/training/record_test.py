"""A paid training that is stopped goes on: nothing is drawn or paid twice."""

import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import re
import shutil
import signal
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.info import SHARDS_FILE
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.storage import local
from oneshot_dp.linear_dp.heads import own_noise
from oneshot_dp.linear_dp.heads.multi_step import training
from oneshot_dp.linear_dp.heads.whitened import training as whitened
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.output_dir import whole_directory
from oneshot_dp.pipeline.training import kept_releases, record
from tests.pipeline.command_line import Copy, fails, succeeds
from tests.pipeline.sample_caches import write_clusters
from tests.pipeline.small_disk import files_no_larger_than
from tests.syncs import noted_syncs

AUTO = "train --cache {train} --epsilon 20 --delta 1e-5 --out {out}"
STEPS = (
  "train --cache {train} --epsilon 1 --delta 1e-5 --head multi-step"
  " --steps.epochs 2 --steps.batch-size 60 --steps.sampling %s --out {out}"
)
SWEEP = (
  "sweep --cache {train} --eval-cache {eval} --epsilons 4 20 --delta 1e-5"
  " --head auto --balanced --baseline --out {out}"
)
LAMB = "train --cache {train} --epsilon 1 --delta 1e-5 --head lamb --out {out}"
RUN = " --cache {train} --eval-cache {eval} --out {out}"
LEAST_SQUARES = (
  f"sweep{RUN} --epsilons 1 4 --delta 1e-5 --head least-squares --num-draws 2"
  " --release %s"
)
PRIVATE_EVAL = (
  f"sweep{RUN} --epsilons 1 2 --delta 1e-5 --baseline --private-eval 1"
)
COMPARE = f"compare{RUN} --epsilons 20 --delta 1e-5 --heads lamb whitened"
CHOOSE = (
  "compare --choose --cache {train} --epsilons 4 --delta 1e-5 --heads lamb"
  " least-squares --out {out}"
)
FIGURES = f"figures{RUN} --epsilons 1 --deltas 1e-5 1e-6 --num-draws 1"
ABLATE = (
  f"ablate{RUN} --epsilon 1 --delta 1e-5 --axes clip --clip-norms 2 --baseline"
)
SEEDED = " --noise-seed 3"
RESULTS = "**/head.safetensors", "results.csv"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch, no_pictures):
  """Of a whitened head: a mean, a moment and seven steps."""
  few = functools.partial(WhiteningRule, num_steps=7)
  monkeypatch.setattr(whitened, "WhiteningRule", few)


@pytest.fixture
def out(tmp_path) -> pathlib.Path:
  return tmp_path / "out"


@pytest.fixture
def kept(tmp_path) -> pathlib.Path:
  """Where releases are until the heads are delivered."""
  return tmp_path / ".out.unfinished" / "steps"


@pytest.fixture
def start(tmp_path, train_cache):
  """A public vector for each class, in a file."""
  names, d = train_cache.info.class_names, train_cache.info.feature_dim
  vectors = zip(names, np.eye(len(names), d), strict=True)
  np.savez(tmp_path / "start.npz", allow_pickle=False, **dict(vectors))


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
  count, written, put = itertools.count(), [], local.LocalStore.put

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

  monkeypatch.setattr(local.LocalStore, "put", stopping)
  return written


def results(folder: pathlib.Path) -> dict[str, bytes]:
  """The weights and scores of all heads in a folder."""
  found = itertools.chain.from_iterable(map(folder.glob, RESULTS))
  return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def undisturbed(
  command: list[str], out: pathlib.Path
) -> tuple[dict[str, bytes], int]:
  """What a run makes, and how often it writes a release."""
  with pytest.MonkeyPatch.context() as patch:
    written = stop_at(patch, -1, "never")
    assert main(command) == 0
  heads = results(out)
  shutil.rmtree(out)
  return heads, len(written) - 1


@pytest.mark.slow
@pytest.mark.parametrize(
  ("command", "points"),
  [
    (AUTO, ((1, "within"), (2, "after"), (5, "within"), (9, "after"))),
    (f"{AUTO} --start {{tmp}}/start.npz", ((8, "after"), (9, "after"))),
    (STEPS % "partition", ((1, "after"), (3, "after"), (5, "after"))),
    (STEPS % "poisson", ((3, "within"), (3, "after"))),
    (SWEEP, ((10, "within"), (11, "after"))),
    (f"{SWEEP} --release nested", ((12, "after"),)),
    (LAMB, ((1, "within"), (1, "after"))),
    (LEAST_SQUARES % "nested", ((1, "after"), (2, "within"))),
    (LEAST_SQUARES % "independent", ((1, "after"),)),
    (PRIVATE_EVAL, ((1, "after"), (2, "within"), (2, "after"))),
    (COMPARE, ((1, "after"), (2, "within"))),
    (CHOOSE, ((2, "after"), (3, "within"), (3, "after"))),
    (FIGURES, ((1, "after"),)),
    (ABLATE, ((1, "after"), (2, "within"))),
    (AUTO.replace("train}", "tmp}/train"), ((1, "after"), (9, "within"))),
    (LAMB.replace("train}", "tmp}/train"), ((1, "within"), (1, "after"))),
  ],
)
@pytest.mark.usefixtures("users", "start")
def test_it_goes_on(
  place, capsys, monkeypatch, out, kept, entries, command, points
):
  """Wherever it is stopped: the same bytes, one charge, no second draw."""
  command = place(command + SEEDED)
  heads, releases = undisturbed(command, out)
  charges = len(entries())
  for number, when in points:
    before = len(entries())
    with monkeypatch.context() as patch:
      first = stop_at(patch, number, when)
      assert main(command) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    there = record.kept(kept)
    assert f"{out} was not finished: {there}, and the same" in said
    assert "stays charged" in said
    written = [p for p in kept.glob("0*") if p.suffix != ".tmp"]
    assert len(written) == len(first) - 1 == number - int(when == "within")

    with monkeypatch.context() as patch:
      then = stop_at(patch, -1, "never")
      assert main(command) == 0
    assert f"going on: it is paid for, {there}" in capsys.readouterr().err
    # No release is made again: both runs together make each once.
    assert len(first) - 1 + len(then) == releases
    assert results(out) == heads
    assert len(entries()) == before + charges
    assert not kept.parent.exists()
    assert main(["verify", str(next(out.glob(RESULTS[0])).parent)]) == 0
    capsys.readouterr()
    shutil.rmtree(out)


@pytest.mark.parametrize("number", [0, 1])
def test_stopped_about_the_charge(
  place, capsys, monkeypatch, out, kept, entries, number
):
  """Stopped before it, nothing is left; after it, the charge is not lost."""
  charged = (
    "oneshot_dp.pipeline.training.record.charge_aloud",
    lambda *_: (_ for _ in ()).throw(KeyboardInterrupt),
  )
  with monkeypatch.context() as patch:
    if number:
      stop_at(patch, number, "within")
    else:
      patch.setattr(*charged)
    assert main(place(AUTO)) == 130
  said = capsys.readouterr().err
  assert ("nothing is released yet" in said) == bool(number)
  assert kept.parent.exists() == bool(number)
  assert len(entries()) == number
  if number:
    elsewhere = [*place(AUTO), "--ledger-dir", str(kept.parents[1] / "another")]
    assert "was not charged for what is in" in fails(capsys, *elsewhere)
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
    stop_at(patch, 9, "after")
    assert main(place(AUTO)) == 130
  monkeypatch.setattr(NoiseSource, "_bytes", pytest.fail)
  assert main(place(AUTO)) == 0
  assert results(out)


def test_a_choice_goes_on_with_the_rows_that_it_held_out(
  place, capsys, monkeypatch, tmp_path, entries
):
  """By other keys a row would be in heads and in counts."""
  write_clusters(tmp_path / "train")
  command = place(CHOOSE.replace("{train}", "{tmp}/train"))
  with monkeypatch.context() as patch:
    stop_at(patch, 2, "after")
    assert main(command) == 130
  capsys.readouterr()
  listed = tmp_path / "train" / SHARDS_FILE
  shards = json.loads(listed.read_text())
  file = tmp_path / "train" / open_cache(tmp_path / "train").shards[0].keys_file
  other = file.read_bytes()[::-1]
  file.write_bytes(other)
  shards["shards"][0]["keys_sha256"] = hashlib.sha256(other).hexdigest()
  listed.write_text(json.dumps(shards))
  assert "this is another, by its keys_digest" in fails(capsys, *command)
  assert len(entries()) == 1


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

  def test_another_training(self, place, capsys, kept, entries, tmp_path):
    write_clusters(tmp_path / "other", (61, 49, 40, 30))
    for change, named in (
      ((" 20 ", " 19 "), "epsilons"),
      (("1e-5", "2e-5"), "delta"),
      (("--out", "--noise-seed 3 --out"), "--noise-seed"),
      (("--out", "--balanced --out"), "balanced"),
      (("{train}", "{tmp}/other"), "private_digest"),
      (("--out", "--head lamb --out"), "training"),
    ):
      line = self.refused(capsys, place(AUTO.replace(*change)), kept)
      assert "a run that was charged (7 releases are kept), and this" in line
      assert named in line
    assert len(entries()) == 1

  def test_what_is_kept_was_changed(self, place, capsys, kept, entries):
    last = "000000006-gradient-sum"
    for file, change in (
      ("000000000-mean", lambda body: body[:-1] + bytes([body[-1] ^ 1])),
      (last, lambda body: body[:-1] + bytes([body[-1] ^ 1])),
      (last, lambda body: body[:90]),
      ("000000003-gradient-sum", None),
    ):
      content = (kept / file).read_bytes()
      (kept / file).unlink()
      if change is not None:
        (kept / file).write_bytes(change(content))
      assert main(place(AUTO)) == 2
      line = capsys.readouterr().err.splitlines()[-1]
      assert "is not what was released there" in line
      (kept / file).write_bytes(content)
    path = kept / "training.json"
    header = json.loads(path.read_text()) | {"trainings": 1}
    path.write_text(json.dumps(header))
    line = fails(capsys, *place(AUTO))
    assert "training.json is damaged (Expected `array`, got `int`" in line
    assert len(entries()) == 1

  def test_what_it_is_known_by_was_changed(
    self, place, capsys, monkeypatch, kept, tmp_path
  ):
    """To what another run is known by, but for the name that was charged."""
    command = AUTO + " --balanced"
    with monkeypatch.context() as patch:
      stop_at(patch, 1, "within")
      assert main(place(command.replace("{out}", "{tmp}/second"))) == 130
    other = tmp_path / ".second.unfinished" / "steps" / "training.json"
    path = kept / "training.json"
    name = json.loads(path.read_text())["name"]
    path.write_text(json.dumps(json.loads(other.read_text()) | {"name": name}))
    assert main(place(command)) == 2
    said = capsys.readouterr().err
    assert "training.json is not what was released there" in said

  def test_a_copy_makes_no_second_head(
    self, place, capsys, monkeypatch, kept, entries, tmp_path
  ):
    """No head leaves before the ledger knows, and then none of a copy."""
    copy = tmp_path / ".second.unfinished" / "steps"
    shutil.copytree(kept.parent, copy.parent)
    publish = Ledger.publish

    def on_a_full_disk(ledger: Ledger, *heads: Any) -> None:
      with files_no_larger_than(ledger.path.stat().st_size):
        publish(ledger, *heads)

    with monkeypatch.context() as patch:
      patch.setattr(Ledger, "publish", on_a_full_disk)
      assert main(place(AUTO)) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "9 releases are kept, and the same command" in said, said
    assert not (tmp_path / "out").exists()
    succeeds(capsys, *place(AUTO))
    assert main(place(AUTO.replace("{out}", "{tmp}/second"))) == 2
    assert "heads of this charge left already" in capsys.readouterr().err
    assert len(entries()) == 1
    assert not (tmp_path / "second").exists()

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
    line = self.refused(capsys, place(ABLATE), kept)
    assert "this is another, by its trainings" in line
    with pytest.raises(InputError, match="not finished: 7 releases are kept"):
      whole_directory(tmp_path / "out").__enter__()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    line = self.refused(capsys, place(AUTO), kept)
    assert "already holds something; move it away, and the same command" in line
    shutil.rmtree(tmp_path / "out")
    elsewhere = [*place(AUTO), "--ledger-dir", str(tmp_path / "elsewhere")]
    line = self.refused(capsys, elsewhere, kept)
    assert "was not charged for what is in" in line

  def test_who_wants_the_results(self, place, capsys, kept, out):
    """They are not there yet, and how to have them is said."""
    for command in (
      "evaluate {out} --cache {eval}",
      "predict {out} {eval} --out {tmp}/predictions.csv",
      "export {out} --to {tmp}/model",
      "verify {out}",
      "report {out}",
    ):
      line = self.refused(capsys, place(command), kept)
      assert f"{out} is not finished: 7 releases are kept, and the same" in line
    line = fails(capsys, "evaluate", f"{out}2", *place("--cache {eval}"))
    assert "is not a head" in line
    out.mkdir()
    assert "is not finished" in self.refused(
      capsys, place("verify {out}"), kept
    )
    # It is its owner's, and says nothing of the rows, under whatever key: the
    # hash-like texts are random, and a digest of this.
    assert kept.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in kept.iterdir()} == {0o600}
    said = json.loads((kept / "training.json").read_text())
    assert set(said) == {
      *("version", "noise_seed", "trainings", "also", "ledger", "nonce", "name")
    }
    found = re.findall("[0-9a-f]{32,}", json.dumps(said))
    assert sorted(found) == sorted([said["name"], said["nonce"]])


def test_what_fails_after_the_charge_costs_nothing(
  place, capsys, monkeypatch, entries
):
  """Such as the step, which is compiled when there is something to step on."""
  for error, said in (
    (RuntimeError("can't start new thread"), "can't start new thread"),
    (MemoryError(), "MemoryError"),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), "Out of memory"),
  ):

    def fails_once(*_: Any, error: BaseException = error) -> None:
      raise error

    with monkeypatch.context() as patch:
      patch.setattr(
        "oneshot_dp.linear_dp.one_step.trainer.one_step", fails_once
      )
      assert main(place(LAMB)) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("oneshot-dp: error: ")
    assert said in line
    assert len(entries()) == 1
  succeeds(capsys, *place(LAMB))
  assert len(entries()) == 1


def test_it_is_on_the_disk_before_what_is_made_of_it(place, monkeypatch, kept):
  """Names and charge before the release, and that before the head."""
  synced = noted_syncs(monkeypatch)
  assert main(place(LAMB)) == 0
  first = iter([name.partition(".json.")[0] for name in synced])
  for expected in (
    *("training", "steps", ".out.unfinished", kept.parent.parent.name),
    *("jsonl", "000000000-clipped-sum", "steps", "head.safetensors", "whole"),
  ):
    assert any(expected in name for name in first), (expected, synced)


def test_more_than_a_million_releases(tmp_path):
  (tmp_path / "steps").mkdir()
  releases = kept_releases.KeptReleases(tmp_path / "steps", "name")
  releases.make_room(0)
  releases._next = 999_999
  source = kept_releases.KeptNoise(None, releases)
  for i in range(2):
    source.once("sum", lambda i=i: np.array([i]))
  names = [f"{n:09}-sum" for n in (999_999, 10**6)]
  found = kept_releases.releases_in(tmp_path / "steps")
  assert [path.name for path in found] == names


def test_other_public_rows_of_the_same_name(
  place, capsys, monkeypatch, kept, tmp_path
):
  """What is kept was released of rows behind the map of those before."""
  public = functools.partial(
    write_clusters, tmp_path / "public", dataset="wild animals"
  )
  before = public((20, 20, 20, 20))
  command = place(f"{LAMB} --public-cache {{tmp}}/public")
  with monkeypatch.context() as patch:
    stop_at(patch, 1, "after")
    assert main(command) == 130
  capsys.readouterr()
  shutil.rmtree(before.path)
  assert public((21, 19, 20, 20)).fingerprint == before.fingerprint
  assert "is another, by its public_rows:" in fails(capsys, *command)
  assert record.kept(kept) == "1 release is kept"


def test_counts_of_other_rows(place, capsys, monkeypatch, kept, tmp_path):
  """Scores of some rows are never those of others, or at another ε."""
  command = PRIVATE_EVAL.replace(" --baseline", "")
  with monkeypatch.context() as patch:
    stop_at(patch, 2, "after")
    assert main(place(command)) == 130
  write_clusters(tmp_path / "other", (20, 20, 20, 20), dataset="others")
  write_clusters(tmp_path / "rows", (21, 19, 20, 20), split="test")
  for change, named in (
    (("eval 1", "eval 8"), "--private-eval"),
    (("{eval}", "{tmp}/other"), "evaluation"),
    (("{eval}", "{tmp}/rows"), "private_digest"),
  ):
    capsys.readouterr()
    assert main(place(command.replace(*change))) == 2
    assert f"another, by its {named}:" in capsys.readouterr().err
  assert len(Ledger("others").entries()) == 0


def test_counts_that_another_charge_paid_for(
  place, capsys, monkeypatch, kept, tmp_path, ledger_dir
):
  """A new ledger knows of none: they are given under no charge made now."""
  command = place(PRIVATE_EVAL.replace("{eval}", "{tmp}/other"))
  write_clusters(tmp_path / "other", (20, 20, 20, 20), dataset="others")
  with monkeypatch.context() as patch:
    stop_at(patch, 2, "after")
    assert main(command) == 130
  for file in ledger_dir.glob("others*"):
    file.unlink()
  shutil.rmtree(tmp_path / "other")
  write_clusters(tmp_path / "other", (25, 20, 20, 20), dataset="others")
  assert main(command) == 2
  said = f"jsonl was not charged for all that is in {kept}; say where the"
  assert said in capsys.readouterr().err
  assert not Ledger("others").entries()


def test_what_another_run_released_is_not_given(tmp_path):
  def made(name: str, value: int) -> np.ndarray:
    releases = kept_releases.KeptReleases(tmp_path, name)
    releases.make_room(0)
    source = kept_releases.KeptNoise(None, releases)
    return source.once("sum", lambda: np.array([value]))

  assert made("one", 1) == made("one", 2) == 1
  with pytest.raises(InputError, match="is not what was released there"):
    made("another", 3)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("command", "at"),
  [
    (LAMB, "pipeline.training.record.charge_aloud"),
    (AUTO, "linear_dp.heads.whitened.training.unit_scale"),
    (AUTO, "linear_dp.statistics.gradient_sum.rounded_gaussian"),
  ],
)
def test_killed(place, out, entries, command, at):
  """(SIGKILL.) The next process makes the bytes of one that was let be."""
  command = place(command + SEEDED)
  expected, _ = undisturbed(command, out)
  module, name = f"oneshot_dp.{at}".rsplit(".", 1)
  process = Copy(
    command,
    first=f"import functools, os, signal, {module} as m\n"
    f"from {whitened.__name__} import WhiteningRule\n"
    f"import {whitened.__name__} as whitened\n"
    "few = functools.partial(WhiteningRule, num_steps=7)\n"
    "whitened.WhiteningRule = few\n"
    f"done = m.{name}\n"
    "def killed(*given):\n"
    "  done(*given)\n"
    "  os.kill(os.getpid(), signal.SIGKILL)\n"
    f"m.{name} = killed",
  )
  process.communicate(timeout=60)
  assert process.returncode == -signal.SIGKILL
  assert len(entries()) == 2
  assert not out.exists()
  assert main(command) == 0
  assert results(out) == expected
  assert len(entries()) == 2
