"""`budget` and `budget set` as commands."""

import math
import re
import subprocess
import sys

from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.pipeline.ledger.cap import cap_of
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline.command_line import SWEEP, TRAIN, fails, succeeds

SET = "budget set --cache {train} --max-epsilon 2 --max-delta 1e-5"
SHOW = "budget --cache {train}"


class TestShow:
  def test_it_adds_up(self, place, capsys, tmp_path):
    succeeds(capsys, *place(TRAIN), "--out", tmp_path / "a")
    succeeds(capsys, *place(TRAIN), "--out", tmp_path / "b")
    seeded = ["--noise-seed", 1, "--out", tmp_path / "c"]
    succeeds(capsys, *place(TRAIN), *seeded)
    out, _ = succeeds(capsys, *place("budget --cache {train}"))
    assert out.count("1 draw(s) of epsilon 1 at delta 1e-05") == 3
    sigma = accounting.noise_multiplier(1.0, 1e-5) / 2**0.5
    spent = accounting.printable(accounting.epsilon_of(sigma, 1e-5))
    reading = f"odometer: epsilon = {spent} at delta = 1e-05, REPLACE_SPECIAL"
    assert reading in out
    only = "a guarantee only if such a cap was set before any of it"
    assert only in out
    assert "REPLACE_ONE" in out
    assert "1 of 3 entries let out results that are NOT PRIVATE" in out
    succeeds(capsys, *place(SET.replace("2", "9", 1)))
    out, _ = succeeds(capsys, *place(SHOW))
    assert reading in out
    assert only not in out
    out, _ = succeeds(capsys, *place(SHOW), "--delta", 1e-9)
    assert "at delta = 1e-09, REPLACE_SPECIAL" in out
    succeeds(capsys, *place(SET.replace("2", "9", 1).replace("1e-5", "1e-4")))
    out, _ = succeeds(capsys, *place(SHOW))
    assert "at delta = 0.0001, REPLACE_SPECIAL" in out

  def test_it_does_not_wait_for_jax_or_scipy(self, place, capsys):
    """Of Gaussian releases on all rows, and where no cap is set."""
    succeeds(capsys, *place(TRAIN))
    script = """
import sys
from oneshot_dp.pipeline.cli import main
assert main(sys.argv[1:]) == 0
assert not {"jax", "scipy.special", "scipy.stats"} & set(sys.modules)
"""
    argv = [sys.executable, "-c", script, *place(SHOW)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "odometer: epsilon = 1 at delta = 1e-05" in done.stdout

  def test_one_line_for_each_entry(self, place, capsys, train_cache):
    succeeds(capsys, *place(SWEEP), "--num-draws", 3)
    succeeds(
      capsys,
      *place(TRAIN.replace("{out}", "{tmp}/again")),
      *("--noise-seed", 1, "--neighboring-relation", "replace-one"),
    )
    succeeds(capsys, *place(SET))
    out, _ = succeeds(capsys, *place(SHOW))
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
    entries = cache_ledger(train_cache, None).entries()
    names = [e["entry"][:12] for e in entries]
    cache = f"cache {train_cache.fingerprint[:12]}"
    _, sweep, seeded, cap, *_ = out.splitlines()
    assert re.fullmatch(
      rf"{time}  release of split train: nested, 3 draw\(s\) of epsilon 2, 1 at"
      rf" delta 1e-05, together [\d.]+ \(REPLACE_SPECIAL\); private, noise:"
      rf" os.urandom; {cache}; entry {names[0]}",
      sweep,
    )
    assert re.fullmatch(
      rf"{time}  release of split train: nested, 1 draw\(s\) of epsilon 1 at"
      rf" delta 1e-05, together 1 \(REPLACE_ONE\); NOT PRIVATE, noise:"
      rf" seeded: NOT PRIVATE; {cache}; entry {names[1]}",
      seeded,
    )
    assert re.fullmatch(
      rf"{time}  cap set to epsilon 2 at delta 1e-05 \(REPLACE_SPECIAL\);"
      rf" entry {names[2]}",
      cap,
    )
    assert "1 of 2 entries let out results that are NOT PRIVATE" in out

  def test_nothing_yet_and_a_cap_alone(self, place, capsys):
    out, _ = succeeds(capsys, *place(SHOW))
    assert (
      "nothing has been released: there is no such ledger yet; what another"
      " folder's ledgers (--ledger-dir) were charged is not known here"
    ) in out
    succeeds(capsys, *place(SET))
    out, _ = succeeds(capsys, *place(SHOW))
    assert "nothing has been released" in out
    assert "under the cap, one release of epsilon 2 at delta 1e-05" in out

  def test_a_ledger_that_was_cut_short(self, place, capsys, train_cache):
    succeeds(capsys, *place(TRAIN))
    path = cache_ledger(train_cache, None).path
    path.write_bytes(b"")
    argv = [*place(TRAIN), "--out", path.parent / "again"]
    for command in (place(SHOW), place(SET), argv):
      line = fails(capsys, *command)
      assert f"{path}: 2 of 2 entries are missing from its end" in line

  def test_a_folder_where_the_ledger_should_be(
    self, place, capsys, train_cache
  ):
    cache_ledger(train_cache, None).path.mkdir(parents=True)
    line = fails(capsys, *place("budget --cache {train}"), status=1)
    assert "cannot be read: Is a directory." in line


class TestSet:
  def test_it_says_what_is_spent_and_left(self, place, capsys):
    succeeds(capsys, *place(TRAIN))
    out, err = succeeds(capsys, *place(SET))
    sigma = [accounting.noise_multiplier(e, 1e-5) for e in (2.0, 1.0)]
    left = (sigma[0] ** -2 - sigma[1] ** -2) ** -0.5
    epsilon = math.floor(accounting.epsilon_of(left, 1e-5) * 1e4) / 1e4
    assert out == (
      "cap: epsilon 2 at delta 1e-05 (REPLACE_SPECIAL); epsilon 1 is spent,"
      f" one release of epsilon {epsilon} at delta 1e-05 (REPLACE_SPECIAL) is"
      " left\n"
    )
    assert err.startswith("warning: the cap was set after the first")
    out, err = succeeds(capsys, *place(SET.replace("2", "0.5", 1)))
    assert "more than this is spent already; nothing further" in err
    assert out.endswith("nothing is left\n")

  def test_what_would_break_it_writes_nothing(
    self, place, capsys, tmp_path, train_cache
  ):
    succeeds(capsys, *place(SET.replace("2", "0.5", 1)))
    line = fails(capsys, *place(TRAIN))
    assert "would break the cap of 'pets', epsilon 0.5 at" in line
    assert "one release of epsilon 0.5 at delta 1e-05" in line
    assert not (tmp_path / "out").exists()
    assert len(cache_ledger(train_cache, None).entries()) == 1

  def test_a_baseline_is_told_before_and_after(self, place, capsys):
    succeeds(capsys, *place(SWEEP), "--baseline")
    out, _ = succeeds(capsys, *place(SHOW))
    assert "  baseline of split train; NOT PRIVATE, noise: none:" in out
    assert "cap: none; see `oneshot-dp budget set --help`" in out
    _, err = succeeds(capsys, *place(SET.replace("2", "8", 1)))
    assert "1 entries let out results that are NOT PRIVATE; no cap" in err

  def test_raising_it_is_said_loudly(self, place, capsys):
    succeeds(capsys, *place(SET))
    _, err = succeeds(capsys, *place(SET.replace("2", "3", 1)))
    assert err == (
      "warning: THE CAP WAS RAISED, from epsilon 2 at delta 1e-05"
      " (REPLACE_SPECIAL) to epsilon 3 at delta 1e-05 (REPLACE_SPECIAL);"
      " the ledger keeps both. If results were seen before, the new cap is no"
      " proven guarantee: they may have led to it.\n"
    )
    _, err = succeeds(capsys, *place(SET))
    assert err == ""
    out, _ = succeeds(capsys, *place(SHOW))
    assert out.count("cap set to epsilon 2 at") == 2
    assert out.count("CAP RAISED to epsilon 3 at") == 1

  def test_a_part_for_random_batches(self, place, capsys, train_cache):
    out, _ = succeeds(capsys, *place(SET), "--sampling-delta", 2e-6)
    assert "at delta 1e-05, 2e-06 of it for random batches (REPLACE_" in out
    cap = cap_of(cache_ledger(train_cache, None).entries())
    assert cap is not None
    assert cap.sampling_delta == 2e-6
    _, err = succeeds(capsys, *place(SET), "--sampling-delta", 3e-6)
    assert "THE CAP WAS RAISED" in err

  def test_another_relation(self, place, capsys):
    relation = ["--neighboring-relation", "replace-one"]
    succeeds(capsys, *place(SET), *relation)
    line = fails(capsys, *place(TRAIN.replace("epsilon 1", "epsilon 1.9")))
    assert "epsilon 2 at delta 1e-05 (REPLACE_ONE)" in line
    assert "(REPLACE_SPECIAL) is left" in line
    succeeds(capsys, *place(TRAIN.replace("epsilon 1", "epsilon 0.9")))
