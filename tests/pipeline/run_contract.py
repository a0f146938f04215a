"""What every run of many heads keeps: sweep, compare, figures, ablate.

Each has a test file of its own: a class that is a RunContract, a fixture
`finished`, and what is different about it.
"""

import abc
import csv
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from dp_accounting import NeighboringRelation, gaussian_mechanism

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline.command_line import fails
from tests.pipeline.sample_caches import write_damaged

PUBLIC = "test labels treated as public"
RELATION = NeighboringRelation.REPLACE_SPECIAL


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
  """A run with a baseline, beside its `ledgers`; to be read only."""

  path: pathlib.Path
  rows: Sequence[SweepRow]
  evaluations: list[FeatureCache]

  @property
  def ledgers(self) -> pathlib.Path:
    return self.path.parent / "ledgers"

  def lines(self) -> list[dict[str, str]]:
    with (self.path / "results.csv").open(newline="") as file:
      return list(csv.DictReader(file))


def sigma_of(epsilon: float, delta: float) -> float:
  return gaussian_mechanism.get_sigma_gaussian(epsilon, delta)


def epsilon_of(sigmas: Sequence[float], delta: float) -> float:
  """The composition of Gaussian mechanisms, with no code of ours."""
  together = sum(sigma**-2 for sigma in sigmas) ** -0.5
  return gaussian_mechanism.get_epsilon_gaussian(together, delta)


class RunContract(abc.ABC):
  """What all keep; `quick` is a small one without a baseline.

  Attributes:
    command: a line of it, to be refused.
    delta: at which the whole of a quick one is `whole`.
    charged: entries before each random bit of a quick one, in turn.
    pictures: of one that is finished.
  """

  command: ClassVar[str]
  delta: ClassVar[float] = 1e-5
  whole: ClassVar[float]
  charged: ClassVar[tuple[int, ...]]
  pictures: ClassVar[tuple[str, ...]] = ("accuracy",)

  @abc.abstractmethod
  def quick(
    self, train: FeatureCache, evaluation: FeatureCache, **more: Any
  ) -> Sequence[SweepRow]:
    """Takes the fields of a `Run`, and a noise_seed."""

  def test_the_files(self, finished):
    assert {path.name for path in finished.path.iterdir()} == {
      *("config.json", "heads", "results.csv", "results.json"),
      *(f"{name}.{end}" for name in self.pictures for end in ("png", "pdf")),
    }

  def test_rows_are_about_the_heads_on_disk(self, finished):
    lines = finished.lines()
    assert len({line["path"] for line in lines}) == len(
      list((finished.path / "heads").iterdir())
    )
    for line, row in zip(lines, finished.rows, strict=True):
      saved = read_head(finished.path / line["path"])
      privacy = saved.receipt["privacy"]
      if line["evaluation"] == PUBLIC:
        rows = finished.evaluations[int(line.get("cache", 0))]
        (score,) = evaluate_on_public_labels([saved.head], rows).scores
        assert float(line["top1"]) == score.top1
        assert float(line["top5"]) == score.top5
      assert line["head"] == saved.receipt["training"]["head"]
      assert line["private"] == str(saved.receipt["private"])
      assert row.noise_multiplier == privacy["noise_multiplier"]
      assert float(line["delta"]) == privacy["delta"]

  def test_receipts_hold_and_the_ledger_has_what_paid(self, finished):
    for row in finished.rows:
      folder = finished.path / row.path
      check = verify_head(folder, finished.ledgers)
      assert check.problems == ()
      assert "the ledger was charged for it" in check.conclusion
      assert ("NOT PRIVATE" in check.conclusion) == (not row.private)
      if not row.private:
        assert row.path.endswith("NOT-PRIVATE")
        assert folder.stat().st_mode & 0o777 == 0o700
        for path in folder.iterdir():
          assert path.stat().st_mode & 0o777 == 0o600
        assert "**NOT PRIVATE**" in (folder / "README.md").read_text()

  def test_the_ledger_says_what_it_cost(self, finished, train_cache):
    ledger = cache_ledger(train_cache, finished.ledgers)
    spent = ledger.spending(RELATION)
    assert spent.not_private >= 1
    for row in finished.rows:
      odometer = spent.epsilon(row.delta)
      if spent.has_samples:  # a ledger counts them as if chosen one by one
        assert row.composed_epsilon < odometer < 1.2 * row.composed_epsilon
      else:
        assert row.composed_epsilon == pytest.approx(odometer, rel=1e-8)

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
    self.quick(train_cache, eval_cache, out=tmp_path / "out")
    assert tuple(dict.fromkeys(charged)) == self.charged

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
    place = {"out": tmp_path / "out"}
    cap = Cap(
      max_epsilon=self.whole * 0.999,
      max_delta=self.delta,
      neighboring_relation=RELATION,
    )
    ledger.set_cap(cap)
    with pytest.raises(InputError, match="would break the cap"):
      self.quick(train_cache, eval_cache, **place)
    assert len(ledger.entries()) == 1
    ledger.set_cap(dataclasses.replace(cap, max_epsilon=self.whole * 1.001))
    with pytest.raises(InputError, match="a baseline is NOT PRIVATE"):
      self.quick(train_cache, eval_cache, **place, baseline=True)
    with pytest.raises(InputError, match="noise from a seed is NOT PRIVATE"):
      self.quick(train_cache, eval_cache, **place, noise_seed=1)
    assert len(ledger.entries()) == 2
    assert train_cache.path not in reads
    assert not (tmp_path / "out").exists()
    rows = self.quick(train_cache, eval_cache, **place)
    assert len(ledger.entries()) == 2 + self.charged[-1]
    for row in rows:
      if row.delta == self.delta:
        assert row.composed_epsilon == pytest.approx(self.whole, rel=1e-6)
    # Nor is there anything without noise that nobody asked for.
    for path in (tmp_path / "out").rglob("*"):
      assert not path.is_file() or b"NOT PRIVATE" not in path.read_bytes()

  @pytest.mark.parametrize(
    ("words", "said"),
    [
      ("--num-draws 0", "--num-draws=0 must be at least 1"),
      ("--eval-cache {train}", "may hold training rows"),
      ("--out {tmp}", "already holds something"),
      ("--out {tmp}/something/out", "is not writable"),
    ],
  )
  def test_what_is_refused(
    self, place, capsys, tmp_path, train_cache, words, said
  ):
    (tmp_path / "something").touch()
    status = 1 if "writable" in said else 2
    line = fails(capsys, *place(f"{self.command} {words}"), status=status)
    assert said in line
    assert cache_ledger(train_cache, None).entries() == []

  def test_a_damaged_evaluation_cache(self, train_cache, tmp_path):
    evaluation = write_damaged(tmp_path / "test")
    with pytest.raises(InputError, match="damaged"):
      self.quick(train_cache, evaluation, out=tmp_path / "out")
    assert cache_ledger(train_cache, None).entries() == []
    assert not (tmp_path / "out").exists()
