import sys

import pytest

from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.pipeline.runs import pictures as plots
from oneshot_dp.pipeline.runs.sweep import run_sweep
from tests.pipeline.command_line import SWEEP, succeeds
from tests.pipeline.paper.ablation_table_test import ROWS as ABLATION
from tests.pipeline.runs.results_test import ROWS
from tests.pipeline.sample_caches import write_clusters

DRAWN = {
  "accuracy.png": lambda folder: plots.plot_accuracy(ROWS, "pets", folder),
  "ablation.png": lambda folder: plots.plot_ablation(ABLATION, "pets", folder),
  "delta-1e-05.png": lambda folder: plots.plot_figures(
    ROWS, [], [], "pets", folder
  ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_with_matplotlib_they_are_drawn(name, tmp_path, capsys):
  DRAWN[name](tmp_path)
  assert (tmp_path / name).stat().st_size > 1000
  assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", DRAWN)
def test_without_it_a_line_says_what_they_need(
  name, tmp_path, capsys, monkeypatch
):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  DRAWN[name](tmp_path)
  assert list(tmp_path.iterdir()) == []
  assert capsys.readouterr().err == (
    "no pictures: matplotlib is not installed; pip install"
    " 'oneshot-dp[plots]'\n"
  )


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
  assert said.count("pip install 'oneshot-dp[plots]'") == 1


@pytest.mark.parametrize("name", DRAWN)
def test_one_that_fails_costs_nothing_but_itself(
  name, tmp_path, capsys, monkeypatch
):
  def fail(*args, **options):
    raise ValueError("no\nsuch glyph")

  monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
  DRAWN[name](tmp_path)
  (line,) = capsys.readouterr().err.splitlines()
  assert line == "warning: no pictures: ValueError: no such glyph"


@pytest.mark.parametrize("name", DRAWN)
def test_a_disk_that_takes_no_more_is_no_matter_of_pictures(name, tmp_path):
  with pytest.raises(FileNotFoundError):
    DRAWN[name](tmp_path / "none")


def test_the_name_of_a_data_set_is_no_formula(tmp_path, capsys):
  name = r"price$\frac$"
  train = write_clusters(tmp_path / "train", dataset=name)
  run_sweep(
    train,
    write_clusters(tmp_path / "test", dataset=name, split="test"),
    tmp_path / "out",
    (2.0,),
    PrivacyConfig(delta=1e-5),
    HeadConfig(head="momentum"),
    num_draws=1,
    order="nested",
    baseline=False,
    ledger_dir=tmp_path / "ledgers",
  )
  assert (tmp_path / "out" / "heads").is_dir()
  assert (tmp_path / "out" / "accuracy.png").stat().st_size > 1000
  assert (tmp_path / "out" / "accuracy.pdf").stat().st_size > 1000
  assert "no pictures" not in capsys.readouterr().err
