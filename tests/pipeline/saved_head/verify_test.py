"""`verify` on heads: what was changed is found, and who paid."""

import contextlib
import hashlib
import json
import pathlib
import shutil

import numpy as np
import pytest
import safetensors.numpy
from dp_accounting import GaussianDpEvent, NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.linear_dp.accounting.events import event_as_json
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.trainer import AS_STORED, UNIT_NORM
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.saved_head.directory import bytes_of, write_head
from oneshot_dp.pipeline.saved_head.make_receipt import assumptions
from oneshot_dp.pipeline.saved_head.model_card import model_card
from oneshot_dp.pipeline.saved_head.public_record import PublicRecord
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  make_plan,
  train_heads,
)
from tests.pipeline.saved_head.receipt_test import (
  MISSING,
  Path,
  changed,
  leaves,
)

NOT_LOOKED_UP = (
  "is here, so neither the charge nor these bytes were looked up: nobody can"
  " tell from files alone that weights contain noise"
)
INVENTED = PublicRecord(
  dataset="zoo",
  dataset_version=None,
  split="train",
  num_examples=10,
  cache_fingerprint="0" * 64,
  used="mean",
).as_json()
OTHER_BYTES = "knows other bytes of head.safetensors and receipt.json"


@pytest.fixture
def ledgers(finished_sweep) -> pathlib.Path:
  return finished_sweep.path.parent / "ledgers"


def another(value: object) -> object:
  match value:
    case bool() | None:
      return not value
    case int() | float():
      return value + 1
  return f"{value}x"


def forge(head: pathlib.Path, changes: dict[Path, object]) -> None:
  """Changes a receipt, and the card so that it fits."""
  receipt = json.loads((head / "receipt.json").read_text())
  for path, value in changes.items():
    receipt = changed(receipt, path, value)
  (head / "receipt.json").write_text(json.dumps(receipt))
  (head / "README.md").write_text(model_card(receipt))


def test_every_head_of_a_sweep_is_sound_and_paid_for(finished_sweep, ledgers):
  for row in finished_sweep.rows:
    check = verify_head(finished_sweep.path / row.path, ledgers)
    assert check.problems == ()
    assert check.is_vouched
    assert check.conclusion.endswith(
      "the ledger was charged for it, and says that these very bytes of weights"
      " and receipt were published"
    )
    assert ("NOT PRIVATE" in check.conclusion) == (not row.private)


class TestChangedFiles:
  def test_any_field_of_the_receipt(self, head, ledgers):
    """Changed or left out; also names, versions, words that follow from none.

    (Whether each number is recomputed is `receipt_test`'s.)
    """
    file = head / "receipt.json"
    receipt = json.loads(file.read_text())
    found = dict(leaves(receipt))
    assert len(found) > 80
    for path, value in found.items():
      for other in (another(value), MISSING):
        file.write_text(json.dumps(changed(receipt, path, other)))
        with contextlib.suppress(InputError):  # of another type
          assert verify_head(head, ledgers).problems, path

  def test_a_receipt_laid_out_differently(self, head, ledgers, tmp_path):
    """It says the same, and is not the file that was published."""
    file = head / "receipt.json"
    file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    (problem,) = verify_head(head, ledgers).problems
    assert OTHER_BYTES in problem
    assert verify_head(head, tmp_path / "none").problems == ()

  def test_one_bit_of_the_weights(self, head, ledgers):
    file = head / "head.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert verify_head(head, ledgers).problems == (
      "head.safetensors is not the file that the receipt is about.",
    )

  def test_a_kernel_of_another_shape(self, head, ledgers):
    weights = {
      "kernel": np.zeros((5, 4), np.float32),
      "bias": np.zeros(4, np.float32),
    }
    file = head / "head.safetensors"
    safetensors.numpy.save_file(weights, file, {"input": AS_STORED})
    problems = verify_head(head, ledgers).problems
    assert any("(5, 4), the receipt says (6, 4)" in line for line in problems)

  def test_what_the_kernel_is_of(self, head, ledgers):
    """Either the weights are changed, and their digest, or the receipt."""
    before = (head / "head.safetensors").read_bytes()
    receipt = (head / "receipt.json").read_text()
    file = head / "head.safetensors"
    weights = safetensors.numpy.load_file(file)
    safetensors.numpy.save_file(weights, file, {"input": UNIT_NORM})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    forge(head, {("head_sha256",): digest})
    (problem,) = verify_head(head, ledgers).problems
    assert problem == (
      "the kernel is for 'embedding / its L2 norm', the receipt says"
      " 'embedding'."
    )
    file.write_bytes(before)
    (head / "receipt.json").write_text(receipt)
    forge(head, {("mechanism", "input"): UNIT_NORM})
    assert (
      "the kernel is for 'embedding', the receipt says 'embedding / its L2"
      " norm'."
    ) in verify_head(head, ledgers).problems

  @pytest.mark.parametrize("name", ["privacy", "training", "data", "software"])
  def test_a_section_of_another_kind(self, head, name):
    receipt = json.loads((head / "receipt.json").read_text())
    for value in (None, 3, [], "x"):
      content = json.dumps(receipt | {name: value})
      (head / "receipt.json").write_text(content)
      with pytest.raises(InputError, match=rf"Expected.* at `\$\.{name}`"):
        verify_head(head)

  def test_the_card(self, head, ledgers):
    card = head / "README.md"
    card.write_text(card.read_text().replace("epsilon = 2", "epsilon = 1"))
    assert verify_head(head, ledgers).problems == (
      "README.md is not about this receipt.json: one was changed.",
    )
    card.unlink()
    assert verify_head(head, ledgers).problems


class TestForged:
  """Receipt and card both rewritten: only the ledger can tell."""

  @pytest.mark.parametrize(
    ("path", "value"),
    [
      (("data", "num_examples"), 1000),
      (("data", "split"), "another"),
      (("data", "dataset_version"), "9.9.9"),
      (("data", "cache_fingerprint"), "0" * 64),
      (("composition", "ledger_entry"), "0" * 64),
    ],
  )
  def test_facts(self, head, ledgers, path, value):
    forge(head, {path: value})
    (problem,) = verify_head(head, ledgers).problems
    assert "in the ledger" in problem or (
      f"is not in {ledgers}" in problem and "(--ledger-dir)" in problem
    )

  def test_a_baseline_is_no_payment(self, head, ledgers, tmp_path):
    copied = shutil.copytree(ledgers, tmp_path / "copied")
    receipt = json.loads((head / "receipt.json").read_text())
    ledger = Ledger(receipt["data"]["dataset"], copied)
    (entry,) = ledger.charge(Charge.of_baseline())
    forge(head, {("composition", "ledger_entry"): entry})
    problems = verify_head(head, copied).problems
    assert any(each.startswith("kind is 'baseline'") for each in problems)

  def test_a_sweep_passed_off_as_one_release(self, head, ledgers):
    receipt = json.loads((head / "receipt.json").read_text())
    privacy = receipt["privacy"]
    forge(
      head,
      {
        ("composition", "epsilons"): [2.0],
        ("composition", "num_draws"): 1,
        ("composition", "composed_epsilon"): 2.0,
        ("composition", "dp_event"): event_as_json(
          GaussianDpEvent(privacy["noise_multiplier"])
        ),
      },
    )
    problems = " ".join(verify_head(head, ledgers).problems)
    for field in ("epsilons", "num_draws", "composed_epsilon", "dp_event"):
      assert f"{field} is " in problems

  @pytest.mark.parametrize(
    "other", ["epsilon-8-draw-0", "baseline-NOT-PRIVATE"]
  )
  def test_other_weights_under_a_private_receipt(
    self, head, finished_sweep, ledgers, tmp_path, other
  ):
    source = finished_sweep.path / "heads" / other / "head.safetensors"
    weights = shutil.copy(source, head / "head.safetensors").read_bytes()
    forge(head, {("head_sha256",): hashlib.sha256(weights).hexdigest()})
    self.only_the_ledger_tells(head, ledgers, tmp_path)

  @pytest.mark.parametrize(
    "changes",
    [
      {("data", "class_names"): ["a", "b", "c", "d"]},
      {("training", "public_statistics"): INVENTED},
      {
        ("training", "l2_clip_norm"): 0.5,
        ("mechanism", "l2_clip_norm"): 0.5,
        ("training", "initial_bias"): -2.0,
        ("mechanism", "initial_bias"): -2.0,
      },
      {("software", "jax"): "9.9.9"},
    ],
    ids=["class names", "public centring", "clip norm and bias", "software"],
  )
  def test_facts_that_follow_from_nothing(
    self, head, ledgers, tmp_path, changes
  ):
    receipt = json.loads((head / "receipt.json").read_text())
    mechanism = mechanism_of(
      receipt["mechanism"]
      | {p[-1]: v for p, v in changes.items() if p[0] == "mechanism"}
    )
    sigma = receipt["privacy"]["noise_multiplier"]
    sensitivity = mechanism.sensitivity(NeighboringRelation.REPLACE_SPECIAL)
    settings = {p[-1]: v for p, v in changes.items() if p[0] == "training"}
    changes = changes | {
      ("mechanism",): mechanism.as_json(),
      ("privacy", "sensitivity_steps"): sensitivity,
      ("privacy", "noise_sd_steps"): sigma * sensitivity,
      ("assumptions",): assumptions(
        receipt["data"]["num_classes_source"],
        "example",
        mechanism.as_json(),
        receipt["training"] | settings,
        charged=True,
      ),
    }
    forge(head, changes)
    self.only_the_ledger_tells(head, ledgers, tmp_path)

  @staticmethod
  def only_the_ledger_tells(head, ledgers, tmp_path):
    (problem,) = verify_head(head, ledgers).problems
    assert OTHER_BYTES in problem
    check = verify_head(head, tmp_path / "none")
    assert check.problems == ()
    assert NOT_LOOKED_UP in check.conclusion
    assert not check.is_vouched

  @pytest.mark.parametrize(
    "path",
    [
      ("note",),
      ("privacy", "note"),
      ("composition", "note"),
      ("mechanism", "note"),
      ("data", "note"),
      ("data", "backbone", "note"),
      ("training", "note"),
      ("software", "note"),
    ],
    ids=".".join,
  )
  def test_a_field_that_no_receipt_has(self, head, tmp_path, path):
    forge(head, {path: "audited"})
    (problem,) = verify_head(head, tmp_path / "none").problems
    assert problem == f"{'.'.join(path)} is no field of a receipt."

  def test_a_charge_of_another_data_set(self, head, ledgers):
    forge(head, {("data", "dataset"): "cats"})
    check = verify_head(head, ledgers)
    assert check.problems == ()
    assert NOT_LOOKED_UP in check.conclusion


def test_a_ledger_that_was_not_told_what_left(train_cache, tmp_path):
  """By a notebook, say: the head is paid for, and not vouched."""
  ledger = cache_ledger(train_cache, None)
  (trained,) = train_heads(
    train_cache,
    make_plan((1.0,), PrivacyConfig(delta=1e-5)),
    HeadConfig(),
    PrivacyConfig(delta=1e-5),
    ledger_dir=None,
  )
  write_head(tmp_path / "head", trained, train_cache.info)
  check = verify_head(tmp_path / "head")
  assert (check.problems, check.is_vouched) == ((), False)
  assert "does not say which bytes were published" in check.conclusion
  assert "nobody can tell from files alone" in check.conclusion
  spent, lines = ledger.entries(), ledger.path.read_bytes()
  ledger.publish(bytes_of(tmp_path / "head"))
  assert verify_head(tmp_path / "head").is_vouched
  assert ledger.entries() == spent
  assert ledger.path.read_bytes().startswith(lines)


def test_a_damaged_ledger(head, ledgers, tmp_path):
  copied = tmp_path / "ledgers"
  shutil.copytree(ledgers, copied)
  (file,) = copied.glob("*.jsonl")
  file.write_text(file.read_text().replace('"num_draws":2', '"num_draws":1'))
  with pytest.raises(InputError, match="damaged or edited"):
    verify_head(head, copied)
