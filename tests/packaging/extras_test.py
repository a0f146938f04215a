"""What works without the extras: all but pictures, reports and the demo."""

import json

import pytest

from tests.packaging.conftest import ends_well

# As if no extra were installed; all in one process, to import JAX once.
RUN = """
import contextlib, io, json, sys
for extra in ("IPython", "jinja2", "matplotlib", "sklearn"):
  sys.modules[extra] = None
from oneshot_dp.pipeline.cli import main
answers = []
for line in sys.argv[1:]:
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    status = main(line.split())
  answers.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""
LINES = (
  "import images.npz --split train[:80%] --out train",
  "import images.npz --split train[80%:] --out test",
  "sweep --cache train --eval-cache test --epsilons 1 --delta 1e-5 --out heads",
  "report heads",
  "demo --out demo",
)


@pytest.mark.slow
def test_what_needs_an_extra_names_it(folder):
  said = ends_well("-c", RUN, *LINES, cwd=folder)
  *_, sweep, report, demo = json.loads(said.splitlines()[-1])
  status, table, notes = sweep  # needs none
  assert status == 0, notes
  assert "epsilon" in table
  assert "pip install 'oneshot-dp[plots]'" in notes
  for (status, _, notes), extra in ((report, "plots"), (demo, "demo")):
    assert status == 2
    assert f"pip install 'oneshot-dp[{extra}]'" in notes.splitlines()[-1]
