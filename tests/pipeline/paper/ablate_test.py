"""`ablate`: what it writes, what it costs, and what it refuses."""

import csv
import dataclasses
import json
import math
import pathlib
import re
from typing import Any

import dp_accounting
import matplotlib.image
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, gaussian_mechanism
from dp_accounting.pld import PLDAccountant

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows import unit_norm_rows as secret_rows
from oneshot_dp.linear_dp.statistics import gradient_sum
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.paper.ablate import run_ablation
from oneshot_dp.pipeline.paper.ablation_cells import Choices
from oneshot_dp.pipeline.paper.ablation_table import AblationRow
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger, train_heads
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.sample_caches import write_clusters, write_damaged

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
RELATION = NeighboringRelation.REPLACE_SPECIAL
Pair = tuple[FeatureCache, FeatureCache]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
  path: pathlib.Path
  ledgers: pathlib.Path
  rows: list[AblationRow]
  caches: list[Pair]


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
  """Chunks of 32 rows a device, padded no further."""
  with pytest.MonkeyPatch.context() as patch:
    for module in (secret_rows, gradient_sum):
      patch.setattr(module, "ROWS_PER_DEVICE", 32)
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
  return Finished(
    path=folder / "out", ledgers=folder / "ledgers", rows=rows, caches=caches
  )


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


def sigma_of(epsilon: float) -> float:
  return gaussian_mechanism.get_sigma_gaussian(epsilon, DELTA)


def gaussians(count: int) -> float:
  """ε of so many releases of EPSILON, with no code of ours."""
  sigma = sigma_of(EPSILON) / math.sqrt(count)
  return gaussian_mechanism.get_epsilon_gaussian(sigma, DELTA)


class TestWhatItWrites:
  def test_files(self, finished):
    assert {p.name for p in finished.path.iterdir()} == {
      "ablation.pdf",
      "ablation.png",
      "config.json",
      "heads",
      "results.csv",
      "results.json",
    }

  def test_a_row_for_each_head(self, finished, eval_cache):
    with (finished.path / "results.csv").open(newline="") as file:
      lines = list(csv.DictReader(file))
    assert list(lines[0]) == [
      *("epsilon", "delta", "draw", "head", "noise_multiplier", "top1"),
      *("top5", "composed_epsilon", "num_examples", "num_eval_examples"),
      *("evaluation", "release", "noise_source", "private", "path"),
      *("axis", "setting", "cache", "epsilon_if_poisson"),
    ]
    cells = list(dict.fromkeys((r["axis"], r["setting"]) for r in lines))
    assert len(cells) == 12
    assert cells[-1] == ("resolution", "r384")
    assert len(lines) == 12 * 2
    assert len({line["path"] for line in lines}) == 24
    assert len(list((finished.path / "heads").iterdir())) == 24
    for line in lines:
      saved = read_head(finished.path / line["path"])
      _, evaluation = finished.caches[int(line["cache"])]
      (score,) = evaluate_on_public_labels([saved.head], evaluation).scores
      assert float(line["top1"]) == score.top1
      assert line["head"] == saved.receipt["training"]["head"]
      assert line["private"] == str(saved.receipt["private"])
      assert (line["private"] == "True") == (line["epsilon"] == "8.0")
      nominal = "partition" in line["setting"] and line["private"] == "True"
      assert bool(line["epsilon_if_poisson"]) == nominal

  def test_every_head_is_sound_and_paid_for(self, finished):
    for row in finished.rows:
      check = verify_head(finished.path / row.path, finished.ledgers)
      assert check.problems == ()
      assert "the ledger was charged for it" in check.conclusion
      assert ("NOT PRIVATE" in check.conclusion) == (not row.private)

  def test_heads_are_what_their_rows_say(self, finished):
    for row in finished.rows:
      receipt = read_head(finished.path / row.path).receipt
      mechanism, training = receipt["mechanism"], receipt["training"]
      info = finished.caches[row.cache][0].info
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
      sigma = sigma_of(EPSILON) * math.sqrt(epochs)
      accountant = PLDAccountant(value_discretization_interval=7e-4)
      event = dp_accounting.PoissonSampledDpEvent(
        1 / 3, dp_accounting.GaussianDpEvent(sigma)
      )
      accountant.compose(event, 3 * epochs)
      assert epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=3e-3)

  def test_what_was_asked_is_beside_it(self, finished):
    config = json.loads((finished.path / "config.json").read_text())
    assert (config["epsilon"], config["num_draws"]) == (8.0, 1)
    assert config["choices"]["batch_sizes"] == [60]
    assert config["privacy"]["delta"] == DELTA
    (beside,) = config["other_caches"]
    assert beside["preprocess"] == {"size": 384}

  def test_the_picture_is_one(self, finished):
    picture = matplotlib.image.imread(finished.path / "ablation.png")
    height, width = picture.shape[:2]
    assert width >= 600
    assert height >= 400
    assert picture.std() > 0.05

  def test_what_has_no_noise_is_its_owner_s_alone(self, finished):
    for row in finished.rows:
      folder = finished.path / row.path
      if not row.private:
        assert row.path.endswith("-NOT-PRIVATE")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert "**NOT PRIVATE**" in (folder / "README.md").read_text()


class TestWhatItCosts:
  def test_all_of_it_composes(self, finished, train_cache):
    """Ten lines of Gaussians and two of Poisson samples."""
    accountant = PLDAccountant(value_discretization_interval=7e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(sigma_of(EPSILON)), 10)
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
    assert spent.epsilon(DELTA) == pytest.approx(whole, rel=2e-3)

  def test_each_is_charged_before_its_noise(
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
    choices = dataclasses.replace(CHOICES, axes=("epochs", "clip"))
    ablate([(train_cache, eval_cache)], tmp_path / "out", choices=choices)
    assert list(dict.fromkeys(charged)) == [1, 2, 3]

  def test_the_whole_must_fit_under_the_cap(
    self, train_cache, eval_cache, tmp_path
  ):
    """Each line would fit alone."""
    ledger = cache_ledger(train_cache, None)
    cap = Cap(
      max_epsilon=gaussians(2) * 0.999,
      max_delta=DELTA,
      neighboring_relation=RELATION,
    )
    ledger.set_cap(cap)
    caches = [(train_cache, eval_cache)]
    with pytest.raises(InputError, match="would break the cap"):
      ablate(caches, tmp_path / "out")
    assert len(ledger.entries()) == 1
    assert not (tmp_path / "out").exists()
    ledger.set_cap(dataclasses.replace(cap, max_epsilon=gaussians(2) * 1.001))
    with pytest.raises(InputError, match="a baseline is NOT PRIVATE"):
      ablate(caches, tmp_path / "out", baseline=True)
    with pytest.raises(InputError, match="noise from a seed is NOT PRIVATE"):
      ablate(caches, tmp_path / "out", noise_seed=1)
    assert len(ledger.entries()) == 2
    rows = ablate(caches, tmp_path / "out")
    assert len(ledger.entries()) == 4
    for row in rows:
      assert row.composed_epsilon == pytest.approx(gaussians(2), rel=1e-6)
    # Nor is there anything without noise that nobody asked for.
    for path in (tmp_path / "out").rglob("*"):
      assert not path.is_file() or b"NOT PRIVATE" not in path.read_bytes()


class TestWhatItRefuses:
  """Before any budget is spent."""

  @pytest.fixture(autouse=True)
  def _nothing_is_charged(self, train_cache):
    yield
    assert cache_ledger(train_cache, None).entries() == []

  @pytest.mark.parametrize(
    ("words", "said"),
    [
      ("--axes", "nothing to change: give axes, or other caches"),
      ("--axes batch --batch-sizes 181", "not between 1 and the 180 rows"),
      ("--axes epochs --epochs 1", "epochs '1' is the same as base"),
      ("--axes clip --clip-norms nan", "l2_clip_norm=nan must be positive"),
      ("--axes init --init-scales nan", "init_scale=nan is not 0 or more"),
      ("--axes epochs --learning-rate 0", "learning_rate=0.0 must be"),
      ("--epsilon 0", "epsilon=0.0 must be positive"),
      ("--num-draws 0", "num_draws=0 must be at least 1"),
      (
        "--axes batch --neighboring-relation replace-one",
        "leave out --neighboring-relation replace-one",
      ),
      ("--axes batch --delta 1e-13", "too small to account for random"),
      ("--eval-cache {train}", "may hold training rows"),
      ("--out {tmp}", "already holds something"),
      (
        "--other-caches {train}",
        "1 --other-caches and 0 --other-eval-caches: give pairs",
      ),
      (
        "--other-eval-caches {eval} {eval}",
        "0 --other-caches and 2 --other-eval-caches: give pairs",
      ),
      (
        "--other-caches {train} --other-eval-caches {train}",
        "may hold training rows",
      ),
    ],
  )
  def test_in_one_line(self, place, capsys, words, said):
    assert said in fails(capsys, *place(f"{ABLATE} {words}"))

  def test_caches_of_other_images(self, train_cache, eval_cache, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
      tmp_path / "cats.npz",
      embedding=rng.standard_normal((60, 5)).astype(np.float32),
      label=rng.integers(0, 4, 60),
    )
    pair = [
      import_features(
        tmp_path / "cats.npz",
        tmp_path / split,
        split=split,
        num_classes=4,
        backbone_name="b",
        dataset_name="cats",
      )
      for split in ("train", "test")
    ]
    with pytest.raises(InputError, match="other caches are of the same images"):
      ablate([(train_cache, eval_cache), (pair[0], pair[1])], tmp_path / "out")

  def test_another_split(self, train_cache, eval_cache, tmp_path):
    extra = write_clusters(tmp_path / "extra", split="extra")
    pairs = [(train_cache, eval_cache), (extra, eval_cache)]
    with pytest.raises(InputError, match="split 'extra', not of 'pets', split"):
      ablate(pairs, tmp_path / "out")

  def test_a_damaged_evaluation_cache(self, train_cache, tmp_path):
    evaluation = write_damaged(tmp_path / "test")
    with pytest.raises(InputError, match="damaged"):
      ablate([(train_cache, evaluation)], tmp_path / "out")


class TestCaches:
  def test_folders_of_one_name(self, train_cache, eval_cache, tmp_path):
    """caches/224/train beside caches/384/train."""
    pairs = []
    for size in ("224", "384"):
      changes = {"preprocess": {"size": size}}
      train = write_clusters(tmp_path / size / "train", **changes)
      test = write_clusters(tmp_path / size / "test", split="test", **changes)
      pairs.append((train, test))
    choices = dataclasses.replace(CHOICES, axes=())
    rows = ablate(pairs, tmp_path / "out", choices=choices)
    assert [row.setting for row in rows[1:]] == ["384/train"]
    assert [row.cache for row in rows] == [0, 1]
    for row, (train, _) in zip(rows, pairs, strict=True):
      receipt = read_head(tmp_path / "out" / row.path).receipt
      assert receipt["data"]["cache_fingerprint"] == train.info.fingerprint

  def test_what_is_finished_when_it_is_stopped_is_written(
    self, train_cache, eval_cache, other, tmp_path, monkeypatch
  ):
    """Though nothing of the other caches is."""
    real, calls = train_heads, []

    def stopped(*args, **options):
      calls.append(args)
      if len(calls) == 2:
        raise KeyboardInterrupt
      return real(*args, **options)

    monkeypatch.setattr("oneshot_dp.pipeline.paper.ablate.train_heads", stopped)
    pairs = [(train_cache, eval_cache), other]
    with pytest.raises(
      KeyboardInterrupt, match="1 of 3 settings were finished"
    ):
      ablate(pairs, tmp_path / "out")
    (head,) = (tmp_path / "out/heads").iterdir()
    assert verify_head(head).problems == ()

  def test_units_have_heads_of_one_step_only(self, tmp_path):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, 120)
    np.savez(
      tmp_path / "visits.npz",
      embedding=(np.eye(4, 6)[label] + 0.1).astype(np.float32),
      label=label,
      unit_id=np.arange(120) // 3,
      class_names=np.array(["0", "1", "2", "3"]),
    )
    train, test = (
      import_features(
        tmp_path / "visits.npz",
        tmp_path / split,
        split=split,
        unit_name="user",
        backbone_name="b",
      )
      for split in ("train", "test")
    )
    with pytest.raises(
      InputError, match="privacy unit of these rows is 'user'"
    ):
      ablate([(train, test)], tmp_path / "out", choices=CHOICES)
    assert cache_ledger(train, None).entries() == []
    rows = ablate([(train, test)], tmp_path / "out")
    for row in rows:
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
    assert gaussians(4) <= float(found[1]) < gaussians(4) + 2e-2
    assert "test labels treated as public" in total
    assert mark == "the column without noise is NOT PRIVATE"
    assert "out: 8 heads in" in where
    assert where.endswith("see results.csv and ablation.png")
    charged, warning = err.splitlines()
    assert charged.startswith("charged to ")
    assert warning.startswith("warning: this is a new ledger: ")
    assert len(list((tmp_path / "out/heads").iterdir())) == 8

  def test_options_are_what_is_tried(self, place, capsys, monkeypatch):
    def asked(choices: Choices, names: list[str]):
      raise InputError(f"{choices}".replace("\n", " "))

    monkeypatch.setattr("oneshot_dp.pipeline.paper.ablate.cells", asked)
    words = (
      "--axes init epochs batch --init-scales 0.5 --epochs 2 --batch-sizes 60"
      " --clip-norms 3 --learning-rate 0.25"
    )
    choices = Choices(
      axes=("init", "epochs", "batch"),
      init_scales=(0.5,),
      epochs=(2,),
      batch_sizes=(60,),
      clip_norms=(3.0,),
      learning_rate=0.25,
    )
    assert fails(capsys, *place(f"{ABLATE} {words}")) == f"{choices}"

  def test_a_seed_is_owned_up_to(self, place, capsys, tmp_path, train_cache):
    words = "--axes clip --clip-norms 10 --noise-seed 3"
    out, err = succeeds(capsys, *place(f"{ABLATE} {words}"))
    assert err.count("warning: the noise comes from a seed") == 1
    assert "the noise comes from a seed: all of it is NOT PRIVATE" in out
    assert "no noise" not in out
    for folder in (tmp_path / "out/heads").iterdir():
      assert read_head(folder).receipt["private"] is False
    entries = cache_ledger(train_cache, None).entries()
    assert [e["private"] for e in entries] == [False, False]
