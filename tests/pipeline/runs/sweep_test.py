import csv
import json
import pathlib
import re
from typing import Any, Literal

import numpy as np
import pytest
import safetensors

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.identity import (
  BackboneIdentity,
  numbered_class_names,
)
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.runs.sweep import run_sweep
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline import paid
from tests.pipeline.by_chance import same_bits, without_names
from tests.pipeline.sample_caches import (
  write_clusters,
  write_damaged,
  write_rows,
)
from tests.pipeline.small_disk import files_no_larger_than

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


def read_csv(out: pathlib.Path) -> list[dict[str, str]]:
  with (out / "results.csv").open(newline="") as file:
    return list(csv.DictReader(file))


def names(folder: pathlib.Path) -> list[str]:
  return sorted(p.name for p in folder.iterdir())


class TestWhatItWrites:
  def test_the_files(self, finished_sweep):
    assert names(finished_sweep.path) == [
      "accuracy.pdf",
      "accuracy.png",
      "config.json",
      "heads",
      "results.csv",
      "results.json",
    ]
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
    assert {row["delta"] for row in rows} == {"1e-05"}
    assert {row["head"] for row in rows} == {"lamb"}
    assert {row["num_examples"] for row in rows} == {"180"}
    assert {row["num_eval_examples"] for row in rows} == {"80"}
    assert [row["private"] for row in rows] == ["True"] * 6 + ["False"]

  def test_accuracies_are_those_of_the_heads_on_disk(
    self, finished_sweep, eval_cache
  ):
    for row in read_csv(finished_sweep.path):
      head = read_head(finished_sweep.path / row["path"]).head
      (score,) = evaluate_on_public_labels([head], eval_cache).scores
      assert float(row["top1"]) == score.top1
      assert float(row["top5"]) == score.top5 == 1.0

  def test_sigma_is_that_of_the_receipt(self, finished_sweep):
    for row in finished_sweep.rows:
      folder = finished_sweep.path / row.path
      assert verify_head(folder).problems == ()
      privacy = read_head(folder).receipt["privacy"]
      assert row.noise_multiplier == privacy["noise_multiplier"]

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
  def test_a_nested_sweep_costs_its_largest_epsilon(
    self, train_cache, eval_cache, tmp_path
  ):
    rows = sweep(train_cache, eval_cache, tmp_path / "out", (1.0, 0.5, 4.0))
    for row in rows:
      assert row.composed_epsilon == pytest.approx(4.0, rel=1e-6)
    (entry,) = cache_ledger(train_cache, None).entries()
    assert list(paid.gaussians(entry).values()) == [1]
    # Nor is there a baseline that nobody asked for.
    assert entry["private"] is True
    assert all(row.private for row in rows)
    for path in (tmp_path / "out").rglob("*"):
      assert not path.is_file() or b"NOT PRIVATE" not in path.read_bytes()

  def test_an_independent_sweep_composes(
    self, train_cache, eval_cache, tmp_path
  ):
    rows = sweep(
      train_cache,
      eval_cache,
      tmp_path / "out",
      (0.5, 1.0, 2.0, 4.0, 8.0),
      order="independent",
    )
    assert rows[0].composed_epsilon == pytest.approx(9.96, abs=0.005)
    assert {row.release for row in rows} == {"independent"}
    (entry,) = cache_ledger(train_cache, None).entries()
    assert list(paid.gaussians(entry).values()) == [1] * 5

  def test_every_draw_is_paid_for(self, train_cache, eval_cache, tmp_path):
    rows = sweep(train_cache, eval_cache, tmp_path / "out", num_draws=4)
    sigma = min(row.noise_multiplier for row in rows)
    (entry,) = cache_ledger(train_cache, None).entries()
    assert paid.gaussians(entry) == {sigma: 4}
    assert rows[0].composed_epsilon > 8


class TestWhatItRefuses:
  """Before any budget is spent."""

  @pytest.fixture(autouse=True)
  def _nothing_is_charged(self, train_cache, tmp_path):
    yield
    assert cache_ledger(train_cache, None).entries() == []

  def test_an_earlier_result(self, train_cache, eval_cache, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="already holds something"):
      sweep(train_cache, eval_cache, tmp_path)

  def test_a_place_that_cannot_be_written(
    self, train_cache, eval_cache, tmp_path
  ):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="is not writable"):
      sweep(train_cache, eval_cache, tmp_path / "file" / "out")

  @pytest.mark.parametrize(
    ("changes", "said"),
    [
      ({"backbone": BackboneIdentity(name="other")}, "the same backbone"),
      ({"preprocess": {"image_size": 99}}, "the same backbone"),
      ({"d": 7}, "the same backbone"),
      (
        {"class_names": numbered_class_names(5)},
        "has 4 classes, .* 5: they are not of one data set",
      ),
      ({"class_names": ("0", "1", "3", "2")}, "name their classes differently"),
    ],
    ids=["backbone", "preprocess", "d", "K", "names"],
  )
  def test_caches_that_do_not_fit(self, train_cache, tmp_path, changes, said):
    other = write_clusters(tmp_path / "eval", split="test", **changes)
    with pytest.raises(InputError, match=said):
      sweep(train_cache, other, tmp_path / "out")
    assert names(tmp_path) == ["eval"]

  @pytest.mark.parametrize(
    ("epsilons", "num_draws"),
    [((), 1), ((1.0, 1.0), 1), ((-1.0,), 1), ((1.0,), 0)],
    ids=["none", "twice", "negative", "no draws"],
  )
  def test_a_plan_that_makes_no_sense(
    self, train_cache, eval_cache, tmp_path, epsilons, num_draws
  ):
    caches = train_cache, eval_cache
    with pytest.raises(InputError):
      sweep(*caches, tmp_path / "out", epsilons, num_draws=num_draws)

  def test_the_training_rows(self, train_cache, tmp_path):
    with pytest.raises(InputError, match="may hold training rows"):
      sweep(train_cache, train_cache, tmp_path / "out")

  def test_a_damaged_evaluation_cache(self, train_cache, tmp_path):
    with pytest.raises(InputError, match="damaged"):
      sweep(train_cache, write_damaged(tmp_path / "test"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


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


@pytest.mark.parametrize("room", [3000, 3500])
def test_a_full_disk_leaves_nothing_half_written(
  train_cache, eval_cache, tmp_path, ledger_dir, room
):
  """Room for the charge, but not for all the results."""
  with (
    files_no_larger_than(room),
    pytest.raises(RunError, match=r"out cannot be written: File too large\."),
  ):
    sweep(train_cache, eval_cache, tmp_path / "out")
  assert names(tmp_path) == ["ledgers"]
  assert len(cache_ledger(train_cache, None).entries()) == 1


def test_epsilons_that_look_alike_are_heads_of_their_own(
  train_cache, eval_cache, tmp_path
):
  close = (1.0, 1.000002, 1e-2, 0.01000002)
  rows = sweep(train_cache, eval_cache, tmp_path / "out", close)
  assert len(names(tmp_path / "out" / "heads")) == 4
  for row in rows:
    folder = tmp_path / "out" / row.path
    assert read_head(folder).receipt["privacy"]["epsilon"] == row.epsilon


class TestSeeded:
  @pytest.fixture(scope="class")
  @classmethod
  def seeded(cls, train_cache, eval_cache, tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("seeded")
    privacy = PrivacyConfig(delta=1e-5, noise_seed=3)
    for name in ("one", "two"):
      changes = {"privacy": privacy, "ledger_dir": folder / "ledgers"}
      sweep(train_cache, eval_cache, folder / name, **changes)
    return folder

  def test_it_repeats(self, seeded):
    one, two = seeded / "one", seeded / "two"
    for path in (one, *(one / "heads").iterdir()):
      for name in ("results.csv", "results.json", "head.safetensors"):
        file = path / name
        if file.exists():
          again = two / file.relative_to(one)
          assert file.read_bytes() == again.read_bytes()

  def test_everything_it_touches_says_so(self, seeded, train_cache):
    assert {row["private"] for row in read_csv(seeded / "one")} == {"False"}
    assert {row["noise_source"] for row in read_csv(seeded / "one")} == {
      "seeded: NOT PRIVATE"
    }
    for folder in (seeded / "one" / "heads").iterdir():
      assert read_head(folder).receipt["private"] is False
      assert "**NOT PRIVATE**" in (folder / "README.md").read_text()
    for entry in cache_ledger(train_cache, seeded / "ledgers").entries():
      assert entry["private"] is False


class TestNothingPrivateLeaves:
  """Planted values and what follows from them, in all that is written."""

  COUNTS = (2347, 1873, 1291, 907)  # the histogram of the private labels
  VALUES = (0.73193359375, -0.36474609375)  # float16, and rare

  @pytest.fixture(scope="class")
  @classmethod
  def planted(cls, tmp_path_factory) -> FeatureCache:
    rng = np.random.default_rng(0)
    label = rng.permutation(np.repeat(np.arange(4), cls.COUNTS))
    embedding = 0.1 * rng.standard_normal((len(label), 6))
    embedding += np.eye(4, 6)[label]
    embedding[7:400:13, 4:] = cls.VALUES
    rows = Rows(
      embedding=embedding.astype(np.float16),
      label=label,
      example_id=np.arange(len(label)) + 88_000_000,
    )
    folder = tmp_path_factory.mktemp("planted") / "private"
    return write_rows(folder, rows, shard_rows=4096)

  def secrets(self, cache: FeatureCache) -> tuple[set[str], set[bytes]]:
    """As a person or a log would write them, and as arrays hold them."""
    blocks = list(cache.blocks())
    embedding = np.concatenate([b.embedding for b in blocks]).astype(float)
    label = np.concatenate([b.label for b in blocks])
    grid = ClippedGradientGrid(num_classes=4, feature_dim=6)
    exact = exact_clipped_sum(iter(blocks), grid, num_examples=len(label))
    sums = exact.secret_class_sums
    class_means = [embedding[label == k].mean(axis=0) for k in range(4)]
    texts = {f"{count}" for count in self.COUNTS}
    texts |= {f"{count:,}" for count in self.COUNTS}
    texts |= {f"{count / len(label):.4f}" for count in self.COUNTS}
    texts |= {f"{value:.6g}".lstrip("-") for value in self.VALUES}
    texts |= {f"{value:.5f}".lstrip("-") for value in np.ravel(class_means)}
    texts |= {str(abs(value)) for value in sums.ravel().tolist()}
    texts |= {str(88_000_000 + i) for i in range(len(label))}
    arrays = {
      value.astype(dtype).tobytes()
      for value in [*sums.ravel(), *np.ravel(class_means), *self.VALUES]
      for dtype in (np.float32, np.float64, np.int64)
      for value in [np.asarray(value)]
      if dtype is not np.int64 or abs(value) > 10**6
    }
    return texts, arrays

  @pytest.mark.usefixtures("draws")
  def test_no_secret_is_in_any_file_or_stream(
    self, planted, eval_cache, tmp_path, capfd, ledger_dir, monkeypatch
  ):
    # Of other noise, pictures are others: any four bytes may be in those.
    same_bits(monkeypatch)
    out = tmp_path / "out"
    argv = ["sweep", "--cache", planted.path, "--eval-cache", eval_cache.path]
    argv += ["--epsilons", 0.5, 4, "--delta", 1e-5, "--num-draws", 2]
    argv += ["--out", out]
    assert main([str(word) for word in argv]) == 0
    head = out / "heads" / "epsilon-4-draw-0"
    for argv in (
      ["verify", head],
      ["evaluate", head, "--cache", eval_cache.path],
      ["budget", "--cache", planted.path],
      ["inspect", planted.path],
    ):
      assert main([str(word) for word in argv]) == 0
    streams = capfd.readouterr()
    files = [p for f in (out, ledger_dir) for p in f.rglob("*") if p.is_file()]
    assert len(files) == 5 + 4 * 3 + 3
    contents = [p.read_bytes() for p in files]
    contents += [streams.out.encode(), streams.err.encode()]

    texts, arrays = self.secrets(planted)
    found = []
    for content in contents:
      words = without_names(content.decode("latin-1"), tmp_path.parent)
      if b"\0" not in content:
        # Whole numbers: three digits within a hash are nobody's secret.
        number = r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)"
        found += [
          n for n in re.findall(number, words) if n in texts or n[:8] in texts
        ]
      found += [a for a in arrays if a in content]
    assert found == []

  def test_the_search_would_find_them(self, planted):
    texts, arrays = self.secrets(planted)
    assert {"2347", "2,347", "0.731934", "0.364746"} <= texts
    shards = b"".join(p.read_bytes() for p in planted.path.iterdir())
    stored = np.float16(self.VALUES[0]).tobytes()
    assert stored in shards
    assert np.float32(self.VALUES[0]).tobytes() in arrays


def test_heads_hold_two_arrays_and_what_they_are_of(finished_sweep):
  for row in finished_sweep.rows:
    file = finished_sweep.path / row.path / "head.safetensors"
    with safetensors.safe_open(file, "numpy") as opened:
      assert sorted(opened.keys()) == ["bias", "kernel"]
      assert opened.metadata() == {"input": "embedding"}
