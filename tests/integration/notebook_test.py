"""The notebook runs as written, in a kernel of its own."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant

from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid

NEEDED = "executing the notebook needs nbclient and ipykernel: extra `test`"
nbformat = pytest.importorskip("nbformat", reason=NEEDED)
pytest.importorskip("nbclient", reason=NEEDED)
pytest.importorskip("ipykernel", reason=NEEDED)
pytest.importorskip("sklearn", reason="the notebook's digits: extra `demo`")

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOK = ROOT / "linear_dp" / "private_head.ipynb"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5

# In a process of its own: nbclient leaves sockets open behind it. Those of the
# kernel are files in its folder, no ports that others could listen at.
EXECUTE = """
import sys, jupyter_client, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
kernel = jupyter_client.AsyncKernelManager(
  kernel_name="python3", transport="ipc"
)
nbclient.NotebookClient(notebook, km=kernel, timeout=300).execute()
nbformat.write(notebook, sys.argv[2])
"""

pytestmark = pytest.mark.slow


class Run:
  """An executed notebook, by the ids of its cells."""

  def __init__(self, notebook, ledgers: pathlib.Path):
    self.cells = {cell.id: cell for cell in notebook.cells}
    self.ledgers = ledgers

  def printed(self, cell: str, stream: str = "stdout") -> str:
    return "".join(
      output.text
      for output in self.cells[cell].outputs
      if output.output_type == "stream" and output.name == stream
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
  folder = tmp_path_factory.mktemp("jupyter")
  out = folder / "executed.ipynb"
  places = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")
  environment = (
    {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    | dict.fromkeys(places, str(folder))
    | {
      "ONESHOT_DP_LEDGER_DIR": str(folder / "ledgers"),
      "PYTHONPATH": str(ROOT),
    }
  )
  done = subprocess.run(
    [sys.executable, "-c", EXECUTE, NOTEBOOK, out],
    env=environment,
    cwd=folder,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return Run(nbformat.read(out, as_version=4), folder / "ledgers")


def test_is_kept_without_outputs():
  notebook = nbformat.read(NOTEBOOK, as_version=4)
  nbformat.validate(notebook)
  assert NOTEBOOK.stat().st_size < 20_000
  for cell in notebook.cells:
    if cell.cell_type == "code":
      assert not cell.outputs
      assert cell.execution_count is None


def test_from_arrays_to_a_head_takes_less_than_twenty_lines(run):
  first = next(c for c in run.cells.values() if c.cell_type == "code")
  assert first.id == "train"
  assert len(first.source.splitlines()) < 20
  assert len(run.cells["receipt"].source.splitlines()) < 20
  shown = run.printed("train")
  assert shown.startswith("PrivateHead(lamb, feature_dim=64, num_classes=10,")
  assert float(shown.splitlines()[1].partition("%")[0]) > 60


def test_its_receipt_holds(run):
  receipt = json.loads(run.printed("receipt"))
  assert receipt["private"]
  privacy = receipt["privacy"]
  assert (privacy["epsilon"], privacy["delta"]) == (2.0, DELTA)
  assert privacy["noise_source"] == "os.urandom"
  assert receipt["data"] == {
    "num_examples": 1437,
    "feature_dim": 64,
    "num_classes": 10,
    "num_classes_source": "flag",
    "class_names": [str(digit) for digit in range(10)],
  }
  grid = ClippedGradientGrid(num_classes=10, feature_dim=64)
  sigma = privacy["noise_sd_steps"] / grid.sensitivity(
    NeighboringRelation[privacy["neighboring_relation"]]
  )
  accountant = PLDAccountant().compose(GaussianDpEvent(sigma))
  assert accountant.get_epsilon(DELTA) == pytest.approx(2.0, rel=1e-3)
  assert run.printed("check") == "epsilon = 2.0000\n"


def test_its_table_says_what_was_spent(run):
  header, *rows, total = run.printed("table").splitlines()
  assert header.split()[1:-1] == [f"{epsilon:g}" for epsilon in EPSILONS]
  assert [row.split()[0] for row in rows] == [
    "lamb",
    "least-squares",
    "whitened",
  ]
  sigmas = [noise_multiplier(epsilon, DELTA) for epsilon in EPSILONS]
  # Nested, nested, and each on its own; and the head of the first cell.
  least, all_of_them = [sigmas[-1]], sigmas
  spent = [least, least, all_of_them]
  assert [float(row.split()[-1]) for row in rows] == pytest.approx(
    [composed(each) for each in spent], abs=0.006
  )
  everything = [sigmas[2], *itertools.chain.from_iterable(spent)]
  found = float(total.rpartition("= ")[2])
  assert found == pytest.approx(composed(everything), abs=0.006)


def composed(sigmas: list[float]) -> float:
  return get_epsilon_gaussian(sum(s**-2 for s in sigmas) ** -0.5, DELTA)


def test_the_ledgered_way_charges_and_verifies(run):
  assert len(run.cells["ledger"].source.splitlines()) < 20
  shown = run.printed("ledger")
  assert "epsilon = 2 at delta = 1e-05" in shown
  assert "ok: the receipt's numbers follow from the noise" in shown
  assert "was not looked up" not in shown
  assert shown.count("release of split train: independent, 1 draw(s)") == 1
  assert "odometer: epsilon = 2 at delta = 1e-05" in shown
  # It says where it charges, and it is not where the user's own ledgers are.
  assert "charged to" in run.printed("ledger", "stderr")
  assert not run.ledgers.exists()
  for cell in run.cells.values():  # Nothing else is said.
    if cell.cell_type == "code" and cell.id != "ledger":
      said = run.printed(cell.id, "stderr")
      assert all(line.startswith("head: ") for line in said.splitlines())
      assert all(output.output_type == "stream" for output in cell.outputs)
