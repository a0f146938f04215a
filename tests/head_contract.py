"""What every kind of head keeps, from the charge to `verify`.

A kind has a file of its own in tests/pipeline/heads: a class that is a
HeadContract, and what is different about it.
"""

import csv
import dataclasses
import json
import math
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, gaussian_mechanism

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.heads.registry import head_kind, mechanism_of
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head, write_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  plan_heads,
  train_heads,
)
from tests.pipeline import paid
from tests.pipeline.command_line import TRAIN, fails, succeeds
from tests.pipeline.saved_head.receipt_test import MISSING, changed, leaves

DELTA = 1e-5
DRAWS = 2
RELATIONS = ("replace-special", "replace-one")
NOISE = re.compile(r".*noise_(multiplier|sd)")
UNREAD = {"name", "statistic", "sensitivity", "accountant"}
Receipt = dict[str, Any]
Path = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
  """What differs from kind to kind.

  Attributes:
    config: the head and its settings.
    flags: the same for the command line.
    epsilons: of its sweep, the largest first.
    mechanism: its name in receipts, where that is another.
    free: numbers of a mechanism that no other number follows from.
    least_top1: accuracy without noise.
    tried: epsilons of receipts that must hold; whitened heads take other steps,
      and whiten, where there is so little noise.
    relations: in which it can be had.
    tries: how many values are tried in the place of a number.
  """

  config: HeadConfig
  flags: str
  epsilons: tuple[float, ...] = (8.0, 2.0, 0.5)
  mechanism: str | None = None
  free: frozenset[Path] = frozenset()
  least_top1: float = 0.8
  tried: tuple[float, ...] = (20.0, 4.3, 1e-3)
  relations: tuple[str, ...] = RELATIONS
  tries: int = 6

  @property
  def is_nested(self) -> bool:
    return head_kind(self.config.head).can_nest

  def step_sigma(self, epsilon: float) -> float:
    """The noise multiplier that is charged."""
    return noise_multiplier(epsilon, DELTA)

  def charged(self, epsilons: tuple[float, ...]) -> list[float]:
    """The noise multiplier of each mechanism of a draw."""
    paying = epsilons[:1] if self.is_nested else epsilons
    return [self.step_sigma(epsilon) for epsilon in paying]

  def paid(self, entry: dict[str, Any]) -> dict[float, int]:
    """The noise multipliers of an entry, and how many there are of each."""
    return paid.gaussians(entry)

  def composed_epsilon(self) -> float:
    """By no code of ours but the noise multipliers."""
    sigmas = self.charged(self.epsilons)
    sigma = sum(DRAWS * s**-2 for s in sigmas) ** -0.5
    return gaussian_mechanism.get_epsilon_gaussian(sigma, DELTA)

  def sigma(self, receipt: Receipt) -> float:
    """The noise multiplier that follows from the noise of a receipt."""
    privacy = receipt["privacy"]
    return privacy["noise_sd_steps"] / privacy["sensitivity_steps"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
  """A finished sweep of a kind, to be read only."""

  folder: pathlib.Path
  rows: list[dict[str, str]]

  @property
  def ledgers(self) -> pathlib.Path:
    return self.folder / "ledgers"

  def head(self, row: int) -> pathlib.Path:
    return self.folder / "results" / self.rows[row]["path"]

  def receipt(self, row: int) -> Receipt:
    return read_head(self.head(row)).receipt

  @classmethod
  def of(cls, folder: pathlib.Path) -> "Sweep":
    with (folder / "results/results.csv").open(newline="") as file:
      return cls(folder=folder, rows=list(csv.DictReader(file)))


SECOND_DRAW, BASELINE = -3, -1
"""Rows of a sweep: neither the first nor the last, and that without noise."""


def trained(
  cache: FeatureCache,
  config: HeadConfig,
  *epsilons: float,
  num_draws: int = 1,
  ledger_dir: pathlib.Path | None = None,
  baseline: bool = False,
  **fields: Any,
):
  privacy = PrivacyConfig(delta=DELTA, **fields)
  plan = plan_heads(
    config, len(cache), epsilons or (8.0,), privacy, num_draws=num_draws
  )
  return train_heads(
    cache, plan, config, privacy, ledger_dir=ledger_dir, baseline=baseline
  )


def spoilt(value: Any) -> list[Any]:
  """Other values in the place of a number, near and far."""
  if isinstance(value, bool):
    return [not value]
  tries: list[Any] = [0, math.nan, "1", None]
  if isinstance(value, int | None):
    tries += [(value or 0) - 1, (value or 0) + 1]
  else:
    tries += [value * (1 - 1e-6), value * (1 + 1e-6)]
  return [t for t in tries if t != value]


def watched_bits(monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> list[int]:
  """How many entries there are whenever random bits are drawn."""
  found: list[int] = []
  for method in ("words", "bits"):
    draw = getattr(NoiseSource, method)

    def watched(source: NoiseSource, count: int, draw: Any = draw) -> Any:
      found.append(len(ledger.entries()))
      return draw(source, count)

    monkeypatch.setattr(NoiseSource, method, watched)
  return found


class HeadContract:
  """One sweep of 0.5, 2 and 8 in two draws and a baseline, and a few heads."""

  kind: Kind

  @pytest.fixture
  def sweep(self, sweeps) -> Sweep:
    return sweeps(self.kind)

  @pytest.fixture
  def receipt(self, sweep) -> Receipt:
    """Neither the first nor the last head."""
    return sweep.receipt(SECOND_DRAW)

  def test_a_row_for_each_head(self, sweep):
    found = [(float(r["epsilon"]), r["private"]) for r in sweep.rows]
    private = [(e, "True") for e in self.kind.epsilons] * DRAWS
    assert found == [*private, (math.inf, "False")]
    order = "nested" if self.kind.is_nested else "independent"
    assert {r["release"] for r in sweep.rows} == {order}
    assert {r["head"] for r in sweep.rows} == {self.kind.config.head}
    heads = [read_head(sweep.head(i)) for i in range(len(sweep.rows))]
    assert len({h.head.kernel.tobytes() for h in heads}) == len(heads)
    for head in heads:
      assert head.receipt["training"]["head"] == self.kind.config.head
      assert head.receipt["mechanism"]["kind"] == (
        self.kind.mechanism or self.kind.config.head
      )

  def test_every_head_is_sound_and_paid_for(self, sweep):
    for i, row in enumerate(sweep.rows):
      check = verify_head(sweep.head(i), sweep.ledgers)
      assert check.problems == ()
      assert check.is_vouched
      assert ("NOT PRIVATE" in check.conclusion) == (row["private"] == "False")

  def test_what_was_paid(self, sweep):
    (file,) = sweep.ledgers.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    entries = [e for e in lines if e["kind"] != "published"]
    assert sorted(e["kind"] for e in entries) == ["baseline", "release"]
    (release,) = (e for e in entries if e["kind"] == "release")
    expected = self.kind.charged(self.kind.epsilons)
    assert self.kind.paid(release) == dict.fromkeys(expected, DRAWS)
    assert [e["private"] for e in entries if e is not release] == [False]

  def test_they_compose(self, sweep):
    expected = self.kind.composed_epsilon()
    for row in sweep.rows:
      found = float(row["composed_epsilon"])
      assert found == pytest.approx(expected, rel=2e-3)

  def test_the_baseline_learns_and_owns_up(self, sweep):
    assert float(sweep.rows[BASELINE]["top1"]) > self.kind.least_top1
    folder = sweep.head(BASELINE)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "**NOT PRIVATE**" in (folder / "README.md").read_text()
    receipt = sweep.receipt(BASELINE)
    assert receipt["private"] is False
    assert receipt["privacy"]["epsilon"] == "NOT PRIVATE"
    by_relation = receipt["privacy"]["epsilon_by_relation"]
    assert set(by_relation.values()) == {"NOT PRIVATE"}
    sections = [receipt[key] for key in ("privacy", "mechanism")]
    noise = [v for s in sections for k, v in s.items() if NOISE.match(k)]
    assert noise
    assert not any(noise)

  @pytest.mark.parametrize("relation", RELATIONS)
  def test_every_honest_receipt_holds(
    self, train_cache, tmp_path, monkeypatch, relation
  ):
    """ε by dp_accounting alone; paid before any random bit."""
    if relation not in self.kind.relations:
      pytest.skip("there is no such head")
    tried = self.kind.tried
    ledger = cache_ledger(train_cache, None)
    drawn = watched_bits(monkeypatch, ledger)
    heads = trained(
      train_cache, self.kind.config, *tried, neighboring_relation=relation
    )
    assert set(drawn) == {1}
    (entry,) = ledger.entries()
    units = 2 if relation == "replace-one" else 1
    expected = [units * s for s in self.kind.charged(tried)]
    assert self.kind.paid(entry) == dict.fromkeys(expected, 1)
    for i, (epsilon, head) in enumerate(zip(tried, heads, strict=True)):
      assert head.ledger_entry == entry["entry"]
      receipt = write_head(tmp_path / f"{i}", head, train_cache.info)
      assert problems(receipt) == []
      assert verify_head(tmp_path / f"{i}").problems == ()
      self.check_epsilon(receipt, epsilon)

  def check_epsilon(self, receipt: Receipt, epsilon: float) -> None:
    sigma = self.kind.sigma(receipt)
    exact = gaussian_mechanism.get_epsilon_gaussian(sigma, DELTA)
    assert exact <= epsilon * (1 + 1e-9) + 1e-11
    assert exact >= epsilon * (1 - 2e-3) - 1e-11

  def test_a_seed_repeats_and_is_not_private_anywhere(
    self, train_cache, eval_cache, tmp_path, capsys
  ):
    """And a head with noise learns: seeded, to pass always or never."""
    one, same, other = (
      trained(train_cache, self.kind.config, noise_seed=seed)[0]
      for seed in (3, 3, 4)
    )
    assert "these heads are NOT PRIVATE" in capsys.readouterr().err
    np.testing.assert_array_equal(one.head.kernel, same.head.kernel)
    assert (one.head.kernel != other.head.kernel).any()
    for head in (one, other):
      (score,) = evaluate_on_public_labels([head.head], eval_cache).scores
      assert score.top1 > 0.3  # one in four is by chance
    folder = tmp_path / "head"
    receipt = write_head(folder, one, train_cache.info)
    assert receipt["private"] is False
    assert receipt["privacy"]["noise_source"] == "seeded: NOT PRIVATE"
    assert problems(receipt) == []
    assert problems(changed(receipt, ("private",), True))
    assert "**NOT PRIVATE**" in (folder / "README.md").read_text()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "NOT PRIVATE" in verify_head(folder).conclusion
    entries = cache_ledger(train_cache, None).entries()
    assert [e["private"] for e in entries] == [False] * 3

  # Receipts.

  def test_a_mechanism_is_read_back(self, receipt):
    section = receipt["mechanism"]
    written = json.loads(json.dumps(mechanism_of(section).as_json()))
    assert written == section

  def test_any_number_that_is_changed_is_reported(self, receipt):
    assert problems(receipt) == []
    unseen, tried = [], 0
    for path, value in self.numbers(receipt):
      for other in spoilt(value)[-self.kind.tries :]:
        tried += 1
        if not problems(changed(receipt, path, other)):
          unseen.append((path, other))
    assert unseen == []
    assert tried > 12

  def numbers(self, receipt: Receipt) -> Iterator[tuple[Path, Any]]:
    """All that other numbers follow from."""
    sections = {key: receipt[key] for key in ("mechanism", "privacy")}
    for path, value in leaves(sections):
      if not isinstance(value, str) and path[1:] not in self.kind.free:
        yield path, value

  def test_a_number_that_is_missing_is_reported(self, receipt):
    for section in ("mechanism", "privacy"):
      for key in receipt[section].keys() - UNREAD:
        assert problems(changed(receipt, (section, key), MISSING)), key

  @pytest.mark.parametrize(
    ("path", "value"),
    [
      (("mechanism", "kind"), "another"),
      (("mechanism", "clipped"), "unit"),
      (("mechanism", "rows_per_unit"), 2),
      (("privacy", "privacy_unit"), "user"),
      (("privacy", "neighboring_relation"), "REPLACE_ONE"),
      (("privacy", "accountant"), "by hand"),
      (("composition", "composed_epsilon"), 7.0),
      (("data", "class_names"), ["a", "b"]),
      (("private",), False),
    ],
  )
  def test_a_fact_that_is_changed_is_reported(self, receipt, path, value):
    assert problems(changed(receipt, path, value))

  def test_an_order_that_is_changed_is_reported(self, sweep):
    receipt = sweep.receipt(SECOND_DRAW)
    other = "independent" if self.kind.is_nested else "nested"
    assert problems(changed(receipt, ("composition", "order"), other))

  def test_less_noise_cannot_pass_for_more(self, receipt):
    """Whoever doubles σ everywhere still has the σ of another epsilon."""
    forged = receipt
    for path, value in leaves(
      {k: receipt[k] for k in ("mechanism", "privacy")}
    ):
      if isinstance(value, float) and NOISE.match(str(path[-1])):
        forged = changed(forged, path, 2 * value)
    assert problems(forged)

  @pytest.mark.parametrize("row", [SECOND_DRAW, BASELINE])
  def test_any_field_changed_on_disk_is_found(self, sweep, tmp_path, row):
    """What no number follows from; fields that all heads have: verify_test."""
    if self.kind.tries == 1:
      pytest.skip("as of a partition; it takes long to recompute its epsilon")
    head = tmp_path / "head"
    shutil.copytree(sweep.head(row), head)
    file = head / "receipt.json"
    receipt = json.loads(file.read_text())
    for path, value in leaves(
      {k: receipt[k] for k in ("mechanism", "training")}
    ):
      is_number = isinstance(value, int | float) and path[0] == "mechanism"
      if is_number and path[1:] not in self.kind.free:
        continue
      other: Any = f"{value}x" if isinstance(value, str) else (value or 0) + 1
      file.write_text(json.dumps(changed(receipt, path, other)))
      assert verify_head(head, sweep.ledgers).problems, path

  # What is refused costs nothing.

  def test_nothing_is_charged_for_a_cache_that_is_damaged(self, spoilt_cache):
    with pytest.raises(InputError, match="damaged"):
      trained(spoilt_cache, self.kind.config)
    assert cache_ledger(spoilt_cache, None).entries() == []

  def test_a_cap_is_kept(self, train_cache, monkeypatch):
    ledger = cache_ledger(train_cache, None)
    drawn = watched_bits(monkeypatch, ledger)
    ledger.set_cap(
      Cap(
        max_epsilon=7.9,
        max_delta=DELTA,
        neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
      )
    )
    with pytest.raises(InputError, match="would break the cap"):
      trained(train_cache, self.kind.config)
    assert len(ledger.entries()) == 1
    assert drawn == []


class PerExample:
  """Heads of many steps: rows of norm 1, or means of units."""

  kind: Kind

  @pytest.mark.parametrize(
    "flag", ["--l2-clip-norm 2", "--max-rows-per-unit 1"]
  )
  def test_settings_of_one_step_are_refused(
    self, place, capsys, train_cache, tmp_path, flag
  ):
    argv = place(f"{TRAIN} --head {self.kind.config.head} {flag}")
    assert fails(capsys, *argv).startswith(flag.replace(" ", "="))
    assert cache_ledger(train_cache, None).entries() == []
    assert not (tmp_path / "out").exists()

  def test_units_of_many_rows(self, place, capsys, visits, tmp_path):
    flags = self.kind.flags.replace("batch-size 60", "batch-size 20")
    argv = place(f"{TRAIN} {flags}")
    out, _ = succeeds(capsys, *argv, "--cache", visits.path)
    assert "privacy unit: user; of its rows, those of a class are ave" in out
    entry, *_ = cache_ledger(visits, None).entries()
    assert (entry["privacy_unit"], entry["clipped"]) == ("user", "mean")
    head = tmp_path / "out"
    assert verify_head(head).problems == ()
    card = (head / "README.md").read_text()
    assert "| privacy unit | user: the means of its examples" in card
    receipt = read_head(head).receipt
    for path, forged in (
      (("mechanism", "clipped"), "row"),
      (("mechanism", "clipped"), "unit"),
      (("privacy", "privacy_unit"), "example"),
    ):
      assert problems(changed(receipt, path, forged)), path
