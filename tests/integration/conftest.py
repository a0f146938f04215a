"""A ledger of each test's own."""

import pathlib

import pytest


@pytest.fixture(autouse=True)
def ledger_dir(tmp_path, monkeypatch) -> pathlib.Path:
  folder = tmp_path / "ledgers"
  monkeypatch.setenv("ONESHOT_DP_LEDGER_DIR", str(folder))
  return folder
