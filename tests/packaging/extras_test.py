"""What works without the extras: all but pictures, reports and the demo."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]

# As if no extra were installed; all in one process, to import JAX once.
RUN = """
import contextlib, io, json, sys
for extra in ("IPython", "jinja2", "matplotlib", "sklearn"):
  sys.modules[extra] = None
from oneshot_dp.pipeline.cli import main
answers = {}
for line in sys.argv[1:]:
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    status = main(line.split())
  answers[line] = status, out.getvalue(), err.getvalue()
print(json.dumps(answers))
"""
SWEEP = (
  "sweep --cache train --eval-cache test --epsilons 1 --delta 1e-5 --out heads"
)
LINES = (
  "import arrays.npz --split train[:80%] --out train",
  "import arrays.npz --split train[80%:] --out test",
  SWEEP,
  "report heads",
  "demo --out demo",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
  folder = tmp_path_factory.mktemp("alone")
  np.savez(
    folder / "arrays.npz",
    embedding=np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32),
    label=np.arange(40) % 4,
    class_names=np.array(["a", "b", "c", "d"]),
  )
  said = subprocess.run(
    [sys.executable, "-c", RUN, *LINES],
    cwd=folder,
    capture_output=True,
    text=True,
    env=os.environ
    | {
      "PYTHONPATH": str(ROOT),
      "JAX_PLATFORMS": "cpu",
      "ONESHOT_DP_LEDGER_DIR": str(folder / "ledgers"),
    },
  )
  assert said.returncode == 0, said.stderr
  return json.loads(said.stdout.splitlines()[-1])


def test_a_sweep_needs_no_extra(answers):
  status, table, notes = answers[SWEEP]
  assert status == 0, notes
  assert "epsilon" in table
  assert "pip install 'oneshot-dp[plots]'" in notes


@pytest.mark.parametrize(
  ("line", "extra"), [("report heads", "plots"), ("demo --out demo", "demo")]
)
def test_what_needs_an_extra_names_it(answers, line, extra):
  status, _, notes = answers[line]
  assert status == 2
  assert f"pip install 'oneshot-dp[{extra}]'" in notes.splitlines()[-1]
