"""`figures`: what it draws and writes, what it costs, what it refuses."""

import csv
import dataclasses
import json
import pathlib
import statistics
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, gaussian_mechanism
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.paper.figure_plots import plot_figures
from oneshot_dp.pipeline.paper.figures import figures_table, run_figures
from oneshot_dp.pipeline.paper.published import PUBLISHED
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.runs.numbered_caches import write_entries, write_numbered
from tests.pipeline.runs.results_test import row
from tests.pipeline.sample_caches import write_clusters, write_damaged

pytestmark = pytest.mark.usefixtures("no_pictures")

DELTAS = (1e-6, 8e-7)
EPSILONS = (1.0, 4.0)
FIGURES = (
  "figures --cache {train} --eval-cache {eval} --epsilons 1 4 --num-draws 2"
  " --out {out}"
)
RELATION = NeighboringRelation.REPLACE_SPECIAL
PUBLIC, REAL = "test labels treated as public", "ReaL labels treated as public"
PICTURES = ("accuracy-vs-epsilon", "delta-1e-06", "delta-8e-07")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
  path: pathlib.Path
  ledgers: pathlib.Path
  evaluation: FeatureCache
  rows: list[SweepRow]
  results: dict[str, Any]


def figures(
  train: FeatureCache,
  evaluation: FeatureCache,
  out: pathlib.Path,
  epsilons: tuple[float, ...] = (1.0,),
  deltas: tuple[float, ...] = DELTAS,
  *,
  real_labels: pathlib.Path | None = None,
  references: bool = False,
  **more: Any,
) -> list[SweepRow]:
  """A quick one."""
  return run_figures(
    Run(train=train, evaluation=evaluation, out=out, **more),
    epsilons,
    [PrivacyConfig(delta=delta) for delta in deltas],
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
  return Finished(
    path=folder / "out",
    ledgers=folder / "ledgers",
    evaluation=evaluation,
    rows=rows,
    results=json.loads((folder / "out" / "results.json").read_text()),
  )


def sigma_of(epsilon: float, delta: float) -> float:
  return gaussian_mechanism.get_sigma_gaussian(epsilon, delta)


def epsilon_of(sigmas: list[float], delta: float) -> float:
  """The composition of Gaussian mechanisms, with no code of ours."""
  together = sum(sigma**-2 for sigma in sigmas) ** -0.5
  return gaussian_mechanism.get_epsilon_gaussian(together, delta)


class TestWhatItWrites:
  def test_every_head_at_every_delta(self, finished):
    assert {p.name for p in (finished.path / "heads").iterdir()} == {
      f"delta-{delta}-epsilon-{epsilon}-draw-{draw}"
      for delta in DELTAS
      for epsilon in (1, 4)
      for draw in (0, 1)
    } | {"baseline-NOT-PRIVATE"}

  def test_the_pictures(self, finished):
    for name in (*PICTURES, "real-accuracy"):
      with Image.open(finished.path / f"{name}.png") as image:
        image.load()
        assert image.size == (960, 810)
      pdf = (finished.path / f"{name}.pdf").read_bytes()
      assert pdf.startswith(b"%PDF-")

  def test_rows_are_about_the_heads_on_disk(self, finished):
    with (finished.path / "results.csv").open(newline="") as file:
      lines = list(csv.DictReader(file))
    assert [line["evaluation"] for line in lines] == [PUBLIC] * 9 + [REAL] * 9
    for plain, real in zip(lines[:9], lines[9:], strict=True):
      saved = read_head(finished.path / plain["path"])
      privacy = saved.receipt["privacy"]
      (score,) = evaluate_on_public_labels(
        [saved.head], finished.evaluation
      ).scores
      assert float(plain["top1"]) == score.top1
      assert float(plain["delta"]) == privacy["delta"]
      assert real["path"] == plain["path"]
      assert real["top1"] != plain["top1"]
      assert int(real["num_eval_examples"]) == 63 < score.num_examples
    assert finished.results["evaluation"]["real"]["num_left_out"] == 17

  def test_receipts_hold_and_the_ledger_has_what_paid(self, finished):
    for folder in (finished.path / "heads").iterdir():
      check = verify_head(folder, finished.ledgers)
      assert check.problems == ()
      assert "the ledger was charged for it" in check.conclusion

  def test_what_was_asked_is_beside_it(self, finished):
    config = json.loads((finished.path / "config.json").read_text())
    assert config["head"]["head"] == "lamb"
    assert [each["delta"] for each in config["privacy"]] == list(DELTAS)
    assert config["references"] is False
    assert finished.results["references"] == []
    assert config["eval_cache"]["id_source"] == "file_name"

  @pytest.mark.usefixtures("draws")
  def test_without_real_labels_there_is_no_such_picture(
    self, train_cache, eval_cache, tmp_path
  ):
    rows = figures(train_cache, eval_cache, tmp_path / "out")
    assert {each.evaluation for each in rows} == {PUBLIC}
    assert {p.stem for p in (tmp_path / "out").glob("*.png")} == {*PICTURES}
    for path in (tmp_path / "out").rglob("*"):
      assert not path.is_file() or b"NOT PRIVATE" not in path.read_bytes()


class TestWhatItCosts:
  def test_draws_and_deltas_compose(self, finished):
    sigmas = [sigma_of(4.0, delta) for delta in DELTAS for _ in range(2)]
    for delta in DELTAS:
      expected = epsilon_of(sigmas, delta)
      found = finished.results["composed_epsilon"][str(delta)]
      assert found == pytest.approx(expected, rel=1e-6)
      assert {
        each.composed_epsilon for each in finished.rows if each.delta == delta
      } == {found}

  def test_the_ledger_says_the_same(self, finished, train_cache):
    ledger = cache_ledger(train_cache, finished.ledgers)
    spent = ledger.spending(RELATION)
    assert (spent.charges, spent.not_private) == (3, 1)
    for delta in DELTAS:
      assert spent.epsilon(delta) == pytest.approx(
        finished.results["composed_epsilon"][str(delta)], rel=1e-8
      )

  def test_deltas_have_noise_of_their_own(self, tmp_path):
    """Shared, it could be told apart from what they have in common."""
    # Of so many signs that none of the heads are alike by chance.
    train, test = (
      write_clusters(tmp_path / split, split=split, d=18)
      for split in ("train", "test")
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

  def test_all_is_charged_before_any_noise(
    self, train_cache, eval_cache, tmp_path, monkeypatch
  ):
    ledger = cache_ledger(train_cache, None)
    charged = []
    for name in ("words", "bits"):
      draw = getattr(NoiseSource, name)
      monkeypatch.setattr(
        NoiseSource,
        name,
        lambda self, n, draw=draw: (
          charged.append(len(ledger.entries())) or draw(self, n)
        ),
      )
    figures(train_cache, eval_cache, tmp_path / "out")
    assert set(charged) == {2}

  def test_the_whole_must_fit_under_the_cap(
    self, train_cache, eval_cache, tmp_path
  ):
    """Each delta would fit alone."""
    ledger = cache_ledger(train_cache, None)
    whole = epsilon_of([sigma_of(1.0, d) for d in DELTAS], 1e-6)
    cap = Cap(
      max_epsilon=whole * 0.999, max_delta=1e-6, neighboring_relation=RELATION
    )
    ledger.set_cap(cap)
    with pytest.raises(InputError, match="would break the cap"):
      figures(train_cache, eval_cache, tmp_path / "out")
    assert len(ledger.entries()) == 1
    assert not (tmp_path / "out").exists()
    ledger.set_cap(dataclasses.replace(cap, max_epsilon=whole * 1.001))
    figures(train_cache, eval_cache, tmp_path / "out")
    assert len(ledger.entries()) == 4

  @pytest.mark.parametrize("deltas", [(1e-6, 0.5), (0.5, 1e-6)])
  def test_any_delta_may_be_too_large(
    self, train_cache, eval_cache, tmp_path, capsys, deltas
  ):
    figures(train_cache, eval_cache, tmp_path / "out", deltas=deltas)
    assert "warning: delta=0.5 is not below 1/n" in capsys.readouterr().err


class TestWhatItRefuses:
  """Before any budget is spent."""

  @pytest.fixture(autouse=True)
  def _nothing_is_charged(self, train_cache):
    yield
    assert cache_ledger(train_cache, None).entries() == []

  @pytest.mark.parametrize(
    ("words", "said"),
    [
      ("--deltas", "deltas=[] must be one or more, all different"),
      ("--deltas 1e-6 1e-6", "must be one or more, all different"),
      ("--deltas 1e-6 2", "delta=2.0 must lie strictly between 0 and 1"),
      ("--num-draws 0", "num_draws=0 must be at least 1"),
      ("--epsilons 1 1", "has an epsilon twice"),
      ("--eval-cache {train}", "may hold training rows"),
      ("--out {tmp}", "already holds something"),
      ("--real-labels {tmp}/none.json", "cannot be read"),
    ],
  )
  def test_in_one_line(self, place, capsys, tmp_path, words, said):
    (tmp_path / "something").touch()
    numbered = write_numbered(tmp_path / "numbered")
    line = FIGURES.replace("{eval}", str(numbered.path))
    assert said in fails(capsys, *place(f"{line} {words}"))

  def test_a_damaged_evaluation_cache(self, train_cache, tmp_path):
    evaluation = write_damaged(tmp_path / "test")
    with pytest.raises(InputError, match="damaged"):
      figures(train_cache, evaluation, tmp_path / "out")

  def test_real_labels_of_other_rows(self, place, capsys, tmp_path):
    file = write_entries(tmp_path / "real.json")
    words = place(f"{FIGURES} --real-labels {file}")
    assert "its ids are places in the split" in fails(capsys, *words)


class TestReferences:
  def words_of(self, references, folder, monkeypatch=None) -> dict[str, str]:
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
      drawn[pathlib.Path(path).stem] = " | ".join(words)

    if monkeypatch:
      monkeypatch.setattr(Figure, "savefig", keep)
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

  def test_are_left_out(self, tmp_path, monkeypatch):
    words = self.words_of((), tmp_path, monkeypatch)
    for each in PUBLISHED:
      assert all(each.authors not in said for said in words.values())
    assert all("published" not in said for said in words.values())

  @pytest.mark.parametrize(
    ("dataset", "asked", "drawn"),
    [("imagenet2012", False, 3), ("pets", True, 3)],
  )
  def test_are_for_imagenet_or_on_request(
    self, tmp_path, dataset, asked, drawn
  ):
    train, test = (
      write_clusters(tmp_path / split, split=split, dataset=dataset)
      for split in ("train", "test")
    )
    figures(train, test, tmp_path / "out", references=asked)
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert len(results["references"]) == drawn

  @pytest.mark.slow
  def test_the_same_rows_give_the_same_files(self, tmp_path):
    for name in ("a", "b"):
      (tmp_path / name).mkdir()
      self.words_of(PUBLISHED, tmp_path / name)
    for file in sorted((tmp_path / "a").iterdir()):
      assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


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
