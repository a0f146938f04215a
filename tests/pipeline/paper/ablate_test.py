"""`ablate`: what it writes, what it costs, and what it refuses."""

import dataclasses
import json
import math
import pathlib
import re
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.rows import unit_norm_rows as secret_rows
from oneshot_dp.pipeline.paper.ablate import run_ablation
from oneshot_dp.pipeline.paper.ablation_cells import Choices
from oneshot_dp.pipeline.paper.ablation_table import AblationRow
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline.command_line import succeeds
from tests.pipeline.run_contract import (
  RELATION,
  Finished,
  RunContract,
  epsilon_of,
  sigma_of,
)
from tests.pipeline.sample_caches import write_clusters

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_pictures")]

DELTA = 1e-5
EPSILON = 8.0
ABLATE = (
  "ablate --cache {train} --eval-cache {eval} --epsilon 8 --delta 1e-5"
  " --out {out}"
)
CHOICES = Choices(
  axes=("optimizer", "init", "epochs", "batch", "clip"),
  init_scales=(0.01,),
  epochs=(2,),
  batch_sizes=(60,),
  clip_norms=(0.1,),
  learning_rate=None,
)
FEW = dataclasses.replace(CHOICES, axes=("clip",))
Pair = tuple[FeatureCache, FeatureCache]


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
  """Chunks of 32 rows a device, padded no further."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(secret_rows, "ROWS_PER_DEVICE", 32)
    yield


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Pair:
  """The same images at another resolution."""
  folder = tmp_path_factory.mktemp("other")
  changes = {"preprocess": {"size": 384}}
  test = write_clusters(folder / "e", (20,) * 4, split="test", **changes)
  return write_clusters(folder / "r384", **changes), test


@pytest.fixture(scope="module")
def finished(train_cache, eval_cache, other, tmp_path_factory) -> Finished:
  folder = tmp_path_factory.mktemp("ablate")
  caches = [(train_cache, eval_cache), other]
  options = {"baseline": True, "ledger_dir": folder / "ledgers"}
  rows = ablate(caches, folder / "out", choices=CHOICES, **options)
  tests = [evaluation for _, evaluation in caches]
  return Finished(path=folder / "out", rows=rows, evaluations=tests)


def ablate(
  caches: list[Pair],
  out: pathlib.Path,
  choices: Choices = FEW,
  noise_seed: int | None = None,
  **more: Any,
) -> list[AblationRow]:
  """A quick one: the base and another clipping."""
  (train, evaluation), *others = caches
  run = Run(train=train, evaluation=evaluation, out=out, **more)
  privacy = PrivacyConfig(delta=DELTA, noise_seed=noise_seed)
  return run_ablation(run, EPSILON, privacy, choices, others=others)


class TestContract(RunContract):
  command = ABLATE
  whole = epsilon_of([sigma_of(EPSILON, DELTA)] * 2, DELTA)
  charged = (1, 2)  # each before its own
  pictures = ("ablation",)

  def quick(self, train, evaluation, **more: Any) -> list[AblationRow]:
    return ablate([(train, evaluation)], more.pop("out"), **more)


class TestWhatItWrites:
  def test_a_row_for_each_head(self, finished):
    lines = finished.lines()
    assert list(lines[0]) == [
      *("epsilon", "delta", "draw", "head", "noise_multiplier", "top1"),
      *("top5", "balanced", "composed_epsilon", "num_examples"),
      *("num_eval_examples", "evaluation", "release", "noise_source"),
      *("private", "path", "recall", "axis", "setting", "cache"),
      "epsilon_if_poisson",
    ]
    cells = list(dict.fromkeys((r["axis"], r["setting"]) for r in lines))
    assert len(cells) == 12
    assert cells[-1] == ("resolution", "r384")
    assert len(lines) == 12 * 2
    for line in lines:
      assert (line["private"] == "True") == (line["epsilon"] == "8.0")
      nominal = "partition" in line["setting"] and line["private"] == "True"
      assert bool(line["epsilon_if_poisson"]) == nominal
    config = json.loads((finished.path / "config.json").read_text())
    assert (config["epsilon"], config["num_draws"]) == (8.0, 1)
    assert config["choices"]["batch_sizes"] == [60]
    assert config["privacy"]["delta"] == DELTA
    (beside,) = config["other_caches"]
    assert beside["preprocess"] == {"size": 384}

  def test_heads_are_what_their_rows_say(self, finished, train_cache, other):
    for row in finished.rows:
      receipt = read_head(finished.path / row.path).receipt
      mechanism, training = receipt["mechanism"], receipt["training"]
      info = (train_cache, other[0])[row.cache].info
      assert receipt["data"]["cache_fingerprint"] == info.fingerprint
      match row.axis:
        case "optimizer":
          assert training["head"] == row.setting
        case "clip":
          assert mechanism["l2_clip_norm"] == 0.1
        case "epochs":
          assert (mechanism["num_steps"], mechanism["init"]) == (2, "zero")
        case "init":
          assert mechanism["init"] in row.setting
          assert mechanism["num_steps"] == 1
        case "batch":
          batches = mechanism["batches"]
          said = f"60, {batches['sampling']}, {batches['epochs']} epoch"
          assert row.setting.rstrip("s") == said
          assert mechanism["loss"] == {"name": "sigmoid", "bias": -10.0}
        case _:
          assert (training["head"], mechanism["l2_clip_norm"]) == ("lamb", 1)

  def test_epsilon_as_the_paper_accounts(self, finished):
    """Partitions as Poisson samples: by dp_accounting alone."""
    found = {
      (row.setting, row.epsilon_if_poisson)
      for row in finished.rows
      if row.epsilon_if_poisson
    }
    assert len(found) == 2
    for setting, epsilon in found:
      epochs = 2 if "2 epochs" in setting else 1
      sigma = sigma_of(EPSILON, DELTA) * math.sqrt(epochs)
      accountant = PLDAccountant(value_discretization_interval=7e-4)
      event = dp_accounting.PoissonSampledDpEvent(
        1 / 3, dp_accounting.GaussianDpEvent(sigma)
      )
      accountant.compose(event, 3 * epochs)
      assert epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=3e-3)


class TestWhatItCosts:
  def test_all_of_it_composes(self, finished, train_cache):
    """Ten lines of Gaussians and two of Poisson samples."""
    accountant = PLDAccountant(value_discretization_interval=7e-4)
    accountant.compose(
      dp_accounting.GaussianDpEvent(sigma_of(EPSILON, DELTA)), 10
    )
    third = round(2**32 / 3) / 2**32
    for epochs in (1, 2):
      sampling = PoissonSampling(probability=third, num_steps=3 * epochs)
      event = dp_accounting.PoissonSampledDpEvent(
        third,
        dp_accounting.GaussianDpEvent(
          sampling.noise_multiplier(EPSILON, DELTA)
        ),
      )
      accountant.compose(event, 3 * epochs)
    whole = accountant.get_epsilon(DELTA)
    results = json.loads((finished.path / "results.json").read_text())
    assert results["composed_epsilon"] == pytest.approx(whole, rel=2e-3)
    assert len(results["releases"]) == 12
    assert {r.composed_epsilon for r in finished.rows} == {
      results["composed_epsilon"]
    }
    ledger = cache_ledger(train_cache, finished.ledgers)
    spent = ledger.spending(RELATION)
    assert (spent.charges, spent.not_private) == (24, 12)
    # The ledger has to count what may have been chosen step by step.
    assert whole * (1 - 2e-3) < spent.epsilon(DELTA) < 1.2 * whole


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"dataset": "cats"}, "the dataset 'cats', not 'pets'"),
    ({"split": "extra"}, "the split 'extra', not 'train'"),
    (
      {"privacy_unit": "user", "unit_id": np.arange(180)},
      "the privacy unit 'user', not 'example'",
    ),
  ],
)
def test_caches_of_other_images_are_refused_before_any_charge(
  train_cache, eval_cache, tmp_path, changes, said
):
  other = write_clusters(tmp_path / "other", **changes)
  pairs = [(train_cache, eval_cache), (other, eval_cache)]
  with pytest.raises(InputError, match=f"{said}.*are of the same images"):
    ablate(pairs, tmp_path / "out")
  assert cache_ledger(train_cache, None).entries() == []


def test_what_is_tried_by_default(
  train_cache, eval_cache, tmp_path, monkeypatch
):
  """Batches of a tenth; caches/224/train beside caches/384/train."""

  def asked(choices: Choices, names: list[str]):
    raise InputError(f"{choices.batch_sizes}, {names}")

  monkeypatch.setattr("oneshot_dp.pipeline.paper.ablate.cells", asked)
  monkeypatch.setattr("oneshot_dp.pipeline.paper.ablate.check_pair", print)
  for folder in ("x", "384/train"):
    other = write_clusters(tmp_path / folder)
    pairs = [(train_cache, eval_cache), (other, eval_cache)]
    with pytest.raises(InputError, match=rf"^\(18,\), .*'{folder}'\]$"):
      ablate(pairs, tmp_path / "out", choices=Choices())


def test_heads_of_units(users, tmp_path):
  choices = dataclasses.replace(CHOICES, axes=("clip", "epochs"))
  for row in ablate([users], tmp_path / "out", choices=choices):
    assert verify_head(tmp_path / "out" / row.path).problems == ()


class TestTheCommand:
  @pytest.mark.usefixtures("draws")
  def test_the_table(self, place, capsys, tmp_path):
    words = "--axes optimizer clip --clip-norms 10 --baseline"
    out, err = succeeds(capsys, *place(f"{ABLATE} {words}"))
    header, base, adam, momentum, clip, total, mark, where = out.splitlines()
    assert header.split() == [
      *("epsilon", "8", "change"),
      *("no", "noise", "change"),
    ]
    assert base.startswith("base        lamb, zero, 1 epoch, full batch")
    assert adam.split()[:2] == ["optimizer", "adam"]
    assert momentum.split()[:2] == ["optimizer", "momentum"]
    assert clip.split()[:2] == ["clip", "10"]
    found = re.search(r"epsilon = ([\d.]+) at delta = 1e-05", total)
    assert found
    whole = epsilon_of([sigma_of(EPSILON, DELTA)] * 4, DELTA)
    assert whole <= float(found[1]) < whole + 2e-2
    assert "test labels treated as public" in total
    assert mark == "the column without noise is NOT PRIVATE"
    assert "out: 8 heads in" in where
    assert where.endswith("see results.csv and ablation.png")
    asked, charged, first = err.splitlines()
    assert asked.startswith("asks for 4 releases of 6 x 4 weights: ")
    assert charged.startswith("charged to ")
    assert first.startswith("its first charge: ")
    assert len(list((tmp_path / "out/heads").iterdir())) == 8
