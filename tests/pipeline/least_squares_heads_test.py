"""`--head least-squares`, from the command line to `verify`."""

import csv
import json
import math
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, gaussian_mechanism

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  ReleaseOrder,
)
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.heads.least_squares.rule import LeastSquaresRule
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.rows import unit_norm_rows as secret_rows
from oneshot_dp.linear_dp.statistics.joint_release import Shares
from oneshot_dp.linear_dp.trainer import Mechanism, Trainer
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.runs.evaluation import evaluate_cache
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head, write_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  cache_trainer,
  make_plan,
  train_heads,
)
from tests.pipeline import paid
from tests.pipeline.command_line import SWEEP, TRAIN, fails, succeeds
from tests.pipeline.sample_caches import CLASSES, DIM, write_clusters
from tests.pipeline.saved_head.receipt_test import changed, leaves, without

CONFIG = HeadConfig(head="least-squares")
Head = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
  """Chunks of 32 rows a device, padded no further."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(secret_rows, "ROWS_PER_DEVICE", 32)
    yield


def trained(
  cache: FeatureCache,
  *epsilons: float,
  order: ReleaseOrder = "nested",
  **options: Any,
):
  fields = options.pop("privacy", {"delta": 1e-5})
  privacy = PrivacyConfig(**fields)
  draws = options.pop("num_draws", 1)
  plan = make_plan(epsilons or (1.0,), privacy, order=order, num_draws=draws)
  heads = train_heads(cache, plan, CONFIG, privacy, ledger_dir=None, **options)
  return plan, heads


@pytest.fixture(scope="module")
def swept(train_cache, eval_cache, tmp_path_factory) -> pathlib.Path:
  """A sweep over everything, to be read only."""
  folder = tmp_path_factory.mktemp("least-squares")
  argv = [
    *("sweep", "--cache", str(train_cache.path)),
    *("--eval-cache", str(eval_cache.path), "--head", "least-squares"),
    *("--epsilons", "0.5", "2", "8", "--num-draws", "2", "--delta", "1e-5"),
    *("--baseline", "--ledger-dir", str(folder / "ledgers")),
  ]
  assert main([*argv, "--out", str(folder / "results")]) == 0
  return folder


def results(swept: pathlib.Path) -> list[dict[str, str]]:
  with (swept / "results/results.csv").open(newline="") as file:
    return list(csv.DictReader(file))


class TestSweep:
  def test_a_row_for_each_head(self, swept):
    found = [(r["epsilon"], r["draw"], r["private"]) for r in results(swept)]
    assert found == [
      *((e, s, "True") for s in "01" for e in ("8.0", "2.0", "0.5")),
      ("inf", "0", "False"),
    ]
    assert {r["head"] for r in results(swept)} == {"least-squares"}
    assert {r["release"] for r in results(swept)} == {"nested"}

  def test_all_epsilons_cost_the_largest_once_per_seed(self, swept):
    sigma = noise_multiplier(8.0, 1e-5)
    (file,) = (swept / "ledgers").glob("*.jsonl")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    (entry,) = (e for e in entries if e["kind"] == "release")
    assert paid.gaussians(entry) == {sigma: 2}
    epsilon = gaussian_mechanism.get_epsilon_gaussian(sigma / 2**0.5, 1e-5)
    for row in results(swept):
      assert float(row["composed_epsilon"]) == pytest.approx(epsilon, rel=1e-6)

  def test_every_head_is_sound_and_paid_for(self, swept, capsys):
    for row in results(swept):
      folder = swept / "results" / row["path"]
      out, _ = succeeds(
        capsys, "verify", folder, "--ledger-dir", swept / "ledgers"
      )
      assert out.strip().endswith(", and the ledger was charged for it")
      assert ("NOT PRIVATE" in out) == (row["private"] == "False")

  def test_heads_are_different_and_learn(self, swept):
    kernels = {
      read_head(swept / "results" / r["path"]).head.kernel.tobytes()
      for r in results(swept)
    }
    assert len(kernels) == 7
    accuracy = {r["path"]: float(r["top1"]) for r in results(swept)}
    assert accuracy["heads/baseline-NOT-PRIVATE"] > 0.9

  def test_a_noisy_head_learns(self, train_cache, eval_cache):
    """Seeded, so that it passes always or never."""
    privacy = {"delta": 1e-5, "noise_seed": 0}
    _, (head,) = trained(train_cache, 8.0, privacy=privacy)
    (score,) = evaluate_cache([head.head], eval_cache)
    assert score.top1 > 0.6

  def test_the_baseline_says_what_it_is(self, swept):
    folder = swept / "results/heads/baseline-NOT-PRIVATE"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "**NOT PRIVATE**" in (folder / "README.md").read_text()
    receipt = read_head(folder).receipt
    assert receipt["private"] is False
    assert receipt["mechanism"]["noise_sd_steps"] == 0


def test_train(place, capsys, tmp_path):
  out, err = succeeds(capsys, *place(f"{TRAIN} --head least-squares"))
  assert "epsilon = 1 at delta = 1e-05 (ADD_OR_REMOVE_ONE)" in out
  assert "noise multiplier 3.7306, noise from os.urandom" in out
  assert err.startswith("charged to ")
  succeeds(capsys, "verify", tmp_path / "out")
  card = (tmp_path / "out/README.md").read_text()
  assert "a linear discriminant, in closed form, from the noisy" in card


def test_releases_can_be_independent(place, capsys, train_cache):
  argv = place(f"{SWEEP} --head least-squares --release independent")
  out, _ = succeeds(capsys, *argv)
  assert "independent releases" in out
  (entry,) = cache_ledger(train_cache, None).entries()
  assert len(paid.gaussians(entry)) == 2


def test_compare_has_it_nested(place, capsys, tmp_path):
  words = "compare --cache {train} --eval-cache {eval} --epsilons 1 4"
  argv = place(f"{words} --delta 1e-5 --heads lamb least-squares --out {{out}}")
  out, _ = succeeds(capsys, *argv)
  assert "(nested: lamb, least-squares)" in out
  found = json.loads((tmp_path / "out/results.json").read_text())
  one, other = found["releases"]
  assert (one["heads"], other["heads"]) == (["lamb"], ["least-squares"])
  sigma = gaussian_mechanism.get_sigma_gaussian(4.0, 1e-5) / 2**0.5
  together = gaussian_mechanism.get_epsilon_gaussian(sigma, 1e-5)
  assert found["composed_epsilon"] == pytest.approx(together, rel=1e-6)
  for folder in (tmp_path / "out/heads").iterdir():
    assert verify_head(folder).problems == ()


@pytest.mark.parametrize("command", ["train", "compare"])
def test_help(capsys, command):
  with pytest.raises(SystemExit, match="0"):
    main([command, "--help"])
  text = " ".join(capsys.readouterr().out.replace("│", " ").split())
  assert "least-squares" in text


@pytest.mark.parametrize(
  ("flags", "said"),
  [
    ("--l2-clip-norm 2", "l2_clip_norm=2.0 is for heads of one step"),
    ("--max-rows-per-unit 1", "max_rows_per_unit=1 is for heads of one step"),
  ],
)
def test_what_makes_no_sense_is_refused(
  place, capsys, train_cache, tmp_path, flags, said
):
  argv = place(f"{TRAIN} --head least-squares")
  assert said in fails(capsys, *argv, *flags.split())
  assert cache_ledger(train_cache, None).entries() == []
  assert not (tmp_path / "out").exists()


def test_units_are_refused_in_one_line(place, capsys, tmp_path):
  rng = np.random.default_rng(0)
  np.savez(
    tmp_path / "visits.npz",
    embedding=rng.standard_normal((60, 5)).astype(np.float32),
    label=rng.integers(0, 4, 60),
    unit_id=np.arange(60) // 3,
  )
  users = import_features(
    tmp_path / "visits.npz", tmp_path / "c", num_classes=4, unit_name="user"
  )
  argv = [*place(f"{TRAIN} --head least-squares"), "--cache", users.path]
  line = fails(capsys, *argv)
  assert "the privacy unit of this cache is 'user'; use --head lamb" in line
  with pytest.raises(InputError, match="has a guarantee per example"):
    trained(users)
  assert cache_ledger(users, None).entries() == []


class TestCharge:
  @pytest.mark.parametrize("order", ["nested", "independent"])
  @pytest.mark.parametrize(
    ("relation", "units"),
    [("add-or-remove-one", 1), ("replace-one", 2), ("replace-special", 1)],
  )
  def test_sigma_of_what_pays(self, train_cache, relation, units, order):
    privacy = {"delta": 1e-6, "neighboring_relation": relation}
    _, heads = trained(
      train_cache, 1.0, 4.0, num_draws=3, privacy=privacy, order=order
    )
    (entry,) = cache_ledger(train_cache, None).entries()
    paying = (4.0,) if order == "nested" else (1.0, 4.0)
    assert paid.gaussians(entry) == {
      noise_multiplier(e, 1e-6) * units: 3 for e in paying
    }
    assert {h.ledger_entry for h in heads} == {entry["entry"]}
    assert [(h.draw, h.statement.epsilon) for h in heads] == [
      (draw, e) for draw in range(3) for e in (4.0, 1.0)
    ]

  def test_nothing_for_a_cache_that_is_damaged(self, tmp_path):
    cache = write_clusters(tmp_path / "cache")
    shard = cache.path / cache.shards[1].file
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
      trained(cache)
    assert cache_ledger(cache, None).entries() == []

  def test_a_cap_is_kept(self, train_cache, place, capsys):
    argv = "budget set --cache {train} --max-epsilon 1.5 --max-delta 1e-5"
    succeeds(capsys, *place(argv))
    line = fails(capsys, *place(SWEEP), "--head", "least-squares")
    assert "would break the cap" in line
    succeeds(capsys, *place(TRAIN), "--head", "least-squares")


def test_a_seed_is_not_private_anywhere(place, capsys, tmp_path, train_cache):
  argv = place(f"{SWEEP} --head least-squares --noise-seed 3")
  _, err = succeeds(capsys, *argv)
  assert "these heads are NOT PRIVATE" in err
  for folder in (tmp_path / "out/heads").iterdir():
    saved = read_head(folder)
    assert saved.receipt["private"] is False
    assert saved.receipt["privacy"]["noise_source"] == "seeded: NOT PRIVATE"
    assert problems(saved.receipt) == []
  (entry,) = cache_ledger(train_cache, None).entries()
  assert entry["private"] is False


@pytest.fixture(scope="module")
def receipt(swept) -> Head:
  return read_head(swept / "results/heads/epsilon-2-draw-1").receipt


class TestReceipt:
  @pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-9), (4.5, 1e-5)])
  @pytest.mark.parametrize(
    "relation", ["add-or-remove-one", "replace-one", "replace-special"]
  )
  def test_an_honest_one_holds(
    self, train_cache, tmp_path, epsilon, delta, relation
  ):
    privacy = {"delta": delta, "neighboring_relation": relation}
    _, (head,) = trained(train_cache, epsilon, privacy=privacy)
    written = write_head(tmp_path / "head", head, train_cache.info)
    assert problems(written) == []
    assert verify_head(tmp_path / "head").problems == ()
    # By no code of ours.
    found, mechanism = written["privacy"], written["mechanism"]
    share = mechanism["moment_share"]
    assert share + mechanism["class_sum_share"] + mechanism[
      "total_share"
    ] + mechanism["class_count_share"] == pytest.approx(1, rel=1e-15)
    of_moment = 2**20 + (1 + 2**-10) * DIM
    squares = share * of_moment**2 + (1 - share) * 2**40
    sensitivity = squares**0.5 * (2 if relation == "replace-one" else 1)
    assert found["sensitivity_steps"] == pytest.approx(sensitivity, rel=1e-12)
    sigma = found["noise_sd_steps"] / sensitivity
    exact = gaussian_mechanism.get_epsilon_gaussian(sigma, delta)
    assert exact <= epsilon * (1 + 1e-9) + 1e-11
    assert exact >= epsilon * (1 - 1e-6) - 1e-11

  def test_any_number_that_is_changed_is_reported(self, receipt):
    """Of the composition: as for heads of one step."""
    assert problems(receipt) == []
    unseen, tried = [], 0
    sections = {key: receipt[key] for key in ("mechanism", "privacy")}
    for path, value in leaves(sections):
      if isinstance(value, str):
        continue
      tries: list[Any] = [0, math.nan, "1", None]
      if isinstance(value, int):
        tries += [value + 1, value - 1]
      else:
        tries += [value * (1 + 1e-6), value * (1 - 1e-6)]
      tries = [t for t in tries if t != value]
      tried += len(tries)
      unseen += [
        (path, attempt)
        for attempt in tries
        if not problems(changed(receipt, path, attempt))
      ]
    assert unseen == []
    assert tried > 120

  def test_a_number_of_the_mechanism_that_is_missing_is_reported(self, receipt):
    for key in receipt["mechanism"]:
      assert problems(without(receipt, ("mechanism", key))), key

  @pytest.mark.parametrize(
    ("path", "value"),
    [
      (("mechanism", "kind"), "whitened"),
      (("mechanism", "name"), "another"),
      (("mechanism", "clipped"), "unit"),
      (("training", "head"), "lamb"),
      (("privacy", "privacy_unit"), "user"),
      (("privacy", "neighboring_relation"), "REPLACE_ONE"),
      (("composition", "order"), "independent"),
      (("data", "class_names"), ["a", "b"]),
      (("data", "num_examples"), 181),
      (("private",), False),
    ],
  )
  def test_a_fact_that_is_changed_is_reported(self, receipt, path, value):
    assert problems(changed(receipt, path, value))

  def test_less_noise_cannot_pass_for_more(self, receipt):
    """Whoever changes sd everywhere still has a sigma of another epsilon."""
    forged = receipt
    for path in [
      ("privacy", "noise_multiplier"),
      ("privacy", "noise_sd_steps"),
      ("mechanism", "noise_sd_steps"),
    ]:
      value = receipt[path[0]][path[1]] * 2
      forged = changed(forged, path, value)
    assert problems(forged)

  @pytest.mark.parametrize("name", ["epsilon-2-draw-1", "baseline-NOT-PRIVATE"])
  def test_any_field_changed_on_disk_is_found(self, swept, tmp_path, name):
    head = tmp_path / "head"
    shutil.copytree(swept / "results/heads" / name, head)
    file = head / "receipt.json"
    receipt = json.loads(file.read_text())
    ledgers = swept / "ledgers"
    assert verify_head(head, ledgers).problems == ()
    for path, value in leaves(receipt):
      other = f"{value}x" if isinstance(value, str) else (value or 0) + 1
      file.write_text(json.dumps(changed(receipt, path, other)))
      assert verify_head(head, ledgers).problems, path


# The mechanism.


def mechanism(sd: float = 3e6) -> LeastSquaresRule:
  return LeastSquaresRule(
    num_examples=50_000, feature_dim=192, num_classes=10, noise_sd_steps=sd
  )


@pytest.mark.parametrize("sd", [0.0, 3e6])
def test_what_is_written_is_read_back(sd):
  section = json.loads(json.dumps(mechanism(sd).as_json()))
  assert mechanism_of(section) == mechanism(sd)
  assert isinstance(mechanism(sd), Mechanism)
  parameters = ("num_examples", "feature_dim", "num_classes", "noise_sd_steps")
  for key in section.keys() - {"kind", *parameters}:
    assert mechanism_of(section | {key: "forged"}) == mechanism(sd)
  for key in ("kind", *parameters):
    with pytest.raises(KeyError):
      mechanism_of({k: v for k, v in section.items() if k != key})


def test_what_a_mechanism_says():
  said = mechanism().as_json()
  assert said["moment_share"] == Shares(num_classes=10).moment
  assert (said["rows_per_unit"], said["clipped"]) == (1, "row")
  assert mechanism().training() == {"head": "least-squares"}
  assert "\n" not in mechanism().in_words({})
  once = mechanism().sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE)
  assert 2**20 < once < 2**20 + 192
  twice = mechanism().sensitivity(NeighboringRelation.REPLACE_ONE)
  assert twice == 2 * once


def test_it_is_a_trainer(train_cache):
  trainer = cache_trainer(train_cache, [CONFIG])
  assert isinstance(trainer, Trainer)
  assert trainer.facts == {"rows_per_unit": 1, "clipped": "row"}
  assert (train_cache.info.feature_dim, train_cache.info.num_classes) == (
    DIM,
    CLASSES,
  )
