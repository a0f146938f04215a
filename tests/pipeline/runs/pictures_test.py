import errno
import functools
import pathlib
import sys

import pytest

from oneshot_dp.pipeline.runs.accuracy_plot import plot_accuracy
from oneshot_dp.pipeline.runs.pictures import draw
from tests.pipeline.command_line import SWEEP, succeeds
from tests.pipeline.runs.results_test import ROWS, baseline

pytestmark = pytest.mark.usefixtures("draws")

PLOT = functools.partial(plot_accuracy, [*ROWS, baseline()], "pets")


def test_a_sweep_without_it_writes_everything_else(
  place, tmp_path, capsys, monkeypatch
):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  _, said = succeeds(capsys, *place(SWEEP))
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
    "config.json",
    "heads",
    "results.csv",
    "results.json",
  ]
  line = (
    "no pictures: matplotlib is not installed; pip install 'oneshot-dp[plots]'"
  )
  assert said.splitlines().count(line) == 1


def test_one_that_fails_costs_nothing_but_itself(tmp_path, capsys, monkeypatch):
  def fail(*args, **options):
    raise ValueError("no\nsuch glyph")

  monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
  draw(PLOT, tmp_path)
  (line,) = capsys.readouterr().err.splitlines()
  assert line == "warning: no pictures: ValueError: no such glyph"


def test_the_name_of_a_data_set_is_no_formula(tmp_path, capsys):
  draw(functools.partial(plot_accuracy, ROWS, r"price$\frac$"), tmp_path)
  assert (tmp_path / "accuracy.png").stat().st_size > 1000
  assert (tmp_path / "accuracy.pdf").stat().st_size > 1000
  assert capsys.readouterr().err == ""


def test_a_disk_that_fails_half_way_leaves_no_half(tmp_path, monkeypatch):
  def fail(path: pathlib.Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(pathlib.Path, "write_bytes", fail)
  with pytest.raises(OSError, match="No space left"):
    draw(PLOT, tmp_path)
  assert not list(tmp_path.iterdir())
