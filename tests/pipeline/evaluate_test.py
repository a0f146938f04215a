"""Scores of a saved head: exact where labels are public, or paid for."""

import json
import pathlib
import shutil
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.linear_dp.evaluate import accuracy_interval
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.ledger.entries import spent
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.command_line import fails, succeeds
from tests.sample_caches import clusters, write_clusters, write_rows

PAID = ("--private-eval", 2, "--delta", 1e-5)


@pytest.fixture(scope="module")
def head(tmp_path_factory, train_cache):
  """A head that is right about most rows; with the ledger that knows it."""
  folder = tmp_path_factory.mktemp("head")
  words = f"train --cache {train_cache.path} --epsilon 8 --delta 1e-5"
  places = f"--head lamb --out {folder}/head --ledger {folder}/ledger"
  assert main([*words.split(), *places.split()]) == 0
  return folder / "head"


class HardRows(NamedTuple):
  """A cache of rows, and the rows themselves."""

  path: pathlib.Path
  embedding: np.ndarray
  label: np.ndarray


@pytest.fixture(scope="module")
def hard(tmp_path_factory) -> HardRows:
  """600 test rows that are not all easy."""
  path = tmp_path_factory.mktemp("caches") / "hard"
  embedding, label = clusters((150,) * 4, seed=6, scatter=3.0)
  write_rows(path, embedding, label, dataset="tests", split="test")
  return HardRows(path, embedding, label)


@pytest.fixture(scope="module")
def is_right(head, hard) -> np.ndarray:
  """Whether the head is right about each row of `hard`, computed by NumPy."""
  saved = read_head(head).head
  logits = hard.embedding.astype(np.float64) @ saved.kernel.astype(np.float64)
  return (logits + np.asarray(saved.bias)).argmax(axis=1) == hard.label


@pytest.fixture
def evaluate(capsys, head, hard):
  """Returns a function that evaluates the head, and returns its `--json`."""

  def run(*words) -> dict[str, Any]:
    stdout, _ = succeeds(
      capsys, "evaluate", head, "--cache", hard.path, *words, "--json"
    )
    return json.loads(stdout)

  return run


@pytest.mark.parametrize(
  "command",
  [
    "train --epsilon 1 --delta 1e-5 --out {tmp}/h",
    "audit --epsilon 1 --delta 1e-5",
    "evaluate {head} --private-eval 1 --delta 1e-5",
  ],
)
def test_a_ledger_that_cannot_be_written_is_refused_before_rows_are_read(
  capsys, tmp_path, train_cache, head, command
):
  damaged = shutil.copytree(train_cache.path, tmp_path / "damaged")
  for shard in damaged.glob("*.array_record-*"):
    shard.write_bytes(bytes(shard.stat().st_size))
  words = command.format(tmp=tmp_path, head=head).split()

  message = fails(
    capsys,
    *(*words, "--cache", damaged, "--ledger", "/proc/none/ledger"),
    status=1,
  )

  assert message.startswith("/proc/none/ledger cannot be written")


# Public labels: exact scores.


def test_json_has_the_interval_of_the_text(evaluate, capsys, head, hard):
  low, high = evaluate()["top1_interval_95"]
  text, _ = succeeds(capsys, "evaluate", head, "--cache", hard.path)
  assert f"(95 % interval {100 * low:.1f}–{100 * high:.1f})" in text


def test_top5_of_four_classes_is_not_in_json(evaluate):
  assert evaluate()["top5"] is None


def test_exact_accuracies_are_those_of_numpy(evaluate, hard, is_right):
  facts = evaluate()

  recall = [is_right[hard.label == k].mean() for k in range(4)]
  assert facts["top1"] == is_right.mean()
  assert list(facts["recall"].values()) == pytest.approx(recall)
  assert facts["balanced"] == pytest.approx(np.mean(recall))
  assert 0.4 < facts["top1"] < 0.99  # or any answer might be right


def test_exact_scores_are_not_charged(evaluate, ledger_file):
  evaluate()

  assert not ledger_file.exists()


def test_head_that_the_ledger_does_not_know_is_noted(capsys, head, hard):
  _, stderr = succeeds(capsys, "evaluate", head, "--cache", hard.path)

  assert "does not know this head" in stderr


def test_parts_that_the_receipt_compares_need_no_note(
  capsys, tmp_path, train_cache
):
  words = f"train --cache {train_cache.path} --epsilon 8 --delta 1e-5"
  places = f"--head lamb --out {tmp_path}/head --ledger {tmp_path}/lost"
  succeeds(capsys, *words.split(), *places.split(), "--rows", "[:80%]")
  (tmp_path / "lost").unlink()

  _, stderr = succeeds(
    capsys,
    *("evaluate", tmp_path / "head", "--cache", train_cache.path),
    *("--rows", "[80%:]"),
  )

  assert "does not know this head" not in stderr


@pytest.fixture
def renumbered(tmp_path, hard) -> pathlib.Path:
  """The rows of `hard`, whose classes are numbered in another order."""
  order = [2, 0, 3, 1]  # of class 0 is number 2 there
  names = [f"class {order.index(k)}" for k in range(4)]
  path = tmp_path / "renumbered"
  write_rows(
    path,
    hard.embedding,
    np.array(order)[hard.label],
    dataset="tests",
    split="test",
    class_names=tuple(names),
  )
  return path


@pytest.mark.parametrize("words", [(), (*PAID, "--noise-seed", 1)])
def test_classes_in_another_order_are_scored_by_their_names(
  capsys, tmp_path, head, evaluate, renumbered, words
):
  expected = evaluate(*words)

  stdout, _ = succeeds(
    capsys,
    *("evaluate", head, "--cache", renumbered, *words, "--json"),
    *("--ledger", tmp_path / "other" if words else head.parent / "ledger"),
  )

  answer = json.loads(stdout)
  assert answer["top1"] == expected["top1"]
  assert answer["recall"] == expected["recall"]


def test_sweep_with_classes_in_another_order_names_evaluate(
  capsys, tmp_path, train_cache, renumbered
):
  message = fails(
    capsys,
    *("sweep", "--cache", train_cache.path, "--eval-cache", renumbered),
    *("--epsilons", 8, "--delta", 1e-5, "--out", tmp_path / "runs"),
  )

  assert "in different orders: class 0 is 'class 0' and 'class 1'" in message
  assert "`oneshot-dp evaluate` afterwards" in message


def test_two_parts_have_each_row_once(evaluate):
  first = evaluate("--rows", "[:80%]")["num_examples"]
  rest = evaluate("--rows", "[80%:]")["num_examples"]

  assert first + rest == 600
  assert 60 < rest < 180


# Private labels: noisy scores, which are charged.


# σ of the noise on the count of right answers, over 600 rows.
ACCURACY_SD = mu_squared_from_epsilon(2.0, 1e-5) ** -0.5 / 600


def test_noisy_accuracy_has_the_noise_of_its_epsilon(evaluate, is_right):
  facts = evaluate(*PAID)

  assert facts["accuracy_sd"] == pytest.approx(ACCURACY_SD, rel=1e-6)
  assert facts["top1"] != is_right.mean()
  assert abs(facts["top1"] - is_right.mean()) < 6 * ACCURACY_SD


def test_interval_of_a_noisy_accuracy_has_its_noise_and_that_of_a_sample(
  evaluate,
):
  facts = evaluate(*PAID)

  of_sample = accuracy_interval(facts["top1"], facts["num_examples"])
  wider = [of_sample[0] - 1.96 * ACCURACY_SD, of_sample[1] + 1.96 * ACCURACY_SD]
  assert facts["top1_interval_95"] == pytest.approx(wider, abs=1e-5)


def test_noisy_scores_say_nothing_of_single_classes(evaluate):
  facts = evaluate(*PAID)

  assert facts["balanced"] is None
  assert facts["recall"] is None


def test_noisy_accuracy_asked_for_again_is_drawn_and_charged_again(
  evaluate, ledger
):
  first = evaluate(*PAID)
  second = evaluate(*PAID)

  assert first["top1"] != second["top1"]
  cost = Fraction(mu_squared_from_epsilon(2.0, 1e-5))
  assert spent(ledger.entries("tests")) == 2 * cost


def test_noisy_accuracy_is_printed_with_its_charge_and_interval(
  capsys, head, hard
):
  stdout, _ = succeeds(capsys, "evaluate", head, "--cache", hard.path, *PAID)

  assert "noisy counts, charged epsilon 2" in stdout
  assert "95 % interval" in stdout


def test_noisy_accuracy_says_what_the_test_set_has_spent_with_it(
  capsys, head, hard, ledger
):
  words = ["evaluate", head, "--cache", hard.path, *PAID]

  _, first = succeeds(capsys, *words)
  _, second = succeeds(capsys, *words)

  assert f"'tests' is charged epsilon 2 in total, in {ledger.path}" in first
  assert "'tests' is charged epsilon 2 now, and 2.9" in second


def test_seeded_scores_state_no_charge(capsys, head, hard):
  words = ["evaluate", head, "--cache", hard.path, *PAID, "--noise-seed", 3]

  stdout, stderr = succeeds(capsys, *words)

  assert "by a seed), NOT PRIVATE" in stdout
  assert "charged epsilon" not in stdout + stderr


def test_rows_that_were_scored_with_noise_get_no_exact_score(
  capsys, evaluate, head, hard
):
  evaluate(*PAID)

  line = fails(capsys, "evaluate", head, "--cache", hard.path)

  assert "more than half of the rows" in line
  assert "score them with --private-eval." in line


@pytest.mark.parametrize("part", ["", "[:80%]"])
def test_noisy_accuracy_of_units_counts_units_with_noise(
  capsys, tmp_path, head, part
):
  users = {"unit_id": np.arange(400) // 2, "dataset": "users"}
  write_clusters(tmp_path / "u", (100,) * 4, seed=5, **users)
  words = ["evaluate", head, "--cache", tmp_path / "u", "--private-eval", 8]

  stdout, _ = succeeds(
    capsys, *words, "--delta", 1e-5, "--json", "--rows", part
  )

  facts = json.loads(stdout)
  assert facts["privacy_unit"] == "user"
  assert facts["top1"] > 0.8
  assert 100 < facts["num_examples"] < 300


def test_seeded_scores_are_the_same_again_and_not_private(evaluate):
  first = evaluate(*PAID, "--noise-seed", 3)
  second = evaluate(*PAID, "--noise-seed", 3)

  assert first == second
  assert first["private"] is False


def test_seeded_scores_are_noted_and_charged_nothing(evaluate, ledger):
  evaluate(*PAID, "--noise-seed", 3)

  assert [entry.mu_squared for entry in ledger.entries()] == [None]


class TestDryRun:
  def test_a_private_evaluation_states_cost_and_noise_and_charges_nothing(
    self, capsys, head, hard, ledger, tmp_path
  ):
    words = ["evaluate", head, "--cache", hard.path, *PAID]
    succeeds(capsys, *words)
    before = ledger.path.read_bytes()

    out, _ = succeeds(capsys, *words, "--dry-run", "--out", tmp_path / "a.json")
    found = json.loads(succeeds(capsys, *words, "--dry-run", "--json")[0])

    assert found["accuracy_sd"] == pytest.approx(ACCURACY_SD)
    assert f"noise of ±{196 * ACCURACY_SD:.3g} points" in out
    assert "'tests' would be charged epsilon 2 now, and 2.9" in out
    assert "top1" not in found
    assert ledger.path.read_bytes() == before
    assert not (tmp_path / "a.json").exists()

  def test_the_noise_of_a_part_is_that_of_the_evaluation(
    self, capsys, head, hard
  ):
    words = ["evaluate", head, "--cache", hard.path, *PAID, "--rows", "[:80%]"]

    planned = json.loads(succeeds(capsys, *words, "--dry-run", "--json")[0])
    found = json.loads(succeeds(capsys, *words, "--json")[0])

    assert planned["accuracy_sd"] == pytest.approx(
      found["accuracy_sd"], rel=0.1
    )
    # The rows of a part are a noisy count, too: half of the budget each, and
    # both noises add up.
    assert planned["accuracy_sd"] == pytest.approx(2 * ACCURACY_SD / 0.8)

  def test_what_would_break_the_cap_fails_as_the_evaluation_itself(
    self, capsys, head, hard, ledger
  ):
    cap = ["--max-epsilon", 1, "--max-delta", 1e-5]
    succeeds(capsys, "budget", "--cache", hard.path, *cap)
    words = ["evaluate", head, "--cache", hard.path, *PAID]

    planned = fails(capsys, *words, "--dry-run")

    assert "would break the cap of 'tests'" in planned
    assert planned == fails(capsys, *words)

  def test_what_was_charged_and_stopped_is_said_to_cost_nothing_more(
    self, capsys, head, hard, ledger, monkeypatch
  ):
    cap = ["--max-epsilon", 2, "--max-delta", 1e-5]
    succeeds(capsys, "budget", "--cache", hard.path, *cap)
    words = ["evaluate", head, "--cache", hard.path, *PAID]

    def stop(*arguments):
      raise KeyboardInterrupt

    with monkeypatch.context() as patch:
      patch.setattr(Ledger, "deliver", stop)
      fails(capsys, *words, status=130)
    out, _ = succeeds(capsys, *words, "--dry-run")

    assert "'tests' was already charged epsilon 2 in total" in out
    assert "without a new charge" in out

  def test_large_noise_is_warned_of(self, capsys, head, tmp_path):
    write_clusters(tmp_path / "few", (5,) * 4, seed=7, dataset="few")
    words = ["evaluate", head, "--cache", tmp_path / "few", *PAID]

    out, _ = succeeds(capsys, *words, "--dry-run")

    assert "WARNING: noise of ±" in out

  def test_public_labels_are_checked_and_not_scored(
    self, capsys, head, hard, ledger
  ):
    words = ["evaluate", head, "--cache", hard.path, "--dry-run"]

    out, _ = succeeds(capsys, *words)

    assert "exact, as the labels are public: no charge" in out
    assert "top-1" not in out
    assert not ledger.path.exists()

  def test_training_rows_are_refused_as_in_the_evaluation(
    self, capsys, head, train_cache
  ):
    words = ["evaluate", head, "--cache", train_cache.path, "--dry-run"]
    assert "was trained on rows of" in fails(capsys, *words)
