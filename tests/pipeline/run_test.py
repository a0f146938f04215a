"""Training and sweeping: what is refused, charged, written and shown."""

import json
import stat
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from oneshot_dp.linear_dp import private_sums
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.heads.verify import verify_head
from oneshot_dp.pipeline.ledger.entries import spent
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.command_line import fails, prints, succeeds
from tests.pipeline.sample_heads import heads_in, mu2_of
from tests.sample_caches import DIM, write_clusters, write_rows

DELTA = 1e-5


class FinishedRun(NamedTuple):
  """A run that succeeded, and what it printed."""

  folder: Path
  ledger: Ledger
  stdout: str
  stderr: str

  def charged(self, dataset: str) -> Fraction:
    """The μ² that the rows of a data set have paid."""
    return spent(self.ledger.entries(dataset))

  def results(self) -> dict:
    return json.loads((self.folder / "results.json").read_text())


@pytest.fixture(scope="module")
def finish_run(tmp_path_factory, train_cache):
  """Returns a function that runs a command in a folder, with its own ledger."""

  def run(words: str) -> FinishedRun:
    place = tmp_path_factory.mktemp("runs")
    usual = f"--cache {train_cache.path} --delta {DELTA}"
    outputs = f"--out {place}/run --ledger {place}/ledger.sqlite"
    stdout, stderr = prints(*f"{words} {usual} {outputs}".split())
    ledger = Ledger(place / "ledger.sqlite")
    return FinishedRun(place / "run", ledger, stdout, stderr)

  return run


@pytest.fixture(scope="module")
def other_rows(tmp_path_factory) -> Path:
  """A cache of 160 rows of a data set called tests."""
  folder = tmp_path_factory.mktemp("caches") / "tests"
  write_clusters(folder, (40,) * 4, seed=4, dataset="tests")
  return folder


def mode_of(path: Path) -> int:
  return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module", params=["auto", "lamb"])
def kind(request) -> str:
  return request.param


@pytest.fixture(scope="module")
def trained(finish_run, kind) -> FinishedRun:
  return finish_run(f"train --epsilon 8 --head {kind}")


@pytest.mark.slow
class TestTrain:
  def test_its_epsilon_is_charged(self, trained):
    assert trained.charged("clusters") == mu2_of(8.0)

  def test_its_head_is_vouched_for_by_the_ledger(self, trained):
    assert verify_head(trained.folder, trained.ledger).vouched

  def test_its_head_is_right_about_rows_that_it_has_not_seen(
    self, capsys, trained, eval_cache
  ):
    stdout, _ = succeeds(
      capsys, "evaluate", trained.folder, "--cache", eval_cache.path
    )

    assert stdout.startswith("top-1 100.00 % (95 % interval ")

  def test_output_begins_with_the_head_and_its_budget(self, trained, kind):
    assert trained.stdout.startswith(
      f"{trained.folder}: {kind} at epsilon = 8, delta = 1e-05, noise"
    )

  def test_a_new_ledger_entry_and_the_plan_are_told(self, trained, kind):
    new_entry, plan = trained.stderr.splitlines()

    assert new_entry.startswith("new ledger entry for 'clusters' in ")
    assert plan.startswith(
      f"{kind} at epsilon 8, delta 1e-05, from 180 embeddings of dimension"
      f" {DIM} in 4 classes: 'clusters' is charged epsilon 8 in total, in "
    )


def test_noise_is_drawn_after_the_charge_is_on_the_disk(
  capsys, place, ledger, monkeypatch
):
  draw = private_sums.rounded_gaussian
  charged_at_each_draw = []

  def draw_and_record(*arguments):
    charged_at_each_draw.append(spent(ledger.entries("clusters")))
    return draw(*arguments)

  monkeypatch.setattr(private_sums, "rounded_gaussian", draw_and_record)

  succeeds(capsys, *place("TRAIN --epsilon 8 --head lamb --out h"))

  assert charged_at_each_draw == [mu2_of(8.0)]


def test_json_of_train_holds_the_receipt(capsys, place):
  words = place("TRAIN --epsilon 8 --head lamb --out h --json")

  stdout, _ = succeeds(capsys, *words)

  receipt = json.loads(Path("h/receipt.json").read_text())
  assert json.loads(stdout)["receipt"] == receipt


@pytest.mark.slow
def test_train_takes_a_start_with_a_vector_for_each_class_name(capsys, place):
  vectors = {f"class {i}": np.eye(DIM)[i] for i in range(4)}
  np.savez("s.npz", **vectors)

  succeeds(capsys, *place("TRAIN --epsilon 2 --start s.npz --out h"))

  options = read_head(Path("h")).stated["options"]
  assert len(options["start_sha256"]) == 64


SEEDED = "train --epsilon 8 --head lamb --noise-seed 1"


@pytest.fixture(scope="module")
def seeded(finish_run) -> FinishedRun:
  return finish_run(SEEDED)


@pytest.fixture(scope="module")
def seeded_sweep(finish_run, other_rows):
  """A sweep that is scored with noise, and the source of each draw."""
  draw = private_sums.rounded_gaussian
  sources = []

  def draw_and_record(shape, sd, source):
    sources.append(source)
    return draw(shape, sd, source)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(private_sums, "rounded_gaussian", draw_and_record)
    run = finish_run(
      "sweep --epsilons 8 --head lamb --noise-seed 1"
      f" --eval-cache {other_rows} --private-eval 2"
    )
  return run, sources


@pytest.mark.slow
class TestSeeded:
  """A noise seed makes the same bits again, so nothing of it is private."""

  def test_two_heads_of_a_seed_have_the_same_weights(self, seeded, finish_run):
    again = finish_run(SEEDED)

    first = read_head(seeded.folder).stated["weights_sha256"]
    assert read_head(again.folder).stated["weights_sha256"] == first

  def test_a_head_is_not_private(self, seeded):
    assert not read_head(seeded.folder).trained.private

  def test_output_ends_with_not_private(self, seeded):
    assert seeded.stdout.rstrip().endswith("NOT PRIVATE")

  def test_a_head_is_noted_and_charged_nothing(self, seeded):
    assert [e.mu_squared for e in seeded.ledger.entries()] == [None]

  def test_a_head_is_its_owners_alone(self, seeded):
    assert mode_of(seeded.folder) == 0o700

  def test_a_sweep_draws_all_noise_from_one_source(self, seeded_sweep):
    """Another source of the same seed would draw the same noise again."""
    _, sources = seeded_sweep

    assert len(sources) > 1
    assert len({*sources}) == 1

  @pytest.mark.parametrize(
    "name", ["results.csv", "results.json", "config.json", "report.html"]
  )
  def test_each_file_of_a_sweep_says_not_private(self, seeded_sweep, name):
    run, _ = seeded_sweep

    assert "NOT PRIVATE" in (run.folder / name).read_text()


@pytest.fixture(scope="module")
def sweep(finish_run, eval_cache) -> FinishedRun:
  """Eight heads: of two epsilons, two kinds and two draws."""
  return finish_run(
    "sweep --epsilons 1 8 --head lamb auto --num-draws 2 --balanced"
    f" --eval-cache {eval_cache.path}"
  )


@pytest.mark.slow
class TestSweep:
  def test_top5_of_four_classes_is_left_out_of_the_results(self, sweep):
    heads = sweep.results()["heads"]
    assert {head["top5"] for head in heads} == {None}

  def test_each_draw_of_each_kind_is_charged_its_largest_epsilon(self, sweep):
    assert sweep.charged("clusters") == 4 * mu2_of(8.0)

  def test_results_state_the_epsilon_of_all_heads_together(self, sweep):
    together = mu_squared_from_epsilon(sweep.results()["epsilon"], DELTA)

    assert together == pytest.approx(float(4 * mu2_of(8.0)), rel=1e-6)

  def test_output_states_the_epsilon_of_all_heads_together(self, sweep):
    line = sweep.stdout.splitlines()[-2]

    assert line.startswith("all private heads together: epsil")

  def test_table_of_results_has_a_line_for_each_head(self, sweep):
    table = (sweep.folder / "results.csv").read_text()

    assert len(table.splitlines()) == 1 + 8

  def test_results_count_each_row_of_the_test_set(self, sweep):
    assert sum(sweep.results()["test_counts"]) == 80

  def test_each_head_keeps_within_its_epsilon(self, sweep):
    for row in sweep.results()["heads"]:
      head = read_head(sweep.folder / row["path"])
      assert head.receipt["follows"]["epsilon"] <= row["epsilon"]

  def test_each_head_is_vouched_for_by_the_ledger(self, sweep):
    for row in sweep.results()["heads"]:
      assert verify_head(sweep.folder / row["path"], sweep.ledger).vouched

  def test_no_head_has_the_weights_of_another(self, sweep):
    """Each draw has noise of its own."""
    weights = {path.read_bytes() for path in heads_in(sweep.folder)}

    assert len(weights) == 8

  @pytest.mark.parametrize(
    "name", ["accuracy.png", "accuracy.pdf", "report.html", "config.json"]
  )
  def test_pictures_page_and_settings_are_written(self, sweep, name):
    assert (sweep.folder / name).stat().st_size

  def test_results_of_a_public_test_set_are_not_its_owners_alone(self, sweep):
    assert mode_of(sweep.folder / "results.csv") != 0o600

  def test_only_auto_is_balanced(self, sweep):
    for row in sweep.results()["heads"]:
      options = read_head(sweep.folder / row["path"]).stated["options"]
      assert options["balanced"] == (row["head"] == "auto")


@pytest.fixture(scope="module")
def baseline_sweep(finish_run, eval_cache) -> FinishedRun:
  return finish_run(
    f"sweep --epsilons 1 --head lamb --baseline --eval-cache {eval_cache.path}"
  )


@pytest.mark.slow
class TestBaseline:
  def test_is_warned_of(self, baseline_sweep):
    assert "without noise, NOT PRIVATE" in baseline_sweep.stderr

  def test_is_noted_and_charged_nothing(self, baseline_sweep):
    private, baseline = baseline_sweep.ledger.entries()

    assert private.mu_squared is not None
    assert baseline.mu_squared is None

  def test_is_not_private_in_the_table_that_is_printed(self, baseline_sweep):
    assert baseline_sweep.stdout.splitlines()[2].endswith("NOT PRIVATE")

  def test_makes_every_folder_of_the_run_its_owners_alone(self, baseline_sweep):
    folders = [
      path for path in baseline_sweep.folder.rglob("*") if path.is_dir()
    ]

    for folder in (baseline_sweep.folder, *folders):
      assert mode_of(folder) == 0o700

  def test_makes_every_file_of_the_run_its_owners_alone(self, baseline_sweep):
    files = [
      path for path in baseline_sweep.folder.rglob("*") if path.is_file()
    ]

    assert files
    for file in files:
      assert mode_of(file) == 0o600


@pytest.fixture(scope="module")
def noisy_sweep(finish_run, other_rows) -> FinishedRun:
  return finish_run(
    f"sweep --epsilons 8 --head lamb --eval-cache {other_rows} --private-eval 2"
  )


@pytest.mark.slow
class TestPrivateTestSet:
  def test_is_charged_for_its_accuracy(self, noisy_sweep):
    assert noisy_sweep.charged("tests") == mu2_of(2.0)

  def test_accuracy_is_said_to_be_noisy(self, noisy_sweep):
    assert "(noisy counts at epsilon = 2)" in noisy_sweep.stdout

  def test_labels_are_private_in_the_results(self, noisy_sweep):
    assert noisy_sweep.results()["evaluation"]["labels"] == "private"

  def test_no_count_by_class_is_in_the_results(self, noisy_sweep):
    results = noisy_sweep.results()

    assert results["test_counts"] is None
    assert results["heads"][0]["recall"] is None

  def test_no_exact_score_is_given_from_then_on(
    self, capsys, noisy_sweep, other_rows
  ):
    head = noisy_sweep.folder / noisy_sweep.results()["heads"][0]["path"]

    line = fails(
      capsys,
      *("evaluate", head, "--cache", other_rows),
      *("--ledger", noisy_sweep.ledger.path),
    )

    assert "among the private rows of 'tests'" in line


def test_train_without_the_memory_that_it_needs_is_refused_and_not_charged(
  capsys, place, ledger, monkeypatch
):
  def petabyte(*_, **__):
    return 1 << 50

  monkeypatch.setattr(
    "oneshot_dp.pipeline.runs.resources.memory_needed", petabyte
  )

  line = fails(capsys, *place("TRAIN --epsilon 1 --out h"))

  assert "GB of memory" in line
  assert not ledger.path.exists()


@pytest.mark.slow
def test_too_few_rows_for_each_class_are_warned_of(capsys, place):
  """As public numbers have it: classes may be rarer, and nobody is told."""
  rows = np.random.default_rng(0).standard_normal((30, DIM)).astype("f4")
  write_rows(Path("few"), rows, np.arange(30) % 10, dataset="few")
  words = place("TRAIN --cache few --epsilon 1 --head lamb --out h")

  _, stderr = succeeds(capsys, *words)

  assert "WARNING: about 3 rows of each class" in stderr
