"""Scores of a saved head: exact where labels are public, or paid for."""

import json
from fractions import Fraction

import numpy as np
import pytest

from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
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


@pytest.fixture
def hard(tmp_path):
  """600 test rows that are not all easy."""
  rows = clusters((150,) * 4, seed=6, scatter=3.0)
  write_rows(tmp_path / "hard", *rows, dataset="tests", split="test")
  return tmp_path / "hard", rows


def right(head, rows):
  saved = read_head(head).head
  (x, y) = rows
  logits = x.astype(np.float64) @ np.asarray(saved.kernel, np.float64)
  return (logits + np.asarray(saved.bias)).argmax(axis=1) == y


def test_exact_accuracies_are_those_of_numpy(capsys, head, hard, ledger_file):
  path, rows = hard
  words = ["evaluate", head, "--cache", path, "--json"]
  out, err = succeeds(capsys, *words)
  found = json.loads(out)
  hits = right(head, rows)
  assert found["top1"] == hits.mean()
  assert 0.4 < found["top1"] < 0.99
  recall = [hits[rows[1] == k].mean() for k in range(4)]
  assert list(found["recall"].values()) == pytest.approx(recall)
  assert found["balanced"] == pytest.approx(np.mean(recall))
  assert "does not know this head" in err
  assert not ledger_file.exists()
  first, rest = (
    json.loads(succeeds(capsys, *words, "--rows", part)[0])["num_examples"]
    for part in ("[:80%]", "[80%:]")
  )
  assert first + rest == 600
  assert 60 < rest < 180


def test_private_labels_are_paid_for_and_noisy(capsys, head, hard, ledger_file):
  path, rows = hard
  words = ["evaluate", head, "--cache", path, *PAID]
  found = [json.loads(succeeds(capsys, *words, "--json")[0]) for _ in range(2)]
  exact = right(head, rows).mean()
  assert found[0]["top1"] != found[1]["top1"]  # each is a release of its own
  for each in found:
    sd = (
      mu_squared_from_epsilon(2.0, 1e-5) ** -0.5 / 600
    )  # of one head: σ over n
    assert each["accuracy_sd"] == pytest.approx(sd, rel=1e-6)
    assert abs(each["top1"] - exact) < 6 * sd
    assert each["balanced"] is None
    assert each["recall"] is None
  entries = Ledger(ledger_file).entries("tests")
  assert spent(entries) == 2 * Fraction(mu_squared_from_epsilon(2.0, 1e-5))
  out, _ = succeeds(capsys, *words)
  assert "noisy counts, charged epsilon 2" in out
  assert "95 % interval" in out
  line = fails(capsys, "evaluate", head, "--cache", path)
  assert "more than half of the rows" in line
  assert "score them with --private-eval." in line


@pytest.mark.parametrize("part", ["", "[:80%]"])
def test_units_and_parts(capsys, tmp_path, head, part):
  users = {"unit_id": np.arange(400) // 2, "dataset": "users"}
  write_clusters(tmp_path / "u", (100,) * 4, seed=5, **users)
  words = ["evaluate", head, "--cache", tmp_path / "u", "--private-eval", 8]
  out, _ = succeeds(capsys, *words, "--delta", 1e-5, "--json", "--rows", part)
  found = json.loads(out)
  assert found["privacy_unit"] == "user"
  assert found["top1"] > 0.8
  assert 100 < found["num_examples"] < 300  # a noisy count, of users


def test_a_seed_is_not_private(capsys, head, hard, ledger_file):
  words = ["evaluate", head, "--cache", hard[0], *PAID, "--noise-seed", 3]
  outs = [succeeds(capsys, *words, "--json")[0] for _ in range(2)]
  assert outs[0] == outs[1]
  assert json.loads(outs[0])["private"] is False
  assert [e.mu_squared for e in Ledger(ledger_file).entries()] == [None, None]


class TestDryRun:
  def test_a_private_evaluation_states_cost_and_noise_and_charges_nothing(
    self, capsys, head, hard, ledger, tmp_path
  ):
    words = ["evaluate", head, "--cache", hard[0], *PAID]
    succeeds(capsys, *words)
    before = ledger.path.read_bytes()

    out, _ = succeeds(capsys, *words, "--dry-run", "--out", tmp_path / "a.json")
    found = json.loads(succeeds(capsys, *words, "--dry-run", "--json")[0])

    sd = mu_squared_from_epsilon(2.0, 1e-5) ** -0.5 / 600
    assert found["accuracy_sd"] == pytest.approx(sd)
    assert f"noise of ±{196 * sd:.3g} points" in out
    assert "'tests' would be charged epsilon 2 now, and 2.9" in out
    assert "top1" not in found
    assert ledger.path.read_bytes() == before
    assert not (tmp_path / "a.json").exists()

  def test_the_noise_of_a_part_is_that_of_the_evaluation(
    self, capsys, head, hard
  ):
    words = ["evaluate", head, "--cache", hard[0], *PAID, "--rows", "[:80%]"]

    planned = json.loads(succeeds(capsys, *words, "--dry-run", "--json")[0])
    found = json.loads(succeeds(capsys, *words, "--json")[0])

    assert planned["accuracy_sd"] == pytest.approx(
      found["accuracy_sd"], rel=0.1
    )

  def test_what_would_break_the_cap_fails_as_the_evaluation_itself(
    self, capsys, head, hard, ledger
  ):
    cap = ["--max-epsilon", 1, "--max-delta", 1e-5]
    succeeds(capsys, "budget", "--cache", hard[0], *cap)
    words = ["evaluate", head, "--cache", hard[0], *PAID]

    planned = fails(capsys, *words, "--dry-run")

    assert "would break the cap of 'tests'" in planned
    assert planned == fails(capsys, *words)

  def test_what_was_charged_and_stopped_is_said_to_cost_nothing_more(
    self, capsys, head, hard, ledger, monkeypatch
  ):
    cap = ["--max-epsilon", 2, "--max-delta", 1e-5]
    succeeds(capsys, "budget", "--cache", hard[0], *cap)
    words = ["evaluate", head, "--cache", hard[0], *PAID]

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

    assert "warning: noise of ±" in out

  def test_public_labels_are_checked_and_not_scored(
    self, capsys, head, hard, ledger
  ):
    words = ["evaluate", head, "--cache", hard[0], "--dry-run"]

    out, _ = succeeds(capsys, *words)

    assert "exact, as the labels are public: no charge" in out
    assert "top-1" not in out
    assert not ledger.path.exists()

  def test_training_rows_are_refused_as_in_the_evaluation(
    self, capsys, head, train_cache
  ):
    words = ["evaluate", head, "--cache", train_cache.path, "--dry-run"]
    assert "was trained on rows of" in fails(capsys, *words)
