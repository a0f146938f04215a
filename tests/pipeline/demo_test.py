"""The demo: everything in one command, with nothing but what comes along."""

import csv
import json
import os

import pytest

from tests.pipeline.command_line import succeeds


@pytest.mark.long
def test_the_demo_compares_both_heads_and_spends_nobodys_budget(
  capsys, tmp_path, monkeypatch, ledger_file
):
  monkeypatch.chdir(tmp_path)
  out, _ = succeeds(capsys, "demo", "--out", "d")
  table = (tmp_path / "d/results/results.csv").read_text().splitlines()
  rows = list(csv.DictReader(table))
  top1 = {(row["head"], row["epsilon"]): float(row["top1"]) for row in rows}
  assert {head for head, _ in top1} == {"auto", "lamb"}
  assert min(top1.values()) > 0.8  # at epsilon 0.25
  assert min(v for (_, e), v in top1.items() if float(e) >= 0.5) > 0.9
  assert top1["auto", "8.0"] >= top1["lamb", "8.0"] - 0.01
  assert not ledger_file.exists()
  assert os.path.getsize("d/ledger.sqlite")
  for name in "accuracy.png", "accuracy.pdf", "report.html", "config.json":
    assert os.path.getsize(f"d/results/{name}")
  assert "epsilon" in out
  again, _ = succeeds(capsys, "demo", "--out", "d", "--json")
  assert json.loads(again)["results"] == "d/results"
