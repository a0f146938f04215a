import dataclasses
import errno
import fcntl
import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.identity import BackboneIdentity
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.ledger import locks
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.folder import default_ledger_dir
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.row_sketch import RowSketch
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  make_plan,
  train_heads,
)
from tests.pipeline import charging, two_names
from tests.pipeline.command_line import ROOT, succeeds
from tests.pipeline.ledger.long_ledgers import write_long_ledger
from tests.pipeline.sample_caches import write_clusters
from tests.pipeline.small_disk import files_no_larger_than

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
DELTA = 1e-5


def plan(*epsilons: float, **changes) -> ReleasePlan:
  return ReleasePlan(epsilons=epsilons or (1.0,), delta=DELTA, **changes)


def cost(*epsilons: float, seed: int | None = None, **changes) -> Charge:
  return Charge.of_plan(plan(*epsilons, **changes), NoiseSource(seed))


@pytest.fixture
def ledger(ledger_dir) -> Ledger:
  return Ledger("pets")


@pytest.fixture
def draws(monkeypatch) -> list[int]:
  """The size of every draw of random bits for noise."""
  seen = []
  words, bits = NoiseSource.words, NoiseSource.bits
  monkeypatch.setattr(
    NoiseSource, "words", lambda s, n: seen.append(n) or words(s, n)
  )
  monkeypatch.setattr(
    NoiseSource, "bits", lambda s, n: seen.append(n) or bits(s, n)
  )
  return seen


class TestWhere:
  def test_the_environment_names_the_folder_or_the_users_state(
    self, monkeypatch, ledger_dir, tmp_path
  ):
    assert default_ledger_dir() == ledger_dir
    monkeypatch.delenv("ONESHOT_DP_LEDGER_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_ledger_dir() == tmp_path / "oneshot-dp" / "ledgers"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_ledger_dir() == (
      tmp_path / ".local" / "state" / "oneshot-dp" / "ledgers"
    )

  def test_caches_of_the_same_private_data_share_it(
    self, train_cache, tmp_path
  ):
    """Whatever the backbone, and what is called a split."""
    other = write_clusters(
      tmp_path / "other",
      d=9,
      split="train[:10%]",
      backbone=BackboneIdentity(name="another", layer="mean"),
      embedding_dtype="float32",
      preprocess={},
    )
    mine, theirs = (cache_ledger(c, None) for c in (train_cache, other))
    assert mine.path == theirs.path
    mine.charge(cost())
    assert theirs.spending(REPLACE_SPECIAL).charges == 1

  def test_other_data_has_another_in_the_folder(self, ledger, ledger_dir):
    for dataset in ("dogs", "pets_train", "PETS", "p-ets", "../../etc/a"):
      assert Ledger(dataset).path != ledger.path
      assert Ledger(dataset).path.parent == ledger_dir


class TestEntries:
  def test_a_charge_returns_the_name_of_its_entry(self, ledger):
    names = [name for _ in range(3) for name in ledger.charge(cost())]
    assert [e["entry"] for e in ledger.entries()] == names
    assert len(set(names)) == 3

  def test_an_entry_says_what_was_released(self, ledger):
    asked = plan(2.0, 0.5, num_draws=3, order="independent")
    ledger.charge(Charge.of_plan(asked, NoiseSource(), cache_fingerprint="abc"))
    (entry,) = ledger.entries()
    gaussians = [
      {"class_name": "GaussianDpEvent", "noise_multiplier": sigma}
      for sigma in asked.noise_multipliers.values()
    ]
    expected = {
      "kind": "release",
      "epsilons": [2.0, 0.5],
      "delta": DELTA,
      "num_draws": 3,
      "order": "independent",
      "dp_event": {
        "class_name": "SelfComposedDpEvent",
        "event": {"class_name": "ComposedDpEvent", "events": gaussians},
        "count": 3,
      },
      "composed_epsilon": asked.composed_epsilon,
      "neighboring_relation": "REPLACE_SPECIAL",
      "noise_source": "os.urandom",
      "cache_fingerprint": "abc",
      "dataset": "pets",
    }
    assert expected.items() <= entry.items()

  def test_a_nested_plan_pays_for_its_largest_epsilon_once(self, ledger):
    ledger.charge(cost(0.5, 4.0, 2.0))
    (entry,) = ledger.entries()
    sigma = plan(4.0).noise_multipliers[4.0]
    assert entry["dp_event"] == {
      "class_name": "GaussianDpEvent",
      "noise_multiplier": sigma,
    }

  def test_an_edited_or_dropped_charge_is_missed(self, ledger):
    for epsilon in (1.0, 2.0, 4.0):
      ledger.charge(cost(epsilon))
    content = ledger.path.read_bytes()
    edited = content.replace(b'"epsilons":[2.0]', b'"epsilons":[1.0]')
    assert edited != content
    dropped = b"".join(content.splitlines(keepends=True)[:2])
    for changed, said in (
      (edited, "damaged or edited"),
      (dropped, "1 of 3 entries are missing"),
    ):
      ledger.path.write_bytes(changed)
      for use in (
        lambda: ledger.spending(REPLACE_SPECIAL),
        lambda: ledger.charge(cost()),
        lambda: ledger.check(cost()),
        lambda: ledger.charge(Charge.of_baseline()),
      ):
        with pytest.raises(InputError, match=said):
          use()


@pytest.mark.slow
def test_processes_take_turns_and_one_gets_the_last_of_a_budget(tmp_path):
  """40 charges of ε = 1 in four processes, without a cap and with one."""
  sigma = plan(1.0).noise_multipliers[1.0]
  five = accounting.epsilon_of(sigma / 5**0.5, DELTA)
  cap = Cap(
    max_epsilon=five * (1 + 1e-8),
    max_delta=DELTA,
    neighboring_relation=REPLACE_SPECIAL,
  )
  free, capped = (Ledger(name, tmp_path) for name in charging.DATASETS)
  capped.set_cap(cap)
  subprocess.run(
    [sys.executable, charging.__file__, str(tmp_path)],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    check=True,
    timeout=100,
  )
  assert sorted((e["worker"], e["number"]) for e in free.entries()) == [
    (i, j) for i in range(charging.WORKERS) for j in range(charging.CHARGES)
  ]
  spent = capped.spending(REPLACE_SPECIAL)
  assert spent.charges == 5
  assert spent.epsilon(DELTA) <= cap.max_epsilon


@pytest.mark.slow
def test_the_same_rows_are_charged_once_under_two_names_at_once(tmp_path):
  subprocess.run(
    [sys.executable, two_names.__file__, str(tmp_path)],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    check=True,
    timeout=100,
  )
  for number in range(two_names.ROUNDS):
    ledgers = (Ledger(n, tmp_path / str(number)) for n in two_names.NAMES)
    assert sum(len(ledger.entries()) for ledger in ledgers) == 1


def test_releases_compose_as_gaussians(ledger):
  spent = ledger.spending(REPLACE_SPECIAL)
  assert (spent.charges, spent.epsilon(DELTA)) == (0, 0.0)
  plans = [plan(0.5), plan(2.0, 1.0), plan(1.0, 4.0, order="independent")]
  plans.append(plan(3.0, num_draws=5))
  for each in plans:
    ledger.charge(Charge.of_plan(each, NoiseSource()))
  sigma = {e: plan(e).noise_multipliers[e] for e in (0.5, 1.0, 2.0, 3.0, 4.0)}
  paying = [sigma[0.5], sigma[2], sigma[1], sigma[4]] + [sigma[3]] * 5
  expected = sum(s**-2 for s in paying) ** -0.5
  spent = ledger.spending(REPLACE_SPECIAL)
  assert spent.charges == 4
  assert spent.noise_multiplier() == pytest.approx(expected, rel=1e-12)
  assert spent.noise_multiplier() <= expected


class TestChargeComesFirst:
  def test_a_crash_at_the_first_draw_costs_budget(
    self, train_cache, monkeypatch
  ):
    def crash(*args):
      raise MemoryError

    monkeypatch.setattr(NoiseSource, "words", crash)
    with pytest.raises(MemoryError):
      train(train_cache)
    spent = cache_ledger(train_cache, None).spending(REPLACE_SPECIAL)
    assert spent.epsilon(DELTA) == pytest.approx(1.0, rel=1e-6)

  def test_a_ledger_that_cannot_be_written_releases_nothing(
    self, train_cache, ledger_dir, draws
  ):
    ledger_dir.write_text("a file where the folder should be")
    with pytest.raises(RunError, match=r"ledger .* nothing is released"):
      train(train_cache)
    ledger_dir.unlink()
    for room in (0, 300):
      with (
        files_no_larger_than(room),
        pytest.raises(RunError, match=r"cannot be written \(File too large\)"),
      ):
        train(train_cache)
    assert draws == []
    assert cache_ledger(train_cache, None).entries() == []
    (trained,) = train(train_cache)
    (entry,) = cache_ledger(train_cache, None).entries()
    assert trained.ledger_entry == entry["entry"]

  def test_nor_does_a_damaged_ledger(self, train_cache, draws, monkeypatch):
    train(train_cache)
    ledger = cache_ledger(train_cache, None)
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b"1", b"2"))
    draws.clear()
    # It is found before the long way through the cache, too.
    monkeypatch.setattr(type(train_cache), "blocks", pytest.fail)
    with pytest.raises(InputError, match="damaged or edited"):
      train(train_cache)
    assert draws == []


class TestCap:
  def set_cap(self, ledger, epsilon=2.0, relation=REPLACE_SPECIAL):
    cap = Cap(
      max_epsilon=epsilon, max_delta=DELTA, neighboring_relation=relation
    )
    return ledger.set_cap(cap)

  def test_the_later_one_holds_and_both_are_kept(self, ledger):
    assert self.set_cap(ledger, 1.0) is None
    ledger.charge(cost(1.0))
    with pytest.raises(InputError, match="nothing is left"):
      ledger.charge(cost(1.0))
    before = self.set_cap(ledger, 2.0)
    assert before.max_epsilon == 1.0
    ledger.charge(cost(1.0))
    kept = [e.get("max_epsilon", e["kind"]) for e in ledger.entries()]
    assert kept == [1.0, "release", 2.0, "release"]
    assert ledger.spending(REPLACE_SPECIAL).charges == 2

  def test_charges_are_made_together_or_not_at_all(self, ledger):
    self.set_cap(ledger, 2.0)
    before = ledger.path.read_bytes()
    with pytest.raises(InputError, match=r"epsilon 1\.9 .* and epsilon 1\.5"):
      ledger.charge(cost(1.9), cost(1.5))
    assert ledger.path.read_bytes() == before
    entries = ledger.charge(cost(0.5), cost(1.0))
    assert entries == [e["entry"] for e in ledger.entries()[1:]]
    assert [e["epsilons"] for e in ledger.entries()[1:]] == [[0.5], [1.0]]

  def test_what_would_break_it_leaves_no_trace(self, ledger):
    self.set_cap(ledger, 2.0)
    ledger.charge(cost(1.5))
    before = ledger.path.read_bytes()
    sigmas = plan(2.0, 1.5).noise_multipliers
    sigma = (sigmas[2.0] ** -2 - sigmas[1.5] ** -2) ** -0.5
    left = math.floor(accounting.epsilon_of(sigma, DELTA) * 1e4) / 1e4
    for attempt in (
      lambda: ledger.charge(cost(1.5)),
      lambda: ledger.check(cost(1.5)),
    ):
      with pytest.raises(InputError) as refusal:
        attempt()
      assert str(refusal.value) == (
        "epsilon 1.5 at delta 1e-05 (REPLACE_SPECIAL, nested, 1 draw(s):"
        " together 1.5) would break the cap of 'pets', epsilon 2 at"
        " delta 1e-05 (REPLACE_SPECIAL): epsilon 1.5 is spent, and one"
        f" release of epsilon {left:g} at delta 1e-05 (REPLACE_SPECIAL) is"
        " left; ask for less, or raise the cap for all to see with `oneshot-dp"
        " budget set`."
      )
    assert ledger.path.read_bytes() == before
    ledger.charge(cost(left))
    with pytest.raises(InputError, match="would break the cap"):
      ledger.charge(cost(0.1))

  def test_who_loses_the_race_for_the_lock_is_refused(
    self, ledger, monkeypatch
  ):
    """Another release takes the last of the budget just before the lock."""
    self.set_cap(ledger, 1.0)
    flock = fcntl.flock

    def late(descriptor, operation):
      if operation & fcntl.LOCK_EX:
        monkeypatch.setattr(fcntl, "flock", flock)
        Ledger("pets").charge(cost(1.0))
      flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InputError, match="would break the cap"):
      ledger.charge(cost(1.0))
    assert ledger.spending(REPLACE_SPECIAL).charges == 1

  def test_what_no_epsilon_covers_is_refused(self, ledger):
    ledger.charge(Charge.of_baseline())
    ledger.charge(cost(seed=1))
    self.set_cap(ledger)
    for act in (ledger.charge, ledger.check):
      with pytest.raises(InputError, match="a baseline is NOT PRIVATE, and"):
        act(cost(), Charge.of_baseline())
      with pytest.raises(InputError, match="noise from a seed is NOT PRIVATE"):
        act(cost(seed=1))
    assert len(ledger.entries()) == 3

  def test_other_mechanisms_are_capped_too(self, ledger):
    self.set_cap(ledger, 1.0)
    sigma = plan(1.0).noise_multipliers[1.0]

    def count(sigma):
      event, asked = GaussianDpEvent(sigma), "a noisy count"
      counted = dataclasses.replace(cost(), event=event, asked=asked)
      return ledger.charge(dataclasses.replace(counted, kind="count"))

    with pytest.raises(InputError, match="a noisy count would break the cap"):
      count(sigma * 0.999)
    count(sigma)
    (_, entry) = ledger.entries()
    assert entry["kind"] == "count"
    spent = ledger.spending(REPLACE_SPECIAL).noise_multiplier()
    assert spent == pytest.approx(sigma)

  def test_a_cap_that_comes_while_the_cache_is_read(
    self, train_cache, draws, monkeypatch
  ):
    """And the next time, nothing is read."""
    ledger = cache_ledger(train_cache, None)
    blocks = type(train_cache).blocks

    def reading(*args):
      self.set_cap(ledger, 0.5)
      return blocks(*args)

    for read in (reading, pytest.fail):
      monkeypatch.setattr(type(train_cache), "blocks", read)
      with pytest.raises(InputError, match="would break the cap"):
        train(train_cache)
    assert draws == []
    assert [e["kind"] for e in ledger.entries()] == ["cap"]


def train(cache):
  privacy = PrivacyConfig(delta=DELTA)
  asked = make_plan((1.0,), privacy)
  return train_heads(cache, asked, HeadConfig(), privacy, ledger_dir=None)


class TestSameRowsUnderAnotherName:
  def test_they_are_refused(self, ledger):
    def of_rows(digest: str) -> Charge:
      facts = {"private_digest": digest * 32}
      return Charge.of_plan(plan(1.0), NoiseSource(), **facts)

    ledger.charge(of_rows("ab"))
    other = Ledger("cats")
    for act in (other.charge, other.check):
      with pytest.raises(InputError, match=r"were charged to pets-\w+.jsonl"):
        act(of_rows("ab"))
    assert other.entries() == []
    other.charge(of_rows("cd"))
    ledger.charge(of_rows("ab"))

  def test_from_the_arrays_on(self, tmp_path):
    """Renaming the file of features does not begin another budget."""
    rows = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    for name in ("pets", "cats"):
      np.savez(
        tmp_path / f"{name}.npz", embedding=rows, label=np.arange(60) % 3
      )
    pets, cats = (
      import_features(tmp_path / f"{name}.npz", tmp_path / name, num_classes=3)
      for name in ("pets", "cats")
    )
    assert pets.info.dataset != cats.info.dataset
    train(pets)
    with pytest.raises(InputError, match="which calls them 'cats', were"):
      train(cats)

  def test_rows_of_baselines_and_of_counts_are_charged_rows(self, ledger):
    trained, counted = (
      RowSketch.of(np.arange(first, first + 9, dtype=np.uint64))
      for first in (1, 100)
    )
    ledger.charge(Charge.of_baseline(rows=trained))
    ledger.charge(dataclasses.replace(cost(), kind="evaluation", rows=counted))
    for rows in (trained, counted):
      with pytest.raises(InputError, match=r"were charged to pets-\w+.jsonl"):
        Ledger("cats").charge(dataclasses.replace(cost(), rows=rows))


class TestAChargeThatCannotBeWritten:
  """It says if it was charged, and what it says is so."""

  @pytest.fixture
  def ledger(self, tmp_path) -> Ledger:
    made = Ledger("pets", tmp_path)
    made.charge(cost())
    return made

  def test_it_is_found_before_any_work(self, ledger):
    blocked = ledger.path.with_name(f"{ledger.path.name}.head.tmp")
    blocked.mkdir()
    with pytest.raises(RunError, match="cannot be written"):
      ledger.check(cost())

  @pytest.mark.parametrize("call", ["write", "fsync", "replace"])
  def test_it_is_taken_back_with_those_before_it(
    self, ledger, monkeypatch, call
  ):
    before, does, left = ledger.entries(), getattr(os, call), [2]

    def fails_once(*words: object) -> object:
      left[0] -= call != "replace" or ".head" in str(words[-1])
      if left[0] == -1:
        raise OSError(errno.EIO, "Input/output error")
      return does(*words)

    with monkeypatch.context() as patch:
      patch.setattr(os, call, fails_once)
      with pytest.raises(RunError, match="nor charged") as said:
        ledger.charge(cost(), cost(), cost())
    assert "stay" not in str(said.value)
    assert ledger.entries() == before
    assert len(ledger.charge(cost(), cost())) == 2

  def test_or_stays(self, ledger, monkeypatch):
    def fails(*_: object) -> None:
      raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
      for name in ("replace", "ftruncate"):
        patch.setattr(os, name, fails)
      with pytest.raises(RunError, match="was charged, as far as can be told"):
        ledger.charge(cost())
    assert len(ledger.entries()) == 2

  def test_who_is_waited_for(self, ledger, monkeypatch, capsys):
    monkeypatch.setattr(locks, "_PATIENCE", 0.05)
    with locks.exclusive(ledger.path) as held:
      timer = threading.Timer(0.3, fcntl.flock, (held, fcntl.LOCK_UN))
      timer.start()
      ledger.charge(cost())
      timer.join()
    said = capsys.readouterr().err
    assert f"waiting for {ledger.path}, which process {os.getpid()}" in said

  def test_strangers_in_its_folder_stop_nothing(self, ledger):
    """And whatever the umask, its folders are its owner's."""
    (ledger.path.parent / "notes.jsonl").write_bytes(b"\xff\n")
    ledger.charge(cost())
    before = os.umask(0)
    try:
      new = Ledger("pets", ledger.path.parent / "a" / "b")
      new.charge(dataclasses.replace(cost(), rows=None))
    finally:
      os.umask(before)
    for folder in (new.path.parent, new.path.parent.parent):
      assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_many_entries_take_no_time(train_cache, tmp_path, capsys):
  """10,000: a second of CPU time to list, and 0.3 s to check in `train`."""
  ledger = write_long_ledger(train_cache, tmp_path, 10_000)
  before = time.process_time()
  entries = ledger.entries()
  assert len(entries) == 10_000
  assert time.process_time() - before < 1.0  # 0.15 on a calm machine
  before = time.process_time()
  succeeds(
    capsys, "budget", "--cache", train_cache.path, "--ledger-dir", tmp_path
  )
  assert time.process_time() - before < 3.0  # 0.3 s, and runtime type checks
  with ledger.path.open("r+b") as file:  # what was checked is, once it differs
    file.seek(200)
    file.write(b"!")
  with pytest.raises(InputError, match="line 1: the entry was damaged"):
    ledger.entries()
