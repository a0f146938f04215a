"""`figures`: what it draws and writes, what it costs, what it refuses."""

import dataclasses
import json
import pathlib
import statistics
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.pipeline.paper.figure_plots import plot_figures
from oneshot_dp.pipeline.paper.figures import figures_table, run_figures
from oneshot_dp.pipeline.paper.published import PUBLISHED, references_for
from oneshot_dp.pipeline.runs import accuracy_plot
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.saved_head.directory import read_head
from tests.pipeline.command_line import succeeds
from tests.pipeline.run_contract import (
  PUBLIC,
  Finished,
  RunContract,
  epsilon_of,
  sigma_of,
)
from tests.pipeline.runs.numbered_caches import write_entries, write_numbered
from tests.pipeline.runs.results_test import row
from tests.pipeline.sample_caches import write_clusters

pytestmark = pytest.mark.usefixtures("no_pictures")

DELTAS = (1e-6, 8e-7)
EPSILONS = (1.0, 4.0)
FIGURES = (
  "figures --cache {train} --eval-cache {eval} --epsilons 1 4 --num-draws 2"
  " --out {out}"
)
REAL = "ReaL labels treated as public"
PICTURES = ("accuracy-vs-epsilon", "delta-1e-06", "delta-8e-07")


def figures(
  train: FeatureCache,
  evaluation: FeatureCache,
  out: pathlib.Path,
  epsilons: tuple[float, ...] = (1.0,),
  deltas: tuple[float, ...] = DELTAS,
  *,
  real_labels: pathlib.Path | None = None,
  references: bool = False,
  noise_seed: int | None = None,
  **more: Any,
) -> list[SweepRow]:
  """A quick one."""
  return run_figures(
    Run(train=train, evaluation=evaluation, out=out, **more),
    epsilons,
    [PrivacyConfig(delta=delta, noise_seed=noise_seed) for delta in deltas],
    real_labels=real_labels,
    references=references,
  )


@pytest.fixture(scope="module")
def finished(train_cache, tmp_path_factory) -> Finished:
  folder = tmp_path_factory.mktemp("figures")
  evaluation = write_numbered(folder / "test")
  rows = figures(
    train_cache,
    evaluation,
    folder / "out",
    EPSILONS,
    num_draws=2,
    real_labels=write_entries(folder / "real.json"),
    baseline=True,
    ledger_dir=folder / "ledgers",
  )
  return Finished(path=folder / "out", rows=rows, evaluations=[evaluation])


@pytest.fixture(scope="module")
def results(finished) -> dict[str, Any]:
  return json.loads((finished.path / "results.json").read_text())


class TestContract(RunContract):
  command = FIGURES
  delta = 1e-6
  whole = epsilon_of([sigma_of(1.0, delta) for delta in DELTAS], 1e-6)
  charged = (2,)
  pictures = (*PICTURES, "real-accuracy")

  def quick(self, train, evaluation, **more: Any) -> list[SweepRow]:
    return figures(train, evaluation, more.pop("out"), **more)


class TestWhatItWrites:
  def test_every_head_at_every_delta_and_the_pictures(self, finished):
    assert {p.name for p in (finished.path / "heads").iterdir()} == {
      f"delta-{delta}-epsilon-{epsilon}-draw-{draw}"
      for delta in DELTAS
      for epsilon in (1, 4)
      for draw in (0, 1)
    } | {"baseline-NOT-PRIVATE"}
    for name in (*PICTURES, "real-accuracy"):
      with Image.open(finished.path / f"{name}.png") as image:
        image.load()
        assert image.size == (960, 810)
      pdf = (finished.path / f"{name}.pdf").read_bytes()
      assert pdf.startswith(b"%PDF-")

  def test_real_labels_have_rows_of_their_own(self, finished, results):
    lines = finished.lines()
    assert [line["evaluation"] for line in lines] == [PUBLIC] * 9 + [REAL] * 9
    for plain, real in zip(lines[:9], lines[9:], strict=True):
      assert real["path"] == plain["path"]
      assert real["top1"] != plain["top1"]
      assert int(real["num_eval_examples"]) == 63
      assert int(plain["num_eval_examples"]) == 80
    assert results["evaluation"]["real"]["num_left_out"] == 17
    config = json.loads((finished.path / "config.json").read_text())
    assert config["head"]["head"] == "lamb"
    assert [each["delta"] for each in config["privacy"]] == list(DELTAS)
    assert config["references"] is False
    assert results["references"] == []
    assert config["eval_cache"]["id_source"] == "file_name"

  @pytest.mark.usefixtures("draws")
  def test_without_real_labels_there_is_no_such_picture(
    self, train_cache, eval_cache, tmp_path
  ):
    rows = figures(train_cache, eval_cache, tmp_path / "out")
    assert {each.evaluation for each in rows} == {PUBLIC}
    assert {p.stem for p in (tmp_path / "out").glob("*.png")} == {*PICTURES}


class TestWhatItCosts:
  def test_draws_and_deltas_compose(self, finished, results):
    sigmas = [sigma_of(4.0, delta) for delta in DELTAS for _ in range(2)]
    for delta in DELTAS:
      expected = epsilon_of(sigmas, delta)
      found = results["composed_epsilon"][str(delta)]
      assert found == pytest.approx(expected, rel=1e-6)
      assert {
        each.composed_epsilon for each in finished.rows if each.delta == delta
      } == {found}

  def test_deltas_have_noise_of_their_own(self, tmp_path):
    """Shared, it could be told apart from what they have in common."""
    # Of so many signs that none of the heads are alike by chance.
    train, test = (
      write_clusters(tmp_path / split, (n,) * 4, split=split, d=18)
      for split, n in (("train", 45), ("test", 20))
    )
    rows = figures(train, test, tmp_path / "out", epsilons=(0.01,), num_draws=2)
    kernels = [
      np.sign(read_head(tmp_path / "out" / each.path).head.kernel)
      for each in rows
    ]
    assert len(kernels) == 4
    for i, one in enumerate(kernels):
      for other in kernels[:i]:
        assert not np.array_equal(one, other)

  def test_the_private_rows_are_read_once(
    self, train_cache, eval_cache, tmp_path, monkeypatch
  ):
    reads = []
    blocks = FeatureCache.blocks
    monkeypatch.setattr(
      FeatureCache,
      "blocks",
      lambda self, *args: reads.append(self.path) or blocks(self, *args),
    )
    figures(train_cache, eval_cache, tmp_path / "out")
    assert reads.count(train_cache.path) == 1

  @pytest.mark.parametrize("deltas", [(1e-6, 0.5), (0.5, 1e-6)])
  def test_any_delta_may_be_too_large(
    self, train_cache, eval_cache, tmp_path, deltas
  ):
    with pytest.raises(InputError, match=r"delta=0\.5 is not below 1/n"):
      figures(train_cache, eval_cache, tmp_path / "out", deltas=deltas)


class TestReferences:
  def words_of(self, references, folder, monkeypatch) -> dict[str, str]:
    """All that is written in each picture."""
    rows = [
      row(epsilon, draw, 0.8, delta=delta)
      for epsilon in (1.0, 8.0)
      for draw in (0, 1)
      for delta in DELTAS
    ]
    drawn = {}

    def keep(figure, path, **options):
      words = [text.get_text() for text in figure.findobj(Text)]
      drawn[path.stem] = " | ".join(words)

    monkeypatch.setattr(accuracy_plot, "save_figure", keep)
    real = [dataclasses.replace(each, top1=0.85) for each in rows]
    plot_figures(rows, real, references, "imagenet2012", folder)
    return drawn

  def test_are_cited_and_of_their_own_delta(self, tmp_path, monkeypatch):
    words = self.words_of(PUBLISHED, tmp_path, monkeypatch)
    one, other = words["delta-1e-06"], words["delta-8e-07"]
    for each in PUBLISHED:
      assert each.authors in words["accuracy-vs-epsilon"]
      assert each.source in words["accuracy-vs-epsilon"]
      assert (each.authors in one) == (each.delta == 1e-6)
      assert (each.authors in other) == (each.delta == 8e-7)
      assert each.authors not in words["real-accuracy"]
    for name in PICTURES:
      assert "of other backbones and data" in words[name]
      assert "mean ± sd of 2 draws" in words[name]
    assert "ReaL labels, lamb, delta = 1e-06" in words["real-accuracy"]
    none = " ".join(self.words_of((), tmp_path, monkeypatch).values())
    assert all(each.authors not in none for each in PUBLISHED)
    assert "published" not in none

  def test_are_the_numbers_of_the_abstracts(self):
    """Whoever changes one of them has to change it here, and say why."""
    assert {
      (each.source, each.delta, tuple(each.top1.items()), each.is_range)
      for each in PUBLISHED
    } == {
      ("arXiv 2205.02973, abstract", 1e-6, ((4, 0.817), (10, 0.817)), True),
      ("arXiv 2204.13650, abstract", 8e-7, ((0.5, 0.838), (8, 0.867)), False),
      ("arXiv 2211.13403, abstract", 8e-7, ((0.1, 0.843), (8, 0.88)), False),
    }
    assert all(each.citation and each.setting for each in PUBLISHED)

  def test_are_for_imagenet_or_on_request(
    self, train_cache, eval_cache, tmp_path
  ):
    for dataset, drawn in {
      "imagenet2012": PUBLISHED,
      "imagenet2012_subset/10pct": PUBLISHED,
      "imagenet_v2": (),
      "cifar10": (),
    }.items():
      assert references_for(dataset) == drawn
    figures(train_cache, eval_cache, tmp_path / "out", references=True)
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert len(results["references"]) == 3


class TestTheCommand:
  @pytest.mark.usefixtures("draws")
  def test_the_table(self, place, capsys):
    words = place(f"{FIGURES} --baseline --noise-seed 3")
    out, err = succeeds(capsys, *words)
    assert "warning: the noise comes from a seed" in err
    header, one, other, exact, total, where = out.splitlines()
    assert header.split() == ["top-1", "%", "epsilon", "1", "epsilon", "4"]
    assert one.startswith("delta 1e-06")
    assert other.startswith("delta 8e-07")
    assert one.count("NOT PRIVATE") == 1
    assert one.endswith("(test labels treated as public: 80 rows)")
    assert exact.startswith("no noise")
    assert "NOT PRIVATE" in exact
    assert " at delta = 1e-06, or epsilon = " in total
    assert "out: 9 heads in" in where
    assert "accuracy-vs-epsilon.png" in where
    assert err.count("charged to") == 1


def test_cells_of_the_table_are_means_of_their_own_group():
  rows = [
    row(epsilon, draw, top1 + shift, delta=delta, evaluation=evaluation)
    for evaluation, shift in ((PUBLIC, 0.0), (REAL, 0.05))
    for delta, more in zip(DELTAS, (0.0, 0.1), strict=True)
    for epsilon, base in ((1.0, 0.5), (8.0, 0.6))
    for draw, top1 in enumerate((base + more, base + more + 0.02))
  ]
  spread = f"± {100 * statistics.stdev([0, 0.02]):.2f}"
  lines = figures_table(rows).splitlines()[1:5]
  assert [line.split()[2] for line in lines] == [
    "51.00",
    "61.00",
    "56.00",
    "66.00",
  ]
  assert all(line.count(spread) == 2 for line in lines)
