"""The tutorial runs, cell by cell, and prints what it shows."""

import contextlib
import io
import json
import pathlib

import matplotlib as mpl
import pytest

NOTEBOOK = pathlib.Path(__file__).parents[2] / "pipeline" / "tutorial.ipynb"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_tutorial_cells_run_in_order_and_print_as_many_lines_as_shown():
  mpl.use("agg")
  notebook = json.loads(NOTEBOOK.read_text())
  names: dict[str, object] = {}
  for cell in notebook["cells"]:
    if cell["cell_type"] != "code":
      continue
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      exec(compile("".join(cell["source"]), "tutorial", "exec"), names)
    shown = "".join(
      "".join(output["text"])
      for output in cell["outputs"]
      if output["output_type"] == "stream"
    )
    # Noise is fresh in every run, so numbers differ and words do not.
    first_words = [line.split()[:1] for line in shown.splitlines()]
    found = [line.split()[:1] for line in printed.getvalue().splitlines()]
    assert found == first_words
