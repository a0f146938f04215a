"""`--head whitened` and `--head auto`, from the command line to `verify`."""

import csv
import dataclasses
import json
import math
import pathlib
import shutil
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, gaussian_mechanism

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, HeadName, PrivacyConfig
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.rows import unit_norm_rows as secret_rows
from oneshot_dp.linear_dp.statistics import gradient_sum
from oneshot_dp.linear_dp.trainer import AS_STORED, UNIT_NORM
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head, write_head
from oneshot_dp.pipeline.saved_head.model_card import model_card
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  make_plan,
  train_heads,
)
from tests.linear_dp.blocks import DTYPES
from tests.linear_dp.heads.whitened.whitened_test import (
  Transcript,
  unit_of_any_length,
  unit_rows,
)
from tests.pipeline import paid
from tests.pipeline.command_line import SWEEP, TRAIN, fails, succeeds
from tests.pipeline.sample_caches import write_clusters, write_rows
from tests.pipeline.saved_head.receipt_test import changed, leaves, without

WHITENED = HeadConfig(head="whitened")
Head = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
  """Chunks of 32 rows a device, padded no further."""
  with pytest.MonkeyPatch.context() as patch:
    for module in (secret_rows, gradient_sum):
      patch.setattr(module, "ROWS_PER_DEVICE", 32)
    yield


def trained(cache: FeatureCache, *epsilons: float, **options: Any):
  fields = options.pop("privacy", {"delta": 1e-5})
  privacy = PrivacyConfig(**fields)
  plan = make_plan(
    epsilons or (1.0,),
    privacy,
    order="independent",
    num_draws=options.pop("num_draws", 1),
  )
  heads = train_heads(
    cache, plan, WHITENED, privacy, ledger_dir=None, **options
  )
  return plan, heads


@pytest.fixture(scope="module")
def sweep_argv(train_cache, eval_cache) -> list[str]:
  return [
    *("sweep", "--cache", str(train_cache.path)),
    *("--eval-cache", str(eval_cache.path)),
    *("--head", "auto", "--epsilons", "0.5", "2", "8", "--num-draws", "2"),
    *("--delta", "1e-5", "--baseline", "--private-eval", "4"),
  ]


@pytest.fixture(scope="module")
def swept(sweep_argv, tmp_path_factory) -> pathlib.Path:
  """A sweep of auto over everything, to be read only."""
  folder = tmp_path_factory.mktemp("whitened")
  argv = [*sweep_argv, "--ledger-dir", str(folder / "ledgers")]
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
    assert len(list((swept / "results/heads").iterdir())) == 7

  def test_everything_has_the_name_of_the_head_that_auto_was(self, swept):
    assert {row["head"] for row in results(swept)} == {"whitened"}
    assert {row["release"] for row in results(swept)} == {"independent"}
    config = json.loads((swept / "results/config.json").read_text())
    assert config["head"]["head"] == "whitened"
    assert config["release"] == "independent"
    for row in results(swept):
      receipt = read_head(swept / "results" / row["path"]).receipt
      assert receipt["training"]["head"] == "whitened"
      assert receipt["mechanism"]["kind"] == "whitened"
    written = [
      p.read_text()
      for p in swept.rglob("*")
      if p.suffix in (".json", ".csv", ".md", ".jsonl")
    ]
    assert len(written) > 15
    assert not any('"auto"' in text or ",auto," in text for text in written)

  def test_every_head_is_sound_and_paid_for(self, swept, capsys):
    for row in results(swept):
      folder = swept / "results" / row["path"]
      out, _ = succeeds(
        capsys, "verify", folder, "--ledger-dir", swept / "ledgers"
      )
      assert out.strip().endswith(", and the ledger was charged for it")
      assert ("NOT PRIVATE" in out) == (row["private"] == "False")

  def test_the_ledger_is_charged_for_each_head_and_draw(self, swept):
    """And for the noisy counts, whose data set it is too."""
    (file,) = (swept / "ledgers").glob("*.jsonl")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    releases = [e for e in entries if e["kind"] == "release"]
    (entry,) = releases
    assert paid.gaussians(entry) == {
      noise_multiplier(epsilon, 1e-5): 2 for epsilon in (8.0, 2.0, 0.5)
    }
    assert entry["order"] == "independent"
    assert sorted(e["kind"] for e in entries) == [
      "baseline",
      "evaluation",
      "release",
    ]

  def test_they_compose(self, swept):
    sigmas = [noise_multiplier(e, 1e-5) for e in (0.5, 2.0, 8.0)] * 2
    together = sum(s**-2 for s in sigmas) ** -0.5
    epsilon = gaussian_mechanism.get_epsilon_gaussian(together, 1e-5)
    for row in results(swept):
      assert float(row["composed_epsilon"]) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon > 8 * 2**0.5

  def test_heads_are_different_and_learn(self, swept, eval_cache, capsys):
    kernels = {
      read_head(swept / "results" / r["path"]).head.kernel.tobytes()
      for r in results(swept)
    }
    assert len(kernels) == 7
    baseline = swept / "results/heads/baseline-NOT-PRIVATE"
    for head in (baseline, swept / "results/heads/epsilon-8-draw-0"):
      argv = ("evaluate", head, "--cache", eval_cache.path)
      out, _ = succeeds(capsys, *argv)
      assert json.loads(out)["top1"] > (0.9 if head is baseline else 0.6)

  def test_the_baseline_is_its_owner_s_alone_and_says_what_it_is(self, swept):
    folder = swept / "results/heads/baseline-NOT-PRIVATE"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "**NOT PRIVATE**" in (folder / "README.md").read_text()
    receipt = read_head(folder).receipt
    assert receipt["private"] is False
    assert receipt["privacy"]["epsilon"] == "NOT PRIVATE"
    assert receipt["mechanism"]["noise_multiplier"] == 0


@pytest.mark.parametrize(
  ("head", "why"), [("whitened", ""), ("auto", "head: whitened, as ")]
)
def test_train(place, capsys, tmp_path, head, why):
  out, err = succeeds(capsys, *place(f"{TRAIN} --head {head}"))
  assert "epsilon = 1 at delta = 1e-05 (ADD_OR_REMOVE_ONE)" in out
  assert "noise multiplier 3.7306, noise from os.urandom" in out
  *said, charged, new = err.splitlines()
  assert new.startswith("warning: this is a new ledger: ")
  assert charged.startswith("charged to ")
  *chosen, settings = said
  assert [line.startswith(why) for line in chosen] == [True] * bool(why)
  # As 180 rows of 4 classes.
  assert settings.startswith(
    "epsilon 1: not whitened, as n/(K*sigma) = 12 < 80"
  )
  succeeds(capsys, "verify", tmp_path / "out")
  card = (tmp_path / "out/README.md").read_text()
  assert "private centring of the unit-norm embeddings, then 60 full-" in card
  assert "logits = (embedding / its L2 norm) @ kernel + bias." in card
  assert "learning rate" not in card


LENGTHS = {
  "float16": (2e-4, 5e3),
  "bfloat16": (1e-30, 1e36),
  "float32": (1e-35, 1.0, 1e36),
}


@pytest.mark.parametrize("epsilon", [2.0, 20.0])
def test_a_head_on_disk_ranks_rows_as_the_trained_model(
  monkeypatch, capsys, train_cache, tmp_path, epsilon
):
  """unit((x̂ − m)·A)·W in float64, of rows of any length and any type."""
  transcript = Transcript.watch(monkeypatch)
  _, (made,) = trained(train_cache, epsilon)
  write_head(tmp_path / "head", made, train_cache.info)
  assert isinstance(made.mechanism, WhiteningRule)
  rule = made.mechanism
  assert rule.whitens == (epsilon == 20)
  saved = read_head(tmp_path / "head").head
  rng = np.random.default_rng(1)
  rows = unit_rows(rng.standard_normal((150, 6)))
  rows = rows[transcript.scores(rule, rows)[1]][:120]
  for dtype, lengths in LENGTHS.items():
    for length in lengths:
      stored = (rows * length).astype(DTYPES[dtype])
      full, clear = transcript.scores(rule, unit_of_any_length(stored))
      stored, ranked = stored[clear], np.argsort(-full[clear], axis=1)
      assert len(stored) > 100
      wide = stored.astype(np.float32)
      found = np.argsort(-saved.logits(jnp.asarray(wide)), axis=1)
      np.testing.assert_array_equal(found, ranked)
      for place, top1 in ((0, 1.0), (1, 0.0)):
        cache = write_rows(
          tmp_path / f"{dtype}-{length}-{place}",
          Rows(
            embedding=wide,
            label=ranked[:, place],
            example_id=np.arange(len(wide)),
          ),
          embedding_dtype=dtype,
          split="test",
        )
        argv = (tmp_path / "head", "--cache", cache.path)
        out, _ = succeeds(capsys, "evaluate", *argv)
        assert json.loads(out)["top1"] == top1


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_help(capsys, command):
  with pytest.raises(SystemExit, match="0"):
    main([command, "--help"])
  text = " ".join(capsys.readouterr().out.replace("│", " ").split())
  heads = ",".join(get_args(HeadName))
  assert f"{{{heads}}}" in text
  assert '"whitened": private whitening and then gradient descent' in text
  assert '"auto": ' in text


@pytest.mark.parametrize("command", [TRAIN, SWEEP])
@pytest.mark.parametrize("head", ["whitened", "auto"])
@pytest.mark.parametrize(
  ("flags", "said"),
  [
    ("--l2-clip-norm 2", "l2_clip_norm=2.0 is for heads of one step"),
    ("--train-bias", "train_bias=True is for heads of one step"),
    ("--learning-rate 3", "learning_rate=3.0 is for heads of one step"),
    ("--eps-in-noise-sds 1", "eps_in_noise_sds=1.0 is for heads of one step"),
    ("--max-rows-per-unit 1", "max_rows_per_unit=1 is for heads of one step"),
  ],
)
def test_what_makes_no_sense_is_refused(
  place, capsys, train_cache, tmp_path, command, head, flags, said
):
  assert main([*place(f"{command} --head {head}"), *flags.split()]) == 2
  found = capsys.readouterr()
  assert found.out == ""
  assert said in found.err.splitlines()[-1]
  assert cache_ledger(train_cache, None).entries() == []
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("head", ["whitened", "auto"])
def test_nested_releases_are_refused(place, capsys, train_cache, head):
  argv = place(f"{SWEEP} --head {head} --release nested")
  assert main(argv) == 2
  said = capsys.readouterr().err.splitlines()[-1]
  assert "release='nested' is for heads of one step" in said
  assert cache_ledger(train_cache, None).entries() == []


@pytest.fixture(scope="module")
def users(tmp_path_factory) -> FeatureCache:
  folder = tmp_path_factory.mktemp("users")
  rng = np.random.default_rng(0)
  np.savez(
    folder / "visits.npz",
    embedding=rng.standard_normal((60, 5)).astype(np.float32),
    label=rng.integers(0, 4, 60),
    unit_id=np.arange(60) // 3,
  )
  return import_features(
    folder / "visits.npz", folder / "c", num_classes=4, unit_name="user"
  )


class TestUnits:
  @pytest.mark.parametrize("command", [TRAIN, SWEEP])
  def test_whitened_is_refused(self, place, capsys, users, command):
    argv = [*place(f"{command} --head whitened"), "--cache", users.path]
    if command == SWEEP:
      argv += ["--eval-cache", users.path]
    line = fails(capsys, *argv)
    if command == TRAIN:
      assert "the privacy unit of this cache is 'user'; use --head" in line
    assert cache_ledger(users, None).entries() == []

  def test_auto_is_lamb(self, place, capsys, users, tmp_path):
    argv = [*place(f"{TRAIN} --head auto"), "--cache", users.path]
    _, err = succeeds(capsys, *argv)
    assert "head: lamb, as it clips all rows of a user as one" in err
    receipt = read_head(tmp_path / "out").receipt
    assert receipt["training"]["head"] == "lamb"
    assert receipt["mechanism"]["clipped"] == "unit"

  def test_no_way_around(self, users):
    """Not by calling the library, nor with a cache that says otherwise."""
    with pytest.raises(InputError, match="has a guarantee per example"):
      trained(users)
    assert cache_ledger(users, None).entries() == []


class TestCharge:
  @pytest.mark.parametrize(
    ("relation", "units"),
    [("add-or-remove-one", 1), ("replace-one", 2), ("replace-special", 1)],
  )
  def test_sigma_of_each_head_and_draw(self, train_cache, relation, units):
    privacy = {"delta": 1e-6, "neighboring_relation": relation}
    _, heads = trained(train_cache, 1.0, 4.0, num_draws=3, privacy=privacy)
    (entry,) = cache_ledger(train_cache, None).entries()
    found = paid.gaussians(entry)
    assert found == {noise_multiplier(e, 1e-6) * units: 3 for e in (1.0, 4.0)}
    assert {h.ledger_entry for h in heads} == {entry["entry"]}
    assert [(h.draw, h.statement.epsilon) for h in heads] == [
      (draw, e) for draw in range(3) for e in (4.0, 1.0)
    ]
    spent = cache_ledger(train_cache, None).spending(
      NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    expected = sum(c * s**-2 for s, c in found.items()) ** -0.5
    assert spent.noise_multiplier == pytest.approx(expected, rel=1e-9)

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
    argv = "budget set --cache {train} --max-epsilon 2.1 --max-delta 1e-5"
    succeeds(capsys, *place(argv))
    line = fails(capsys, *place(SWEEP), "--head", "whitened")
    assert "would break the cap" in line
    succeeds(capsys, *place(TRAIN), "--head", "whitened")


def test_a_seed_is_not_private_anywhere(place, capsys, tmp_path, train_cache):
  argv = place(f"{SWEEP} --head whitened --noise-seed 3")
  _, err = succeeds(capsys, *argv)
  assert "these heads are NOT PRIVATE" in err
  for folder in (tmp_path / "out/heads").iterdir():
    saved = read_head(folder)
    assert saved.receipt["private"] is False
    assert saved.receipt["privacy"]["noise_source"] == "seeded: NOT PRIVATE"
    assert "**NOT PRIVATE**" in (folder / "README.md").read_text()
    assert problems(saved.receipt) == []
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "NOT PRIVATE" in verify_head(folder).conclusion
  with (tmp_path / "out/results.csv").open(newline="") as file:
    rows = list(csv.DictReader(file))
  assert {row["private"] for row in rows} == {"False"}
  (entry,) = cache_ledger(train_cache, None).entries()
  assert entry["private"] is False


@pytest.fixture(scope="module")
def receipt(swept) -> Head:
  return read_head(swept / "results/heads/epsilon-2-draw-1").receipt


class TestReceipt:
  @pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(1e-3, 1e-9), (4.3, 1e-5), (4.5, 1e-5), (20.0, 1e-5)],
  )
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
    assert (mechanism["moment_noise_multiplier"] is None) == (epsilon < 20)
    precision = mechanism["mean_noise_multiplier"] ** -2
    precision += (mechanism["moment_noise_multiplier"] or math.inf) ** -2
    precision += (
      mechanism["num_steps"] * mechanism["step_noise_multiplier"] ** -2
    )
    sigma = precision**-0.5
    assert sigma == pytest.approx(found["noise_multiplier"], rel=1e-12)
    exact = gaussian_mechanism.get_epsilon_gaussian(sigma, delta)
    assert exact <= epsilon * (1 + 1e-9) + 1e-11
    assert exact >= epsilon * (1 - 1e-6) - 1e-11

  @pytest.mark.parametrize("whitens", [False, True])
  def test_any_number_that_is_changed_is_reported(
    self, receipt, train_cache, tmp_path, whitens
  ):
    """Of the composition: as for heads of one step."""
    if whitens:
      _, (head,) = trained(train_cache, 20.0)
      receipt = write_head(tmp_path / "head", head, train_cache.info)
    assert receipt["mechanism"]["whitens"] == whitens
    unseen, tried = [], 0
    sections = {key: receipt[key] for key in ("mechanism", "privacy")}
    for path, value in leaves(sections):
      if isinstance(value, str):
        continue
      tries: list[Any] = [0, math.nan, "1", None]
      if isinstance(value, int | None):
        tries += [(value or 0) + 1, (value or 0) - 1]
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
    assert tried > 150

  def test_a_number_of_the_mechanism_that_is_missing_is_reported(self, receipt):
    for key in receipt["mechanism"].keys() - {"name", "statistic"}:
      assert problems(without(receipt, ("mechanism", key))) or (
        key == "sensitivity"
      ), key

  @pytest.mark.parametrize(
    ("path", "value"),
    [
      (("mechanism", "kind"), "one-step"),
      (("mechanism", "kind"), "auto"),
      (("mechanism", "clipped"), "unit"),
      (("training", "head"), "lamb"),
      (("training", "head"), "auto"),
      (("privacy", "privacy_unit"), "user"),
      (("privacy", "neighboring_relation"), "REPLACE_ONE"),
      (("composition", "order"), "nested"),
      (("data", "class_names"), ["a", "b"]),
      (("data", "num_examples"), 181),
      (("private",), False),
    ],
  )
  def test_a_fact_that_is_changed_is_reported(self, receipt, path, value):
    assert problems(receipt) == []
    assert problems(changed(receipt, path, value))

  def test_a_forged_input_is_reported(self, swept, tmp_path):
    """The whole mechanism made over for rows as they are, and the card."""
    head = tmp_path / "head"
    shutil.copytree(swept / "results/heads/epsilon-2-draw-1", head)
    receipt = read_head(head).receipt
    said = receipt["mechanism"]
    assert said["input"] == UNIT_NORM
    assert problems(changed(receipt, ("mechanism", "input"), AS_STORED))
    mechanism = mechanism_of(said)
    assert isinstance(mechanism, WhiteningRule)
    rule = dataclasses.replace(mechanism, centres=False)
    forged = receipt | {"mechanism": rule.as_json()}
    (head / "receipt.json").write_text(json.dumps(forged))
    (head / "README.md").write_text(model_card(forged))
    assert problems(forged) == []
    assert verify_head(head, swept / "ledgers").problems == (
      f"the kernel is for {UNIT_NORM!r}, the receipt says {AS_STORED!r}.",
    )

  def test_less_noise_cannot_pass_for_more(self, receipt):
    """Whoever changes sigma everywhere still has a sigma of another epsilon."""
    sigma = receipt["privacy"]["noise_multiplier"] * 2
    forged = receipt
    for path in [
      ("privacy", "noise_multiplier"),
      ("privacy", "noise_sd_steps"),
      ("mechanism", "noise_multiplier"),
    ]:
      forged = changed(forged, path, sigma)
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
