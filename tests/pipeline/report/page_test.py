import re
import shutil

import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.report import page
from tests.pipeline.command_line import succeeds
from tests.pipeline.report.conftest import edited, reported, swept, undrawn

UNCOVERED = "(and 1 that no ε covers: NOT PRIVATE)"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
  """A run whose accuracies were counted on private labels."""
  folder = tmp_path_factory.mktemp("private_eval")
  return reported(swept(folder, private_eval=4.0, baseline=False, num_draws=1))


def test_what_no_epsilon_covers_is_not_counted_as_covered(sweep):
  last = sweep.page.table("who sees")[-1]
  assert last[0] == f"all private releases from pets {UNCOVERED}"
  assert f"all private releases from pets so far {UNCOVERED}" in sweep.page.text
  # Its accuracies are exact.
  assert "noisy count" not in sweep.page.text
  assert "names about" not in sweep.page.text


def test_accuracies_on_private_labels_cost_extra_and_are_noisy(
  found,
):
  alone, heads, both, ledger = found.page.table("who sees")
  assert heads[0] == "all 3 heads of this run"
  assert both[0] == ("these heads and their accuracies together, and this page")
  assert ledger[0] == "all private releases from pets"
  # Nothing else is in the ledger.
  assert both[1:] == ledger[1:]
  assert float(alone[1]) < float(heads[1]) < float(both[1])
  assert (
    f"ε = {heads[1]} at δ = 1e-05 for its heads, ε = {both[1]} at δ = 1e-05"
    f" with their accuracies; the odometer reads ε = {both[1]} at δ = 1e-05"
    " for all private releases from pets so far."
  ) in found.page.text

  assert [line[1] for line in found.page.table("date")] == [
    "evaluation of split test: ε 4 (this run)",
    "release of split train: ε 0.5, 2, 8 (this run)",
  ]

  assert re.search(
    r"names about \d+\.\d % of 80 test images right \(noisy count\)\.",
    found.page.text,
  )
  assert "(noisy counts): " in (found.page.alts[0] or "")


def test_numbers():
  """A bound is rounded up, and no promise to nothing; a loss has a minus."""
  for share, printed in (
    *((0.5, "50"), (0.73106, "73.2")),
    *((0.99966, "99.97"), (1.0, "100")),
  ):
    assert page._at_most(share) == f"{printed}\N{NO-BREAK SPACE}%"
  for share, printed in ((-0.0021, "−0.2"), (0.12, "+12.0"), (-0.0001, "+0.0")):
    assert page._points(share) == printed


def test_an_epsilon_that_is_far_too_large(tmp_path):
  epsilon = 800.000001
  run = swept(tmp_path, baseline=False, num_draws=1, epsilons=(epsilon,))
  page = reported(run).page
  assert "by a factor of eε (more than 10^300) at most" in page.text
  # Rounded up.
  assert page.table("who sees")[0][0] == "this head alone (ε = 800.01)"


def test_a_page_that_cannot_be_made_replaces_nothing(sweep, tmp_path):
  run = sweep.copied(tmp_path / "run")
  with edited(run) as config:
    del config["num_draws"]
  for picture in sweep.written.figures:
    (run / "report" / picture.name).write_bytes(b"of before")
  with pytest.raises(InputError, match="damaged"):
    reported(run, ledger_dir=sweep.folder / "ledgers")
  for picture in sweep.written.figures:
    assert (run / "report" / picture.name).read_bytes() == b"of before"
  assert not [path for path in run.iterdir() if path.name.startswith(".")]


def test_fewer_names_than_classes(sweep, tmp_path):
  run = sweep.copied(tmp_path / "run")
  with edited(run) as config:
    config["train_cache"]["class_names"].pop()
  with pytest.raises(InputError, match="is damaged: it names"):
    reported(run, ledger_dir=sweep.folder / "ledgers")


def test_a_terminal_obeys_no_run(sweep, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(page, "draw_picture", undrawn)
  run = sweep.copied(tmp_path / "run")
  with edited(run) as config:
    config["run"]["ledger_dir"] = f"{tmp_path}/\x1b[2J"
  said = succeeds(capsys, "report", run)
  assert r"\x1b[2J" in "".join(said)
  assert "\x1b" not in "".join(said)


def test_what_is_compared_is_at_one_delta(sweep, tmp_path):
  ledgers = tmp_path / "ledgers"
  shutil.copytree(sweep.folder / "ledgers", ledgers)
  ledger = Ledger("pets", ledgers)
  relation = NeighboringRelation.REPLACE_SPECIAL
  ledger.set_cap(
    Cap(max_epsilon=20.0, max_delta=1e-4, neighboring_relation=relation)
  )
  spent = ledger.spending(relation)
  at_run, at_cap = (printable(spent.epsilon(delta)) for delta in (1e-5, 1e-4))
  assert at_run != at_cap
  run = sweep.copied(tmp_path / "run")
  page = reported(run, ledger_dir=ledgers).page
  assert (
    f"Budget: ε = {at_run} at δ = 1e-05 for the whole run; the odometer reads"
    f" ε = {at_run} at δ = 1e-05 for all private releases from pets so far"
    f" {UNCOVERED}; ε = 20 at δ = 0.0001 is the cap."
  ) in page.text
  assert (
    f"ε = {at_cap} of ε = 20 is spent on pets, at the cap's δ = 0.0001"
  ) in page.text
  _, heads, everything = page.table("who sees")
  assert heads[1:] == everything[1:]
