import csv
import shutil
from unittest.mock import Mock

import pytest

from oneshot_dp.pipeline.commands.studies import demo
from oneshot_dp.pipeline.report import report
from oneshot_dp.pipeline.saved_head.verify import verify_head
from tests.pipeline.command_line import succeeds


def files(folder):
  return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_it_runs_from_images_to_a_report_and_again(
  tmp_path, capsys, monkeypatch, ledger_dir
):
  out = tmp_path / "demo"
  said, notes = succeeds(capsys, "demo", "--out", out)
  assert "== extract train: a Beam job" in notes
  assert "NOT PRIVATE" in said  # the baseline
  assert f"report: {out / 'results' / 'report.html'}" in said
  assert "0.5" in (out / "results" / "report.html").read_text()

  with (out / "results" / "results.csv").open(newline="") as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 5 * 5 + 1
  at_8 = [float(r["top1"]) for r in rows if r["epsilon"] == "8.0"]
  assert sum(at_8) / 5 > 0.86
  for row in rows:
    check = verify_head(out / "results" / row["path"], out / "ledgers")
    assert check.problems == ()
    assert "the ledger was charged for it" in check.conclusion

  before = files(out)
  again, notes = succeeds(capsys, "demo", "--out", out)
  assert "nothing is extracted or charged" in notes
  assert files(out) == before
  assert again.split("(")[0] == said.split("(")[0]

  # As if it had been stopped before the sweep: now a smaller one.
  shutil.rmtree(out / "results")
  before = files(out / "data") | files(out / "caches")
  monkeypatch.setattr(demo, "_EPSILONS", (8.0,))
  monkeypatch.setattr(demo, "_DRAWS", 1)
  monkeypatch.setattr(report, "write_report", wrote := Mock())
  _, notes = succeeds(capsys, "demo", "--out", out)
  assert notes.count("complete already, nothing was extracted") == 2
  assert files(out / "data") | files(out / "caches") == before
  wrote.assert_called_once_with(out / "results")
  # It spends nothing of anybody's real budget.
  assert not ledger_dir.exists()
