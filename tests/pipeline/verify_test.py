import json
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import places
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.heads.head_folder import read_head, write_head
from oneshot_dp.pipeline.heads.verify import (
  LedgerStatus,
  earlier_head,
  verify_head,
)
from oneshot_dp.pipeline.ledger.delivery import Delivery
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.sample_heads import (
  fit,
  make_charge_request,
  sample_info,
  trained_head,
)

DELTA = 1e-5
EPSILON = 2.0
COST = Fraction(mu_squared_from_epsilon(EPSILON, DELTA))
KEYS = {"image": np.arange(1, 301, dtype=np.uint64)}


def private_cache():
  """What `earlier_head` is told of the rows of `deliver_head`."""
  return FeatureCache(path="nowhere", info=sample_info())


def deliver_head(ledger, out, trained=None, *, cost=COST, **charge_fields):
  """Delivers a head as `train` does."""
  request = make_charge_request(cost, keys=KEYS, **charge_fields)
  identity = {"private_digests": [private_cache().private_digest]}
  with Delivery(out, ledger, [request], identity=identity) as delivery:
    delivery.open()
    write_head(
      delivery.folder,
      trained or trained_head(EPSILON, DELTA),
      sample_info(),
      charge_id=delivery.charge_ids[0],
    )
    delivery.commit()
  return out


def run_verify(capsys, path, *words):
  status = main(["verify", str(path), *words])
  out, err = capsys.readouterr()
  return status, out, err


def assert_not_verified(capsys, path, reason):
  status, out, err = run_verify(capsys, path)
  assert status == 1
  assert out.startswith("NOT VERIFIED by ")
  assert reason in out.splitlines()[0]
  assert "is not verified by the ledger" in err


class TestRecorded:
  def test_a_delivered_head_is_verified(self, ledger, tmp_path, capsys):
    head = deliver_head(ledger, tmp_path / "head")

    status, out, _ = run_verify(capsys, head)

    assert status == 0
    assert out.startswith("ok: these weights match a charge in ")
    assert verify_head(head, ledger).status is LedgerStatus.RECORDED

  def test_a_sound_head_is_read_once(self, ledger, tmp_path, monkeypatch):
    """What is hashed is what is parsed, whatever becomes of the file."""
    head = deliver_head(ledger, tmp_path / "head")
    names = []
    read = places.read

    def count(place, most_bytes):
      names.append(place.name)
      return read(place, most_bytes)

    monkeypatch.setattr(places, "read", count)
    verify_head(head, ledger)

    assert names.count("head.safetensors") == 1

  def test_a_copy_elsewhere_is_verified(self, ledger, tmp_path):
    head = deliver_head(ledger, tmp_path / "head")

    copy = Path(shutil.copytree(head, tmp_path / "elsewhere"))

    assert verify_head(copy, ledger).status is LedgerStatus.RECORDED

  def test_a_baseline_is_verified_as_not_private(
    self, ledger, tmp_path, capsys
  ):
    head = deliver_head(
      ledger, tmp_path / "head", trained_head(noise=False), cost=None
    )

    status, out, _ = run_verify(capsys, head)

    assert status == 0
    assert "this head is NOT PRIVATE" in out


class TestNoLedger:
  def test_a_head_whose_ledger_is_lost_is_not_verified(
    self, ledger, tmp_path, capsys
  ):
    head = deliver_head(ledger, tmp_path / "head")
    shutil.rmtree(ledger.path.parent)

    status, out, err = run_verify(capsys, head)

    assert status == 1
    assert out.startswith(f"NOT VERIFIED: the ledger {ledger.path} does not")
    assert "nobody can tell from files alone" in out
    assert "ok" not in out.split()
    assert "no ledger was found; name the one that was charged" in err

  def test_facts_say_not_ok_and_that_nobody_was_asked(
    self, ledger, tmp_path, capsys
  ):
    head = deliver_head(ledger, tmp_path / "head")
    ledger.path.unlink()

    _, out, _ = run_verify(capsys, head, "--json")

    facts = json.loads(out)
    assert facts["ok"] is False
    assert facts["vouched"] is None

  def test_to_verify_makes_no_ledger(self, ledger, tmp_path, capsys):
    write_head(tmp_path / "head", trained_head(), sample_info())

    run_verify(capsys, tmp_path / "head")

    assert not ledger.path.exists()

  def test_a_ledger_that_is_named_and_does_not_exist_is_an_error(
    self, ledger, tmp_path, capsys
  ):
    head = deliver_head(ledger, tmp_path / "head")

    status, _, err = run_verify(capsys, head, "--ledger", "typo")

    assert status == 2
    assert "--ledger typo does not exist" in err


class TestNotRecorded:
  def test_noiseless_weights_of_an_audits_charge_are_not_verified(
    self, ledger, tmp_path, capsys
  ):
    """An audit paid for heads that were never released."""
    request = make_charge_request(COST, keys=KEYS)
    ids = ledger.charge([request], tmp_path / "audit", {})
    forged = tmp_path / "forged"
    write_head(
      forged, trained_head(EPSILON, DELTA), sample_info(), charge_id=ids[0]
    )

    assert_not_verified(capsys, forged, "were not released for any")
    ledger.deliver(ids, {})
    assert_not_verified(capsys, forged, "were not released for any")

  def test_other_weights_of_a_heads_charge_are_not_verified(
    self, ledger, tmp_path, capsys
  ):
    head = deliver_head(ledger, tmp_path / "head")
    receipt = json.loads((head / "receipt.json").read_text())
    other = tmp_path / "other"
    write_head(
      other,
      trained_head(EPSILON, DELTA),
      sample_info(),
      charge_id=receipt["stated"]["charge"],
    )

    assert_not_verified(capsys, other, "were not released for any")

  @pytest.mark.parametrize(
    "changes",
    [{"num_examples": 10**9}, {"dataset": "a better one"}, {"charge": None}],
  )
  def test_an_edited_receipt_with_a_fitting_card_is_not_verified(
    self, ledger, tmp_path, capsys, changes
  ):
    head = deliver_head(ledger, tmp_path / "head")
    fit(head, **changes)
    assert verify_head(head, Ledger(tmp_path / "none")).faults == ()

    assert_not_verified(capsys, head, "with another receipt")

  @pytest.mark.parametrize(
    "charge_fields",
    [
      {"cost": COST * Fraction(999_999, 1_000_000)},
      {"cost": None},
    ],
  )
  def test_a_charge_of_less_does_not_verify_a_head(
    self, ledger, tmp_path, charge_fields
  ):
    head = deliver_head(ledger, tmp_path / "head", **charge_fields)

    verdict = verify_head(head, ledger)

    assert verdict.status is LedgerStatus.NOT_RECORDED
    assert "less was charged for these rows" in verdict.findings[0]

  @pytest.mark.parametrize(
    "charge_fields", [{"unit": "patient"}, {"dataset": "cats"}]
  )
  def test_a_charge_of_other_data_does_not_verify_a_head(
    self, ledger, tmp_path, charge_fields
  ):
    head = deliver_head(ledger, tmp_path / "head", **charge_fields)

    verdict = verify_head(head, ledger)

    assert verdict.status is LedgerStatus.NOT_RECORDED
    assert "of another data set or privacy unit" in verdict.findings[0]


class TestDamagedFiles:
  @pytest.mark.parametrize("name", ["receipt.json", "README.md"])
  def test_a_damaged_head_has_a_fault_with_or_without_a_ledger(
    self, ledger, tmp_path, capsys, name
  ):
    head = deliver_head(ledger, tmp_path / "head")
    (head / name).write_text("{}")

    assert_not_verified(capsys, head, "a file beside them is damaged")
    (fault,) = verify_head(head, ledger).faults
    assert f"{name} is damaged" in fault
    ledger.path.unlink()
    status, _, err = run_verify(capsys, head)
    assert status == 1
    assert f"{name} is damaged" in err

  def test_facts_name_the_faults(self, ledger, tmp_path, capsys):
    head = deliver_head(ledger, tmp_path / "head")
    (head / "receipt.json").write_text("{}")

    _, out, _ = run_verify(capsys, head, "--json")

    facts = json.loads(out)
    assert facts["ok"] is False
    assert facts["vouched"] is False
    assert len(facts["faults"]) == 1


class TestEarlierHead:
  def test_its_cost_is_what_was_charged(self, ledger, tmp_path):
    head = deliver_head(ledger, tmp_path / "head")

    earlier = earlier_head(head, ledger, private_cache(), DELTA)

    assert earlier.trained.mu_squared == float(COST)

  def test_a_head_that_no_ledger_knows_is_refused(self, ledger, tmp_path):
    deliver_head(ledger, tmp_path / "head")
    write_head(tmp_path / "own", trained_head(), sample_info())

    with pytest.raises(InputError, match=r"cannot continue from .*: NOT VERIF"):
      earlier_head(tmp_path / "own", ledger, private_cache(), DELTA)

  def test_another_delta_is_refused(self, ledger, tmp_path):
    head = deliver_head(ledger, tmp_path / "head")

    with pytest.raises(InputError, match=r"its delta is 1e-05; pass the same"):
      earlier_head(head, ledger, private_cache(), 1e-6)

  def test_damaged_releases_are_refused(self, ledger, tmp_path):
    head = deliver_head(ledger, tmp_path / "head")
    (head / "releases.safetensors").write_bytes(b"")

    with pytest.raises(InputError, match="is damaged"):
      earlier_head(head, ledger, private_cache(), DELTA)


class TestRun:
  @pytest.fixture
  def run_folder(self, place, capsys):
    words = place("SWEEP --epsilons 1 8 --head lamb --out s")
    assert main(words) == 0
    capsys.readouterr()
    return Path("s")

  @pytest.mark.slow
  def test_each_head_of_a_sweep_is_verified(self, run_folder, capsys):
    status, out, _ = run_verify(capsys, run_folder)

    assert status == 0
    assert out.startswith("ok: all 2 heads are in the ledger")
    assert out.count("these weights match a charge in") == 2

  @pytest.mark.slow
  def test_a_head_that_was_not_released_is_named(
    self, run_folder, capsys, ledger
  ):
    ledger.path.unlink()
    request = make_charge_request(COST, keys=KEYS)
    ledger.charge([request], Path("/run"), {})

    status, out, err = run_verify(capsys, run_folder)

    assert status == 1
    assert out.count("NOT VERIFIED by") == 2
    assert "has heads that are not verified" in err

  @pytest.mark.slow
  def test_without_a_ledger_nothing_is_verified(
    self, run_folder, capsys, ledger
  ):
    ledger.path.unlink()

    status, out, _ = run_verify(capsys, run_folder, "--json")

    assert status == 1
    facts = json.loads(out)
    assert (facts["ok"], facts["vouched"]) == (False, None)

  @pytest.mark.slow
  def test_an_edited_card_is_noted_with_what_its_receipt_states(
    self, run_folder, capsys
  ):
    card = run_folder / "heads" / "lamb-epsilon-8-draw-0" / "README.md"
    text = card.read_text()
    card.write_text(text.replace("epsilon = 8**", "epsilon = 0.1**"))

    status, out, _ = run_verify(capsys, run_folder)

    assert status == 0
    assert out.count("note: README.md") == 1
    assert "heads/lamb-epsilon-8-draw-0: note: README.md is not" in out
    assert "which states epsilon 8 at delta 1e-05" in out

  @pytest.mark.slow
  def test_a_seeded_head_is_said_to_be_not_private(self, place, capsys):
    words = place("SWEEP --epsilons 8 --head lamb --noise-seed 1 --out s")
    assert main(words) == 0

    status, out, _ = run_verify(capsys, Path("s"))

    assert status == 0
    assert "this head is NOT PRIVATE" in out

  @pytest.mark.slow
  def test_a_head_that_the_results_do_not_name_is_a_fault(
    self, run_folder, capsys
  ):
    write_head(run_folder / "heads" / "other", trained_head(), sample_info())

    status, out, err = run_verify(capsys, run_folder)

    assert status == 1
    assert "ok: " not in out
    assert "heads/other: a head that results.json does not name" in err

  @pytest.mark.slow
  def test_a_damaged_head_is_an_error(self, run_folder, capsys):
    card = next(run_folder.rglob("README.md"))
    card.write_text("better")

    status, _, err = run_verify(capsys, run_folder)

    assert status != 0
    assert "README.md is damaged" in err


class TestEditedCard:
  """An owner adds a contact and a license; the receipt stays what counts."""

  @pytest.fixture
  def head(self, ledger, tmp_path):
    head = deliver_head(ledger, tmp_path / "head")
    card = (head / "README.md").read_text()
    card = card.replace("epsilon = 2**", "epsilon = 0.1**")
    (head / "README.md").write_text(f"---\nlicense: mit\n---\n{card}Call me.\n")
    return head

  def test_it_is_noted_with_what_the_receipt_states(self, head, capsys):
    status, out, _ = run_verify(capsys, head)

    assert status == 0
    assert "note: README.md is not as it was written after training" in out
    assert "the receipt, which states epsilon 2 at delta 1e-05" in out

  def test_the_head_is_read(self, head):
    assert read_head(head).has_edited_card

  def test_a_card_as_it_was_written_is_not_noted(
    self, ledger, tmp_path, capsys
  ):
    head = deliver_head(ledger, tmp_path / "another")

    _, out, _ = run_verify(capsys, head)

    assert "README.md" not in out

  def test_the_card_of_another_head_is_refused(self, head, tmp_path):
    write_head(tmp_path / "other", trained_head(0.5), sample_info())
    shutil.copy(tmp_path / "other" / "README.md", head / "README.md")

    with pytest.raises(InputError, match="its last line: This page is about"):
      read_head(head)
