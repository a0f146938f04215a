import json
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.heads.head_folder import write_head
from oneshot_dp.pipeline.heads.verify import earlier_head, verify_head
from oneshot_dp.pipeline.ledger.delivery import Delivery
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.sample_heads import (
  fit,
  make_charge_request,
  sample_info,
  trained_head,
)

DELTA = 1e-5
TWO = mu_squared_from_epsilon(2.0, DELTA)
KEYS = {"image": np.arange(1, 301, dtype=np.uint64)}


def run(ledger, out, made=None, *, mu2=TWO, **charged):
  """A head, delivered as `train` does it."""
  bill = make_charge_request(mu2, keys=KEYS, **charged)
  asked = {"private_digests": [cache().private_digest]}
  with Delivery(out, ledger, [bill], identity=asked) as delivery:
    delivery.open()
    made = made or trained_head(2.0, DELTA)
    charge = delivery.charge_ids[0]
    write_head(delivery.folder, made, sample_info(), charge=charge)
    delivery.commit()
  return out


def cache():
  """What `earlier_head` is told of the rows of `run`."""
  return FeatureCache(path="nowhere", info=sample_info())


def verify(capsys, path, *words):
  status = main(["verify", str(path), *words])
  out, err = capsys.readouterr()
  return status, out, err


def test_what_left_is_vouched_for(ledger, tmp_path, capsys):
  head = run(ledger, tmp_path / "head")
  assert verify_head(head, ledger).vouched
  status, out, _ = verify(capsys, head)
  assert status == 0
  assert out.startswith("ok: vouched for: ")
  moved = Path(shutil.copytree(head, tmp_path / "elsewhere"))
  assert verify_head(moved, ledger).vouched
  shutil.rmtree(ledger.path.parent)  # without a ledger it says so
  status, out, _ = verify(capsys, head)
  assert status == 0
  assert "so nobody vouches" in out.splitlines()[0]
  assert "nobody can tell from files alone" in out
  assert not ledger.path.exists()


def not_vouched(capsys, path, why=""):
  status, out, err = verify(capsys, path)
  assert status == 1, err
  assert out.startswith("NOT VOUCHED FOR by ")
  assert why in out.splitlines()[0]
  assert err.count("\n") == len(err.splitlines())
  assert "not vouched for" in err


def test_nobody_vouches_for_noiseless_weights_of_an_audit_s_charge(
  ledger, tmp_path, capsys
):
  """It paid for heads that never left."""
  bill = make_charge_request(mu_squared_from_epsilon(2.0, DELTA), keys=KEYS)
  ids = ledger.charge([bill], tmp_path / "audit", {})
  forged = tmp_path / "forged"
  write_head(forged, trained_head(2.0, DELTA), sample_info(), charge=ids[0])
  not_vouched(capsys, forged, "did not leave for any")
  ledger.deliver(ids, {})
  not_vouched(capsys, forged, "did not leave for any")
  # Nor for another head of a charge.
  head = run(ledger, tmp_path / "head")
  charge = json.loads((head / "receipt.json").read_text())["stated"]["charge"]
  other = tmp_path / "other"
  write_head(other, trained_head(2.0, DELTA), sample_info(), charge=charge)
  not_vouched(capsys, other, "did not leave")


@pytest.mark.parametrize(
  "changes",
  [{"num_examples": 10**9}, {"dataset": "a better one"}, {"charge": None}],
)
def test_a_fitted_receipt_is_not_what_left(ledger, tmp_path, capsys, changes):
  head = run(ledger, tmp_path / "head")
  fit(head, **changes)
  assert verify_head(head, Ledger(tmp_path / "none")).faults == ()
  not_vouched(capsys, head, "with another receipt")


@pytest.mark.parametrize("name", ["receipt.json", "README.md"])
def test_a_damaged_head_has_faults(ledger, tmp_path, capsys, name):
  head = run(ledger, tmp_path / "head")
  (head / name).write_text("{}")
  not_vouched(capsys, head, "with another receipt")
  status, out, _ = verify(capsys, head, "--json")
  facts = json.loads(out)
  assert not facts["ok"]
  assert facts["vouched"] is False
  assert facts["faults"]
  ledger.path.unlink()
  status, _, err = verify(capsys, head)
  assert status == 1
  assert f"{name} is damaged" in err
  assert "1 fault(s)" in err


@pytest.mark.parametrize(
  "charged",
  [
    {
      "mu2": Fraction(mu_squared_from_epsilon(2.0, DELTA))
      * Fraction(999_999, 1_000_000)
    },
    {"mu2": None},
    {"unit": "patient"},
    {"dataset": "cats"},
  ],
)
def test_a_charge_of_less_or_others_vouches_for_nothing(
  ledger, tmp_path, charged
):
  verdict = verify_head(run(ledger, tmp_path / "head", **charged), ledger)
  assert not verdict.vouched
  assert "less was charged for these rows" in verdict.said[0]


def test_a_baseline_is_vouched_for_as_what_it_is(ledger, tmp_path, capsys):
  head = run(ledger, tmp_path / "head", trained_head(noise=False), mu2=None)
  status, out, _ = verify(capsys, head)
  assert status == 0
  assert "this head is NOT PRIVATE" in out


def test_nothing_goes_on_from_what_nobody_vouches_for(ledger, tmp_path):
  head, own = run(ledger, tmp_path / "head"), tmp_path / "own"
  write_head(own, trained_head(), sample_info())
  with pytest.raises(InputError, match="NOT VOUCHED FOR"):
    earlier_head(own, ledger, cache(), DELTA)
  assert earlier_head(head, ledger, cache(), DELTA).trained.mu_squared == TWO
  (head / "releases.safetensors").write_bytes(b"")
  with pytest.raises(InputError, match="is damaged"):
    earlier_head(head, ledger, cache(), DELTA)
