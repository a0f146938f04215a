"""`--head whitened` and `--head auto`, which is the same here."""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.public_start import ASSUMPTION
from oneshot_dp.linear_dp.trainer import AS_STORED, UNIT_NORM
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head, write_head
from oneshot_dp.pipeline.saved_head.model_card import model_card
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.public_start import read_start
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.head_contract import (
  SECOND_DRAW,
  HeadContract,
  Kind,
  PerExample,
  Receipt,
  changed,
  trained,
)
from tests.linear_dp.blocks import DTYPES
from tests.linear_dp.heads.whitened.whitened_test import (
  Transcript,
  unit_of_any_length,
  unit_rows,
)
from tests.pipeline.command_line import SWEEP, TRAIN, fails, succeeds
from tests.pipeline.sample_caches import write_rows

WHITENED = HeadConfig(head="whitened")


class WhitenedKind(Kind):
  def sigma(self, receipt: Receipt) -> float:
    """Mean, moment where there is one, and every step."""
    said = receipt["mechanism"]
    assert (said["moment_noise_multiplier"] is None) == (not said["whitens"])
    precision = said["mean_noise_multiplier"] ** -2
    precision += (said["moment_noise_multiplier"] or math.inf) ** -2
    precision += said["num_steps"] * said["step_noise_multiplier"] ** -2
    found = receipt["privacy"]["noise_multiplier"]
    # The sensitivity of the whole is 1, or 2 where a row is replaced.
    assert precision**-0.5 == pytest.approx(found, rel=1e-12)
    return precision**-0.5


@pytest.fixture(scope="module")
def few_steps():
  """All of them: here they are what is tested."""


@pytest.fixture(scope="module")
def whitening(train_cache, tmp_path_factory) -> Receipt:
  """From a head with so little noise that it whitens."""
  folder = tmp_path_factory.mktemp("head")
  (head,) = trained(train_cache, WHITENED, 20.0, ledger_dir=folder)
  return write_head(folder / "head", head, train_cache.info)


@pytest.mark.slow
class TestWhitened(PerExample, HeadContract):
  kind = WhitenedKind(
    config=WHITENED,
    flags="--head auto",
    free=frozenset({("moment_budget",)}),  # where it does not whiten
  )

  @pytest.fixture(params=[False, True], ids=["", "whitens"])
  def receipt(self, request, sweep, whitening) -> Receipt:
    found = whitening if request.param else sweep.receipt(SECOND_DRAW)
    assert found["mechanism"]["whitens"] == request.param
    return found

  def test_nothing_has_the_name_auto(self, sweep):
    config = json.loads((sweep.folder / "results/config.json").read_text())
    assert config["head"]["head"] == "whitened"
    written = [
      p.read_text()
      for p in sweep.folder.rglob("*")
      if p.suffix in (".json", ".csv", ".md", ".jsonl")
    ]
    assert len(written) > 15
    assert not any('"auto"' in text or ",auto," in text for text in written)

  def test_a_forged_input_is_reported(self, sweep, tmp_path):
    """The whole mechanism made over for rows as they are, and the card."""
    head = tmp_path / "head"
    shutil.copytree(sweep.head(SECOND_DRAW), head)
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
    assert verify_head(head, sweep.ledgers).problems == (
      f"the kernel is for {UNIT_NORM!r}, the receipt says {AS_STORED!r}.",
    )


@pytest.mark.parametrize(
  ("head", "why"), [("whitened", "as asked"), ("auto", "the most accurate at")]
)
def test_train(place, capsys, tmp_path, head, why):
  out, err = succeeds(capsys, *place(f"{TRAIN} --head {head}"))
  assert "epsilon = 1 at delta = 1e-05 (REPLACE_SPECIAL)" in out
  assert "noise multiplier 3.7306, noise from os.urandom" in out
  _, *said, charged, new = err.splitlines()
  assert new.startswith("its first charge: ")
  assert charged.startswith("charged to ")
  chosen, settings = said
  assert chosen.startswith(f"head: auto, {why}")
  # As 180 rows of 4 classes.
  assert settings.startswith(
    "epsilon 1: too few rows for their noise to be whitened, n/(K*sigma) = 12"
  )
  card = (tmp_path / "out/README.md").read_text()
  assert "private centring of the unit-norm embeddings, then 19 full-" in card
  assert "logits = (embedding / its L2 norm) @ kernel + bias." in card
  assert "learning rate" not in card


def test_balanced(place, capsys, tmp_path):
  succeeds(capsys, *place(f"{TRAIN} --head auto --balanced"))
  assert verify_head(tmp_path / "out", tmp_path / "ledgers").problems == ()
  receipt = read_head(tmp_path / "out").receipt
  assert receipt["training"] == {"head": "whitened", "balanced": True}
  counts = receipt["mechanism"]["count_noise_multiplier"]
  assert counts > receipt["mechanism"]["noise_multiplier"] * 7
  forged = receipt | {"training": {"head": "whitened"}}
  assert problems(forged)
  card = (tmp_path / "out/README.md").read_text()
  assert "logits adjusted by noisy class counts" in card


def vectors(cache, **changes):
  """A vector for each class, in another order than the cache's."""
  names, d = cache.info.class_names, cache.info.feature_dim
  found = dict(zip(names[::-1], np.eye(len(names), d)[::-1], strict=True))
  found |= changes
  return {n: vector for n, vector in found.items() if vector is not None}


def test_start(place, capsys, tmp_path, train_cache):
  np.savez(tmp_path / "start.npz", **vectors(train_cache))
  line = place(f"{TRAIN} --head auto --start {tmp_path}/start.npz")
  succeeds(capsys, *line)
  assert verify_head(tmp_path / "out", tmp_path / "ledgers").problems == ()
  receipt = read_head(tmp_path / "out").receipt
  digest = hashlib.sha256((tmp_path / "start.npz").read_bytes()).hexdigest()
  said = {"head": "whitened", "start_sha256": digest}
  assert receipt["training"] == said
  assert ASSUMPTION in receipt["assumptions"]
  for forged in ({"head": "whitened"}, said | {"start_sha256": "0" * 64}):
    assert problems(receipt | {"training": forged})
  card = (tmp_path / "out/README.md").read_text()
  assert f"public weights (SHA-256 {digest})" in card
  # By name: class c has the c-th unit vector.
  kernel = read_start(tmp_path / "start.npz", train_cache).kernel
  assert kernel.argmax(axis=0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
  ("changes", "why"),
  [
    ({"0": None}, "has no vector for '0' of"),
    ({"other": np.ones(6)}, "has 'other', which is no class of"),
    ({"1": np.ones(5)}, r"'1' has shape \(5,\), and embeddings of"),
    ({"1": np.zeros(6)}, "start of class '1' is zeros only"),
    ({"1": np.full(6, np.nan)}, "class '1' is not finite"),
    (None, "is not a readable npz"),
  ],
)
def test_what_is_no_start(place, capsys, tmp_path, train_cache, changes, why):
  path = tmp_path / "start.npz"
  path.write_bytes(b"PK")
  if changes is not None:
    np.savez(path, **vectors(train_cache, **changes))
  line = fails(capsys, *place(f"{TRAIN} --head auto --start {path}"))
  assert re.search(why, line)
  assert not (tmp_path / "ledgers").exists()


def test_a_start_from_a_head(train_cache, head):
  """One of the same data would not be in the receipt, nor one without noise."""
  with pytest.raises(InputError, match="is of the private data set"):
    read_start(head, train_cache)
  saved = read_head(head)

  def say(**changes):
    data = saved.receipt["data"] | {"dataset": "public"}
    changed = saved.receipt | {"data": data} | changes
    (head / "receipt.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match="is not about this receipt"):
      read_start(head, train_cache)
    (head / "README.md").write_text(model_card(changed))

  # Nor through the file of its weights.
  weights = head / "head.safetensors"
  with pytest.raises(InputError, match="is of the private data set"):
    read_start(weights, train_cache)

  say()
  kernel = read_start(head, train_cache).kernel
  centred = saved.head.kernel - saved.head.kernel.mean(axis=1, keepdims=True)
  assert np.corrcoef(kernel.ravel(), centred.ravel())[0, 1] > 1 - 1e-6
  lone = shutil.copy(weights, head.parent / "public.safetensors")
  alone = read_start(pathlib.Path(lone), train_cache)
  np.testing.assert_array_equal(alone.kernel, kernel)
  assert alone.sha256 == hashlib.sha256(weights.read_bytes()).hexdigest()
  for parts in ({"kernel": np.eye(6, 3)}, {"other": np.eye(6, 4)}):
    safetensors.numpy.save_file(parts, lone)
    with pytest.raises(InputError, match="has no kernel of 4 columns"):
      read_start(pathlib.Path(lone), train_cache)
  # Centred by the very rows, as those of somebody's public cache.
  public = {"dataset": train_cache.info.dataset.upper(), "split": "train"}
  public |= {"dataset_version": None, "num_examples": 9, "used": "mean"}
  public |= {"cache_fingerprint": "0" * 64}
  say(training=saved.receipt["training"] | {"public_statistics": public})
  with pytest.raises(InputError, match="is of the private data set"):
    read_start(head, train_cache)
  say(private=False)
  with pytest.raises(InputError, match="is a head without privacy"):
    read_start(head, train_cache)
  # By way of another data set a head's cost would leave the receipts.
  say(training={"head": "whitened", "start_sha256": "0" * 64})
  with pytest.raises(InputError, match="give the public file that it started"):
    read_start(head, train_cache)


def test_a_start_from_a_copy_of_a_head(place, capsys, tmp_path):
  """Its bytes are those that the ledger saw leave, whatever they are called."""
  trained = place(f"{TRAIN} --head lamb")
  succeeds(capsys, *trained)
  (weights,) = tmp_path.rglob("head.safetensors")
  lone = shutil.copy(weights, tmp_path / "public.safetensors")
  argv = place(f"{TRAIN} --head auto --start {lone}")
  argv[argv.index("--out") + 1] = str(tmp_path / "other")
  assert "has the weights of a head of the private" in fails(capsys, *argv)


LENGTHS = {"float16": 5e3, "bfloat16": 1e-30, "float32": 1e36}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [2.0, 20.0])
def test_a_head_on_disk_ranks_rows_as_the_trained_model(
  monkeypatch, train_cache, tmp_path, epsilon
):
  """unit((x̂ − m)·A)·W in float64, of rows of any length and any type."""
  transcript = Transcript.watch(monkeypatch)
  (made,) = trained(train_cache, WHITENED, epsilon)
  write_head(tmp_path / "head", made, train_cache.info)
  rule = made.mechanism
  assert isinstance(rule, WhiteningRule)
  assert rule.whitens == (epsilon == 20)
  saved = read_head(tmp_path / "head").head
  rng = np.random.default_rng(1)
  rows = unit_rows(rng.standard_normal((150, 6)))
  rows = rows[transcript.scores(rule, rows)[1]][:120]
  for dtype, length in LENGTHS.items():
    stored = (rows * length).astype(DTYPES[dtype])
    full, clear = transcript.scores(rule, unit_of_any_length(stored))
    stored, ranked = stored[clear], np.argsort(-full[clear], axis=1)
    assert len(stored) > 100
    wide = stored.astype(np.float32)
    found = np.argsort(-saved.logits(jnp.asarray(wide)), axis=1)
    np.testing.assert_array_equal(found, ranked)
    cache = write_rows(
      tmp_path / dtype,
      Rows(embedding=wide, label=ranked[:, 0], example_id=np.arange(len(wide))),
      embedding_dtype=dtype,
      split="test",
    )
    (score,) = evaluate_on_public_labels([saved], cache).scores
    assert score.top1 == 1.0


def test_a_nested_sweep_costs_its_largest_epsilon(
  place, capsys, tmp_path, train_cache
):
  _, err = succeeds(capsys, *place(f"{SWEEP} --head auto --release nested"))
  (entry,) = cache_ledger(train_cache, None).entries()
  epsilons = sorted(entry["epsilons"])
  assert len(epsilons) > 1
  assert entry["composed_epsilon"] == pytest.approx(epsilons[-1], rel=1e-6)
  assert "lamb (the paper's single step) would cost as much" in err
  folders = sorted((tmp_path / "out" / "heads").iterdir())
  for folder in folders:
    assert verify_head(folder, tmp_path / "ledgers").problems == ()
  receipts = [read_head(folder).receipt for folder in folders]
  first, last = (
    next(r for r in receipts if r["privacy"]["epsilon"] == e)
    for e in (epsilons[0], epsilons[-1])
  )
  assert "before_noise_multiplier" not in first["mechanism"]
  for receipt, value in ((first, 1e3), (last, 0.0), (last, 1e3)):
    rule = WhiteningRule.from_json(receipt["mechanism"])
    rule = dataclasses.replace(rule, before_noise_multiplier=value)
    (problem,) = problems(receipt | {"mechanism": rule.as_json()})
    assert "goes on from one of noise multiplier" in problem


def test_users_are_counted_with_noise(place, capsys, visits, tmp_path):
  """Once, for what the count of rows is for elsewhere; it is paid for."""
  argv = [*place(f"{TRAIN} --head auto --epsilon 30"), "--cache", visits.path]
  _, err = succeeds(capsys, *argv)
  assert "whitened, if a noisy count finds" in err
  receipt = read_head(tmp_path / "out").receipt
  said = receipt["mechanism"]
  rule = WhiteningRule.from_json(said)
  assert abs(rule.noisy_units - 20) < 6 * said["unit_noise_multiplier"]
  assert rule.size == max(1, rule.noisy_units)
  shares = (rule.mean_share, rule.moment_share, rule.unit_share)
  assert sum(shares) + rule.step_share == pytest.approx(1, abs=1e-12)
  assert rule.unit_share == 0.005
  forged = changed(receipt, ("mechanism", "unit_noise_multiplier"), 1.0)
  assert problems(forged)
