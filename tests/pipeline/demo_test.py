import csv

import pytest

from pipeline.demo import run_demo
from pipeline.head_verify import verify_head


@pytest.mark.slow
def test_it_runs_from_images_to_plots_and_again(tmp_path, capsys, ledger_dir):
  out = tmp_path / "demo"
  run_demo(out)
  first = capsys.readouterr().out
  assert "1,437 images in" in first
  assert "NOT PRIVATE" in first  # the baseline
  assert f"table: {out / 'results-1' / 'results.csv'}" in first

  with (out / "results-1" / "results.csv").open(newline="") as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 5 * 5 + 1
  at_8 = [float(r["top1"]) for r in rows if r["epsilon"] == "8.0"]
  assert sum(at_8) / 5 > 0.86
  assert (out / "results-1" / "accuracy.png").stat().st_size > 10_000
  for row in rows:
    check = verify_head(out / "results-1" / row["path"], out / "ledgers")
    assert check.problems == ()
    assert "the ledger was charged for it" in check.conclusion

  before = {p: p.stat().st_mtime_ns for p in (out / "caches").rglob("*")}
  run_demo(out)
  second = capsys.readouterr().out
  assert second.count("complete already, nothing was extracted") == 2
  assert f"table: {out / 'results-2' / 'results.csv'}" in second
  assert {p: p.stat().st_mtime_ns for p in (out / "caches").rglob("*")} == (
    before
  )
  # It spends nothing of anybody's real budget.
  assert not ledger_dir.exists()
