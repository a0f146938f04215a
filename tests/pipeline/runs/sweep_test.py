import json
import pathlib
from typing import Any, Literal

import pytest
import safetensors

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.runs.sweep import run_sweep
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline import paid
from tests.pipeline.command_line import SWEEP
from tests.pipeline.run_contract import (
  Finished,
  RunContract,
  epsilon_of,
  sigma_of,
)
from tests.pipeline.runs.results_test import read_csv
from tests.pipeline.sample_caches import write_clusters

pytestmark = pytest.mark.usefixtures("no_pictures")


def sweep(
  train: FeatureCache,
  evaluation: FeatureCache,
  out: pathlib.Path,
  epsilons: tuple[float, ...] = (1.0, 4.0),
  privacy: PrivacyConfig | None = None,
  *,
  order: Literal["nested", "independent"] = "nested",
  **changes: Any,
):
  run = Run(train=train, evaluation=evaluation, out=out, **changes)
  privacy = privacy or PrivacyConfig(delta=1e-5)
  return run_sweep(run, epsilons, privacy, HeadConfig(), order=order)


@pytest.fixture
def finished(finished_sweep, eval_cache) -> Finished:
  path, rows = finished_sweep.path, finished_sweep.rows
  return Finished(path=path, rows=rows, evaluations=[eval_cache])


class TestContract(RunContract):
  command = SWEEP
  whole = epsilon_of([sigma_of(e, 1e-5) for e in (1.0, 4.0)], 1e-5)
  charged = (1,)

  def quick(
    self,
    train: FeatureCache,
    evaluation: FeatureCache,
    noise_seed: int | None = None,
    **more: Any,
  ) -> list[SweepRow]:
    privacy = PrivacyConfig(delta=1e-5, noise_seed=noise_seed)
    more |= {"privacy": privacy, "order": "independent"}
    return sweep(train, evaluation, more.pop("out"), **more)


def names(folder: pathlib.Path) -> list[str]:
  return sorted(p.name for p in folder.iterdir())


class TestWhatItWrites:
  def test_every_head(self, finished_sweep):
    assert names(finished_sweep.path / "heads") == [
      "baseline-NOT-PRIVATE",
      *(f"epsilon-{e}-draw-{s}" for e in ("0.5", "2", "8") for s in (0, 1)),
    ]

  def test_a_row_for_each_head(self, finished_sweep):
    rows = read_csv(finished_sweep.path)
    assert [(row["epsilon"], row["draw"]) for row in rows] == [
      *((e, s) for s in "01" for e in ("8.0", "2.0", "0.5")),
      ("inf", "0"),
    ]
    same = ("delta", "head", "num_examples", "num_eval_examples")
    assert {tuple(row[name] for name in same) for row in rows} == {
      ("1e-05", "lamb", "180", "80")
    }
    assert [row["private"] for row in rows] == ["True"] * 6 + ["False"]

  def test_more_noise_for_less_epsilon_and_it_learns(self, finished_sweep):
    (baseline,) = (r for r in finished_sweep.rows if not r.private)
    assert baseline.top1 > 0.9
    assert all(r.top1 > 0.5 for r in finished_sweep.rows if r.epsilon == 8.0)
    sigmas = {row.epsilon: row.noise_multiplier for row in finished_sweep.rows}
    assert sigmas[0.5] > sigmas[2.0] > sigmas[8.0] > 0

  def test_the_resolved_config_is_beside_the_results(
    self, finished_sweep, train_cache
  ):
    config = json.loads((finished_sweep.path / "config.json").read_text())
    assert config["epsilons"] == [0.5, 8.0, 2.0]
    assert config["privacy"]["delta"] == 1e-5
    assert config["head"]["l2_clip_norm"] == 1.0
    assert config["num_draws"] == 2
    assert config["baseline"] is True
    assert config["train_cache"]["fingerprint"] == train_cache.fingerprint


class TestWhatItCosts:
  @pytest.mark.parametrize("draws", [1, 4])
  def test_a_nested_sweep_costs_its_largest_epsilon_in_each_draw(
    self, train_cache, eval_cache, tmp_path, draws
  ):
    place, epsilons = tmp_path / "out", (1.0, 0.5, 4.0)
    rows = sweep(train_cache, eval_cache, place, epsilons, num_draws=draws)
    sigma = min(row.noise_multiplier for row in rows)
    (entry,) = cache_ledger(train_cache, None).entries()
    assert paid.gaussians(entry) == {sigma: draws}
    (together,) = {row.composed_epsilon for row in rows}
    assert together == pytest.approx(
      epsilon_of([sigma] * draws, 1e-5), rel=1e-6
    )

  def test_an_independent_sweep_composes(
    self, train_cache, eval_cache, tmp_path
  ):
    epsilons, place = (0.5, 1.0, 2.0, 4.0, 8.0), tmp_path / "out"
    rows = sweep(train_cache, eval_cache, place, epsilons, order="independent")
    assert rows[0].composed_epsilon == pytest.approx(9.96, abs=0.005)
    assert {row.release for row in rows} == {"independent"}
    (entry,) = cache_ledger(train_cache, None).entries()
    assert list(paid.gaussians(entry).values()) == [1] * 5


def test_nothing_is_shown_before_the_ledger_knows(
  train_cache, eval_cache, tmp_path, monkeypatch
):
  """Or a copy of its record would make other heads for the same charge."""

  def fails(*_: Any) -> None:
    assert not (tmp_path / "out").exists()
    raise RunError("no space left")

  monkeypatch.setattr(Ledger, "publish", fails)
  with pytest.raises(RunError, match="no space left"):
    sweep(train_cache, eval_cache, tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_a_plan_that_makes_no_sense(train_cache, eval_cache, tmp_path):
  for epsilons in ((), (1.0, 1.0), (-1.0,)):
    with pytest.raises(InputError):
      sweep(train_cache, eval_cache, tmp_path / "out", epsilons)
  assert cache_ledger(train_cache, None).entries() == []


def test_another_precision_or_split_of_the_same_backbone_fits(
  train_cache, tmp_path
):
  other = write_clusters(
    tmp_path / "eval",
    (20, 30, 40, 50),
    split="validation",
    embedding_dtype="float32",
  )
  assert sweep(train_cache, other, tmp_path / "out")


def test_epsilons_that_look_alike_are_heads_of_their_own(
  train_cache, eval_cache, tmp_path
):
  close = (1.0, 1.000002, 1e-2, 0.01000002)
  rows = sweep(train_cache, eval_cache, tmp_path / "out", close)
  assert len(names(tmp_path / "out" / "heads")) == 4
  for row in rows:
    folder = tmp_path / "out" / row.path
    assert read_head(folder).receipt["privacy"]["epsilon"] == row.epsilon


def test_everything_a_seed_touches_says_so(train_cache, eval_cache, tmp_path):
  privacy = PrivacyConfig(delta=1e-5, noise_seed=3)
  sweep(train_cache, eval_cache, tmp_path / "one", privacy=privacy)
  for row in read_csv(tmp_path / "one"):
    assert (row["private"], row["noise_source"]) == (
      "False",
      "seeded: NOT PRIVATE",
    )
    folder = tmp_path / "one" / row["path"]
    assert read_head(folder).receipt["private"] is False
    assert "**NOT PRIVATE**" in (folder / "README.md").read_text()
  (entry,) = cache_ledger(train_cache, None).entries()
  assert entry["private"] is False


def test_heads_hold_two_arrays_and_what_they_are_of(finished_sweep):
  for row in finished_sweep.rows:
    file = finished_sweep.path / row.path / "head.safetensors"
    with safetensors.safe_open(file, "numpy") as opened:
      assert sorted(opened.keys()) == ["bias", "kernel"]
      assert opened.metadata() == {"input": "embedding"}
