"""`compare`: what it writes, what it costs, and what it refuses."""

import csv
import dataclasses
import json
import pathlib
import re
import stat
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, gaussian_mechanism

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  HeadConfig,
  MethodName,
  PrivacyConfig,
  StepsConfig,
)
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.linear_dp.statistics import gradient_sum
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.runs.compare import run_compare
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.head_choice import choose_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.sample_caches import write_damaged
from tests.pipeline.saved_head.receipt_test import changed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_pictures")]

DELTA = 1e-5
EPSILONS = (1.0, 4.0)
COMPARE = (
  "compare --cache {train} --eval-cache {eval} --epsilons 1 4 --delta 1e-5"
  " --out {out}"
)
ONE_STEP = ("lamb", "adam", "momentum")
RELATION = NeighboringRelation.REPLACE_SPECIAL
OTHERS = ("whitened", "least-squares", "multi-step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
  path: pathlib.Path
  ledgers: pathlib.Path
  rows: list[SweepRow]

  def head(self, name: str) -> np.ndarray:
    return np.asarray(read_head(self.path / "heads" / name).head.kernel)


@pytest.fixture(scope="module", autouse=True)
def few_steps():
  """Of several-step heads; chunks of 32 rows a device, padded no further."""

  def chosen(config: HeadConfig, info: CacheInfo) -> HeadConfig:
    if config.head == "multi-step":
      config = HeadConfig(head="multi-step", steps=StepsConfig(epochs=2))
    return choose_head(config, info)

  with pytest.MonkeyPatch.context() as patch:
    for module in (unit_norm_rows, gradient_sum):
      patch.setattr(module, "ROWS_PER_DEVICE", 32)
    patch.setattr(WhiteningRule, "num_steps", 3)
    patch.setattr("oneshot_dp.pipeline.runs.compare.choose_head", chosen)
    yield


@pytest.fixture(scope="module")
def finished(train_cache, eval_cache, tmp_path_factory) -> Finished:
  folder = tmp_path_factory.mktemp("compare")
  run = Run(
    train=train_cache,
    evaluation=eval_cache,
    out=folder / "out",
    baseline=True,
    ledger_dir=folder / "ledgers",
  )
  rows = run_compare(run, EPSILONS, PrivacyConfig(delta=DELTA))
  return Finished(path=folder / "out", ledgers=folder / "ledgers", rows=rows)


def compare(
  train: FeatureCache,
  evaluation: FeatureCache,
  out: pathlib.Path,
  methods: tuple[MethodName, ...] = ("lamb", "whitened"),
  **more: Any,
) -> list[SweepRow]:
  """A quick one."""
  run = Run(train=train, evaluation=evaluation, out=out, **more)
  return run_compare(run, (1.0,), PrivacyConfig(delta=DELTA), methods=methods)


def epsilon_of(*sigmas: float) -> float:
  """The composition of Gaussian mechanisms, with no code of ours."""
  together = sum(sigma**-2 for sigma in sigmas) ** -0.5
  return gaussian_mechanism.get_epsilon_gaussian(together, DELTA)


def sigma_of(epsilon: float) -> float:
  return gaussian_mechanism.get_sigma_gaussian(epsilon, DELTA)


class TestWhatItWrites:
  def test_every_head_at_every_epsilon(self, finished):
    expected = {
      f"{method}-epsilon-{epsilon}-draw-0"
      for method in (*ONE_STEP, *OTHERS)
      for epsilon in (1, 4)
    } | {"logistic-NOT-PRIVATE"}
    assert {p.name for p in (finished.path / "heads").iterdir()} == expected
    assert {p.name for p in finished.path.iterdir()} == {
      "accuracy.pdf",
      "accuracy.png",
      "config.json",
      "heads",
      "results.csv",
      "results.json",
    }

  def test_rows_are_about_the_heads_on_disk(self, finished, eval_cache):
    with (finished.path / "results.csv").open(newline="") as file:
      lines = list(csv.DictReader(file))
    assert len(lines) == 13
    for line in lines:
      saved = read_head(finished.path / line["path"])
      (score,) = evaluate_on_public_labels([saved.head], eval_cache).scores
      assert float(line["top1"]) == score.top1, line["path"]
      assert line["head"] == saved.receipt["training"]["head"]
      assert line["private"] == str(saved.receipt["private"])
      assert line["evaluation"] == "test labels treated as public"

  def test_receipts_hold_and_the_ledger_has_what_paid(self, finished):
    for row in finished.rows:
      check = verify_head(finished.path / row.path, finished.ledgers)
      assert check.problems == ()
      assert "the ledger was charged for it" in check.conclusion

  def test_what_was_asked_is_beside_it(self, finished):
    config = json.loads((finished.path / "config.json").read_text())
    assert [head["head"] for head in config["heads"]] == [
      *ONE_STEP,
      *OTHERS,
    ]
    assert config["epsilons"] == list(EPSILONS)
    assert config["num_draws"] == 1


class TestWhatItCosts:
  def test_nested_heads_cost_their_largest_epsilon_and_others_compose(
    self, finished
  ):
    one, four = sigma_of(1.0), sigma_of(4.0)
    expected = epsilon_of(four, four, *[one, four] * 2)
    results = json.loads((finished.path / "results.json").read_text())
    assert results["composed_epsilon"] == pytest.approx(expected, rel=1e-6)
    assert {row.composed_epsilon for row in finished.rows} == {
      results["composed_epsilon"]
    }
    releases = results["releases"]
    assert [release["heads"] for release in releases] == [
      list(ONE_STEP),
      *([method] for method in OTHERS),
    ]
    for release in releases:
      charged = release["noise_multipliers_charged"]
      if release["heads"][0] in ("lamb", "least-squares"):
        assert charged == pytest.approx([four])
      else:
        assert sorted(charged) == pytest.approx(sorted([one, four]))

  def test_the_ledger_says_the_same(self, finished, train_cache):
    ledger = cache_ledger(train_cache, finished.ledgers)
    spent = ledger.spending(RELATION)
    assert (spent.charges, spent.not_private) == (5, 1)
    assert spent.epsilon(DELTA) == pytest.approx(
      finished.rows[0].composed_epsilon, rel=1e-8
    )

  def test_heads_of_one_step_are_of_one_release(self, finished):
    """Fresh noise of its own would turn some of the signs."""
    name = "epsilon-1-draw-0"
    momentum = np.sign(finished.head(f"momentum-{name}"))
    for other in ("lamb", "adam"):
      signs = np.sign(finished.head(f"{other}-{name}"))
      np.testing.assert_array_equal(signs, momentum)

  def test_all_is_charged_before_any_noise(
    self, train_cache, eval_cache, tmp_path, monkeypatch
  ):
    ledger = cache_ledger(train_cache, None)
    charged = []
    words, bits = NoiseSource.words, NoiseSource.bits
    for name, draw in (("words", words), ("bits", bits)):
      monkeypatch.setattr(
        NoiseSource,
        name,
        lambda self, n, draw=draw: (
          charged.append(len(ledger.entries())) or draw(self, n)
        ),
      )
    compare(train_cache, eval_cache, tmp_path / "out")
    assert set(charged) == {2}
    # Nor is there a ceiling that nobody asked for.
    assert all(entry["private"] for entry in ledger.entries())
    for path in (tmp_path / "out").rglob("*"):
      assert not path.is_file() or b"NOT PRIVATE" not in path.read_bytes()

  def test_the_whole_must_fit_under_the_cap(
    self, train_cache, eval_cache, tmp_path, monkeypatch
  ):
    """Each part would fit alone; and nobody waits to be told."""
    reads = []
    blocks = FeatureCache.blocks
    monkeypatch.setattr(
      FeatureCache,
      "blocks",
      lambda self, *args: reads.append(self.path) or blocks(self, *args),
    )
    ledger = cache_ledger(train_cache, None)
    whole = epsilon_of(sigma_of(1.0), sigma_of(1.0))
    cap = Cap(
      max_epsilon=whole * 0.999,
      max_delta=DELTA,
      neighboring_relation=RELATION,
    )
    ledger.set_cap(cap)
    with pytest.raises(InputError, match="would break the cap"):
      compare(train_cache, eval_cache, tmp_path / "out")
    assert len(ledger.entries()) == 1
    assert not (tmp_path / "out").exists()
    assert train_cache.path not in reads
    ledger.set_cap(dataclasses.replace(cap, max_epsilon=whole * 1.001))
    with pytest.raises(InputError, match="a baseline is NOT PRIVATE"):
      compare(train_cache, eval_cache, tmp_path / "out", baseline=True)
    assert len(ledger.entries()) == 2
    compare(train_cache, eval_cache, tmp_path / "out")
    assert len(ledger.entries()) == 4


class TestTheCeiling:
  def test_it_owns_up(self, finished, train_cache):
    *private, row = finished.rows
    assert row.head == "logistic"
    assert not row.private
    assert row.epsilon == float("inf")
    assert all(other.private for other in private)
    folder = finished.path / row.path
    assert "**NOT PRIVATE**" in (folder / "README.md").read_text()
    note = cache_ledger(train_cache, finished.ledgers).entries()[-1]
    assert (note["kind"], note["private"]) == ("baseline", False)
    assert (
      read_head(folder).receipt["composition"]["ledger_entry"]
      == (note["entry"])
    )

  def test_it_is_its_owner_s_alone(self, finished):
    (row,) = (row for row in finished.rows if row.head == "logistic")
    folder = finished.path / row.path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
      assert stat.S_IMODE(path.stat().st_mode) == 0o600

  @pytest.mark.parametrize(
    ("path", "value"),
    [
      (("private",), True),
      (("mechanism", "l2_penalty"), 0.5),
      (("mechanism", "clipped"), "row"),
      (("privacy", "epsilon"), 1.0),
    ],
  )
  def test_its_receipt_cannot_be_changed(self, finished, path, value):
    receipt = read_head(finished.path / "heads/logistic-NOT-PRIVATE").receipt
    assert problems(receipt) == []
    assert problems(changed(receipt, path, value))

  def test_noise_that_never_was_does_not_make_it_private(self, finished):
    """The numbers of a private receipt, about a head that no noise is in."""
    name = "heads/whitened-epsilon-1-draw-0"
    private = read_head(finished.path / name).receipt
    exact = read_head(finished.path / "heads/logistic-NOT-PRIVATE").receipt
    forged = exact | {
      key: private[key] for key in ("private", "privacy", "composition")
    }
    (problem,) = problems(forged)
    assert re.fullmatch(
      r"noise_sd_steps is [\d.]+ and should be 0\.0\.", problem
    )


class TestWhatItRefuses:
  """Before any budget is spent."""

  @pytest.fixture(autouse=True)
  def _nothing_is_charged(self, train_cache):
    yield
    assert cache_ledger(train_cache, None).entries() == []

  @pytest.mark.parametrize(
    ("words", "said"),
    [
      ("--private-eval 1", "--private-eval"),
      ("--heads lamb auto", "auto"),
      ("--heads", "heads is empty"),
      ("--num-draws 0", "num_draws=0 must be at least 1"),
      ("--epsilons 1 1", "has an epsilon twice"),
      ("--epsilons", "epsilons is empty"),
      ("--eval-cache {train}", "may hold training rows"),
      ("--out {tmp}", "already holds something"),
    ],
  )
  def test_in_one_line(self, place, capsys, words, said):
    assert said in fails(capsys, *place(f"{COMPARE} {words}"))

  def test_a_damaged_evaluation_cache(self, train_cache, tmp_path):
    evaluation = write_damaged(tmp_path / "test")
    with pytest.raises(InputError, match="damaged"):
      compare(train_cache, evaluation, tmp_path / "out")


class TestTheCommand:
  def test_the_table(self, place, capsys):
    words = "--heads whitened lamb whitened --baseline --noise-seed 3"
    out, err = succeeds(capsys, *place(f"{COMPARE} {words}"))
    header, lamb, whitened, logistic, total, where = out.splitlines()
    assert header.split() == ["top-1", "%", "epsilon", "1", "epsilon", "4"]
    assert [lamb.split()[0], whitened.split()[0]] == ["lamb", "whitened"]
    assert "warning: the noise comes from a seed" in err
    assert lamb.endswith("NOT PRIVATE")
    assert whitened.endswith("NOT PRIVATE")
    assert logistic.startswith("logistic")
    assert logistic.endswith("NOT PRIVATE: no noise")
    epsilon = epsilon_of(sigma_of(4.0), sigma_of(1.0), sigma_of(4.0))
    found = re.search(r"epsilon = ([\d.]+) at delta = 1e-05", total)
    assert found
    assert epsilon <= float(found[1]) < epsilon + 2e-4
    assert "(nested: lamb; independent: whitened)" in total
    assert "test labels treated as public" in total
    assert "out: 5 heads in" in where
    assert err.count("charged to") == 1


class TestUnits:
  @pytest.fixture
  def users(self, tmp_path) -> FeatureCache:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, 120)
    for split, offset in (("train", 0.1), ("test", 0.2)):
      np.savez(
        tmp_path / "visits.npz",
        embedding=(np.eye(4, 6)[label] + offset).astype(np.float32),
        label=label,
        unit_id=np.arange(120) // 3,
        class_names=np.array(["0", "1", "2", "3"]),
      )
      import_features(
        tmp_path / "visits.npz",
        tmp_path / split,
        split=split,
        unit_name="user",
        backbone_name="b",
      )
    return tmp_path

  def test_heads_per_example_are_left_out(self, users, capsys):
    argv = ["--epsilons", 8, "--delta", 1e-5, "--baseline"]
    argv += ["--cache", users / "train", "--eval-cache", users / "test"]
    out, err = succeeds(capsys, "compare", *argv, "--out", users / "out")
    assert "left out: least-squares, multi-step, whitened" in err
    assert "privacy unit is 'user'" in err
    assert [line.split()[0] for line in out.splitlines()[1:5]] == [
      *ONE_STEP,
      "logistic",
    ]
    for folder in (users / "out" / "heads").iterdir():
      assert verify_head(folder).problems == ()
    card = users / "out/heads/logistic-NOT-PRIVATE/README.md"
    assert "nothing bounds their influence" in card.read_text()
    argv += ["--heads", "whitened", "--out", users / "again"]
    assert "guarantee per example" in fails(capsys, "compare", *argv)
