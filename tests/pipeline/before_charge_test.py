"""What is tried, said and refused before a budget is spent."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.linear_dp.accounting import epsilon_of, format_rounded_up
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.train import describe_few_rows
from oneshot_dp.pipeline.ledger.entries import spent
from tests.pipeline.command_line import (
  fails,
  succeeds,
)
from tests.pipeline.sample_heads import mu2_of
from tests.sample_caches import DIM, clusters, write_clusters, write_rows

# Whole runs, each of a tenth of a second or more.
pytestmark = pytest.mark.slow

DELTA = 1e-5


class TestRehearsal:
  """Everything that is made after the charge is made once before it."""

  @pytest.mark.long
  @pytest.mark.parametrize(
    "flags",
    [
      "",
      "--num-draws 3 --baseline",
      "--private-eval 2",
      "--noise-seed 1 --baseline",
    ],
  )
  def test_a_sweep_of_all_heads_is_shown(self, capsys, place, ledger, flags):
    """Also a head that was added since: all of `HEADS` are plotted."""
    write_clusters(Path("t"), (20,) * 4, seed=4, dataset="tests")
    words = f"SWEEP --eval-cache t --epsilons 1 8 --head {' '.join(HEADS)}"
    succeeds(capsys, *place(f"{words} {flags} --dry-run --out s"))
    assert not ledger.path.exists()

  @pytest.mark.long
  def test_the_rehearsed_run_is_the_one_that_is_made(
    self, capsys, place, ledger
  ):
    words = f"SWEEP --epsilons 1 8 --head {' '.join(HEADS)} --out s"
    succeeds(capsys, *place(words))
    heads = json.loads(Path("s/results.json").read_text())["heads"]
    assert {head["head"] for head in heads} == set(HEADS)
    assert len(ledger.entries()) == len(HEADS)

  @pytest.mark.parametrize(
    "broken",
    [
      "oneshot_dp.pipeline.report.rehearsal.pictures_of",
      "oneshot_dp.pipeline.report.rehearsal.render_page",
      "oneshot_dp.pipeline.report.rehearsal.table",
    ],
  )
  def test_what_cannot_be_made_is_found_before_the_charge(
    self, capsys, place, ledger, monkeypatch, broken
  ):
    def fail(*arguments, **options):
      raise ZeroDivisionError

    monkeypatch.setattr(broken, fail)
    words = place("SWEEP --epsilons 1 --head lamb --out s")
    with pytest.raises(ZeroDivisionError):
      succeeds(capsys, *words)
    assert not ledger.path.exists()


class TestWarnings:
  def test_too_few_rows_are_said_before_the_charge(
    self, capsys, place, ledger, monkeypatch
  ):
    write_few_rows(Path("few"))
    charge = type(ledger).charge

    def charge_after_warning(self, *arguments, **options):
      assert "WARNING: about 3 rows of each class" in capsys.readouterr().err
      return charge(self, *arguments, **options)

    monkeypatch.setattr(type(ledger), "charge", charge_after_warning)
    words = "TRAIN --cache few --epsilon 1 --head lamb --out h"
    succeeds(capsys, *place(words))
    assert ledger.path.exists()

  @pytest.mark.parametrize(
    ("rows_of_class", "expected"),
    [(11, "little better than chance"), (12, "weak"), (44, "weak"), (45, "")],
  )
  def test_heads_are_called_weak_below_twelve_sigma_and_useless_below_three(
    self, rows_of_class, expected
  ):
    noise_multiplier = float(mu2_of(1.0)) ** -0.5  # 3.73

    said = describe_few_rows(float(rows_of_class), noise_multiplier)

    assert bool(said) == bool(expected)
    assert expected in said

  def test_of_units_it_says_how_many_are_too_few_and_not_how_many_there_are(
    self, capsys, place
  ):
    x, y = clusters((500,) * 4)
    said = set()
    for num_units in 7, 8:
      folder = Path(f"c{num_units}")
      write_rows(folder, x, y, unit_id=np.arange(len(y)) % num_units)
      words = place(f"TRAIN --cache {folder} --epsilon 1 --dry-run --out h")
      said.add(succeeds(capsys, *words)[0])

    (out,) = said
    assert "fewer than about 45 such units, however many rows they" in out

  def test_one_class_is_refused_and_not_charged(self, capsys, place, ledger):
    write_clusters(Path("one"), (50,))
    line = fails(capsys, *place("TRAIN --cache one --epsilon 1 --out h"))
    assert "has one class" in line
    assert not ledger.path.exists()

  def test_names_that_differ_by_capitals_are_named(self, capsys, place):
    write_clusters(Path("c"), class_names=("Cats", "cats", "dogs", "rats"))
    words = place("TRAIN --cache c --epsilon 1 --dry-run --out h")
    out, _ = succeeds(capsys, *words)
    assert "WARNING: 'Cats' and 'cats' are two classes" in out


class TestDryRun:
  def test_it_states_the_cost_and_changes_nothing(
    self, capsys, place, ledger, train_cache
  ):
    cap = f"budget --cache {train_cache.path} --max-epsilon 3 --max-delta 1e-5"
    succeeds(capsys, *cap.split())
    before = ledger.path.read_bytes()
    words = place("TRAIN --epsilon 2 --dry-run --out h")
    out, _ = succeeds(capsys, *words)
    assert (
      "'clusters' would be charged epsilon 2 in total; cap: epsilon 3" in out
    )
    assert "noise multiplier 1." in out
    assert "at the largest epsilon" not in out  # there is one
    assert "; after it enough is left for one more" in out
    facts = json.loads(succeeds(capsys, *words, "--json")[0])
    assert facts["costs"][0]["dataset"] == "clusters"
    assert ledger.path.read_bytes() == before
    assert not Path("h").exists()

  def test_a_run_over_the_cap_fails_as_the_run_itself(
    self, capsys, place, train_cache
  ):
    cap = f"budget --cache {train_cache.path} --max-epsilon 1 --max-delta 1e-5"
    succeeds(capsys, *cap.split())
    words = place("TRAIN --epsilon 2 --out h")

    planned = fails(capsys, *words, "--dry-run")

    assert "would break the cap of 'clusters'" in planned
    assert planned == fails(capsys, *words)

  def test_a_place_that_is_taken_fails_as_the_run_itself(self, capsys, place):
    Path("h").mkdir()
    words = place("TRAIN --epsilon 2 --out h")

    planned = fails(capsys, *words, "--dry-run")

    assert planned == "h already exists; choose another place."
    assert planned == fails(capsys, *words)

  def test_folders_on_the_way_to_its_output_are_removed_again(
    self, capsys, place
  ):
    words = place("TRAIN --epsilon 2 --dry-run --out runs/today/h")

    succeeds(capsys, *words)

    assert not Path("runs").exists()


class TestCost:
  """`in total` is everything that the data set was charged."""

  def test_earlier_charges_count(self, capsys, place, ledger):
    succeeds(capsys, *place("TRAIN --epsilon 1 --head lamb --out a"))
    _, err = succeeds(capsys, *place("TRAIN --epsilon 1 --head lamb --out b"))
    total = format_rounded_up(epsilon_of(float(2 * mu2_of(1.0)), DELTA))
    assert f"is charged epsilon 1 now, and {total} in total" in err

  def test_accuracies_on_the_same_data_set_count(self, capsys, place, ledger):
    write_clusters(Path("t"), (40,) * 4, seed=4, split="test")
    words = "SWEEP --eval-cache t --epsilons 1 --private-eval 1 --head lamb"
    out, err = succeeds(capsys, *place(f"{words} --out s"))
    mu_squared = spent(ledger.entries("clusters"))
    assert mu_squared == mu2_of(1.0) + mu2_of(1.0)
    total = format_rounded_up(epsilon_of(float(mu_squared), DELTA))
    assert f"'clusters' is charged epsilon {total} in total" in err
    assert f"epsilon = {total} at delta" in out
    results = json.loads(Path("s/results.json").read_text())
    assert Fraction(results["epsilon"]) > 1


class TestTypedAgain:
  def test_a_finished_run_has_nothing_to_do(self, capsys, place, ledger):
    words = place("TRAIN --epsilon 1 --head lamb --out h")
    succeeds(capsys, *words)
    before = ledger.path.read_bytes()
    out, _ = succeeds(capsys, *words)
    assert out == "h is finished already: nothing to do\n"
    assert ledger.path.read_bytes() == before

  def test_a_finished_sweep_whose_test_set_is_private_now_has_nothing_to_do(
    self, capsys, place, eval_cache
  ):
    words = place("SWEEP --epsilons 1 --head lamb --out s")
    succeeds(capsys, *words)
    cap = ["--max-epsilon", 2, "--max-delta", 1e-5]
    succeeds(capsys, "budget", "--cache", eval_cache.path, *cap)

    out, _ = succeeds(capsys, *words)

    assert out == "s is finished already: nothing to do\n"
    refusal = fails(capsys, *words, "--out", "another")
    assert "the test set overlaps the private rows" in refusal

  def test_another_run_into_its_place_is_refused(self, capsys, place):
    words = place("TRAIN --epsilon 1 --head lamb --out h")
    succeeds(capsys, *words)
    line = fails(capsys, *words, "--epsilon", "2")
    assert "h already exists" in line


def test_the_rows_that_a_head_was_trained_on_are_refused_without_its_ledger(
  capsys, place, train_cache
):
  succeeds(
    capsys, *place("TRAIN --rows [:80%] --epsilon 8 --head lamb --out h")
  )
  words = ["evaluate", "h", "--cache", train_cache.path]
  Path("state/ledger.sqlite").unlink()
  assert "h was trained on rows of" in fails(capsys, *words)
  assert "h was trained on rows of" in fails(capsys, *words, "--rows", "[70%:]")
  succeeds(capsys, *words, "--rows", "[80%:]")


def test_other_rows_of_one_description_are_scored_if_the_ledger_knows_the_head(
  capsys, place, train_cache
):
  # As two folds of one data set, which are as many.
  succeeds(capsys, *place("TRAIN --epsilon 8 --head lamb --out h"))
  fold = write_clusters(Path("fold"), seed=3)
  assert fold.info.fingerprint == train_cache.info.fingerprint
  words = ["evaluate", "h", "--cache", "fold"]

  succeeds(capsys, *words)

  Path("state/ledger.sqlite").unlink()
  assert "by its receipt" in fails(capsys, *words)


def test_training_rows_in_another_order_are_known_by_content(
  capsys, place, train_cache
):
  succeeds(capsys, *place("TRAIN --epsilon 8 --head lamb --out h"))
  x, y = clusters()
  moved = write_rows(Path("moved"), x[::-1], y[::-1], num_classes=4)
  assert moved.info.fingerprint == train_cache.info.fingerprint

  refusal = fails(capsys, "evaluate", "h", "--cache", "moved")

  assert "more than half of the rows of --cache" in refusal


def test_a_class_without_test_rows_is_named(capsys, place):
  succeeds(capsys, *place("TRAIN --epsilon 8 --head lamb --out h"))
  x, y = clusters((20,) * 4, seed=1)
  write_rows(Path("t"), x[y < 3], y[y < 3], num_classes=4, split="test")
  out, _ = succeeds(capsys, "evaluate", "h", "--cache", "t")
  assert "no test rows: class 3" in out
  assert "top-5" not in out


def test_a_sweep_says_how_many_classes_have_no_test_rows(
  capsys, place, train_cache
):
  x, y = clusters((20,) * 4, seed=1)
  write_rows(Path("t"), x[y < 3], y[y < 3], num_classes=4, split="test")
  words = place("--eval-cache t --epsilons 8 --delta 1e-5 --head lamb --out r")

  out, _ = succeeds(capsys, "sweep", "--cache", train_cache.path, *words)

  assert "no test rows: 1 of 4 classes; `balanced` is the mean of" in out


def write_few_rows(folder):
  """Three rows of each of ten classes."""
  rows = np.random.default_rng(0).standard_normal((30, DIM)).astype("f4")
  write_rows(folder, rows, np.arange(30) % 10, dataset="few")


@pytest.mark.parametrize(
  "step", ["runs.run._train_heads", "ledger.staged_output.DiskOutput.publish"]
)
def test_a_dry_run_says_that_what_was_charged_and_stopped_goes_on_for_nothing(
  place, capsys, monkeypatch, train_cache, step
):
  """Also where all of the cap is spent, and another run is refused."""
  cap = ["--max-epsilon", 2, "--max-delta", 1e-5]
  succeeds(capsys, "budget", "--cache", train_cache.path, *cap)
  words = place("TRAIN --epsilon 2 --head lamb --out h")

  def stop(*arguments):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(f"oneshot_dp.pipeline.{step}", stop)
    fails(capsys, *words, status=130)
  out, _ = succeeds(capsys, *words, "--dry-run")
  other = fails(capsys, *words, "--dry-run", "--epsilon", "1")

  assert "'clusters' was already charged epsilon 2 in total" in out
  assert "the stopped run resumes without a new charge" in out
  assert "another by its epsilons" in other


def test_a_rehearsal_reads_no_private_row(place, capsys, monkeypatch):
  """It is made of public facts: no head is trained for it."""
  monkeypatch.setattr(
    "oneshot_dp.pipeline.runs.run.train", lambda *_, **__: 1 / 0
  )
  succeeds(capsys, *place("TRAIN --epsilon 1 --dry-run --out h"))
