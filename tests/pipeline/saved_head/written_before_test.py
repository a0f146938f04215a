"""Heads and a ledger of format 1: they open, and nothing spent is lost."""

import functools
import json
import operator
import pathlib
import shutil
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant

from oneshot_dp.linear_dp.accounting.events import parts_of, relation_of
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.cap import cap_of
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import event_of
from oneshot_dp.pipeline.saved_head.verify import verify_head
from tests.pipeline.saved_head.receipt_test import Path, changed

PLACE = pathlib.Path(__file__).parent / "written_before"
HEADS = [
  *("baseline", "lamb", "replaced", "seeded", "whitened"),
  pytest.param("poisson", marks=pytest.mark.slow),  # composes samples
]


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_sound_and_paid_for(name):
  check = verify_head(PLACE / "heads" / name, PLACE / "ledgers")
  assert check.problems == ()
  assert "the ledger was charged for it, and does not say which" in (
    check.conclusion
  )
  assert not check.is_vouched
  assert "can test candidate rows by it" in check.conclusion
  asks = "held only for whoever does not know n"
  assert (asks in check.conclusion) == (name != "replaced")
  assert ("NOT PRIVATE" in check.conclusion) == (name in ("baseline", "seeded"))
  unproven = (
    "says 10.12 of REPLACE_ONE, which is not proven for Poisson samples: read"
    " 41.03, which is"
  )
  assert (unproven in check.conclusion) == (name == "poisson")


def edited(
  head: pathlib.Path, name: str, path: Path, edit: Any
) -> pathlib.Path:
  """A copy of a head, with a number of its receipt edited."""
  shutil.copytree(PLACE / "heads" / name, head)
  receipt = json.loads((head / "receipt.json").read_text())
  before = functools.reduce(operator.getitem, path, receipt)
  receipt = changed(receipt, path, edit(before))
  (head / "receipt.json").write_text(json.dumps(receipt))
  return head


@pytest.mark.parametrize(
  ("field", "of", "factor"),
  [
    pytest.param(
      *("epsilon_by_relation", "REPLACE_ONE", 0.7), marks=pytest.mark.slow
    ),
    ("epsilon_by_delta", "1e-05", 1 - 1e-7),
    # Where processors differ in the fifth digit.
    ("epsilon_by_delta", "1e-12", 1 - 1e-3),
  ],
)
def test_an_epsilon_that_no_version_stated_is_found(
  tmp_path, field, of, factor
):
  path = ("privacy", field, of)
  head = edited(tmp_path / "head", "poisson", path, lambda e: e * factor)
  problems = verify_head(head, PLACE / "ledgers").problems
  assert any(field in problem for problem in problems)


@pytest.mark.parametrize(
  ("name", "field", "value"),
  [
    ("lamb", "noise_multipliers_charged", [4.0, 4.0]),
    ("lamb", "noise_multipliers_charged", [1.9938124476373498]),
    ("lamb", "num_draws", 1),
    ("poisson", "noise_multipliers_charged", None),
  ],
)
def test_what_was_changed_in_it_is_found(tmp_path, name, field, value):
  path = ("composition", field)
  head = edited(tmp_path / "head", name, path, lambda _: value)
  assert len(verify_head(head, PLACE / "ledgers").problems) > 1


def test_a_changed_receipt_is_not_exported(tmp_path, capsys):
  path = ("privacy", "epsilon")
  head = edited(tmp_path / "head", "lamb", path, lambda e: e / 4)
  assert main(["export", str(head), "--to", str(tmp_path / "model")]) == 2
  assert verify_head(head).problems[0] in capsys.readouterr().err
  assert not (tmp_path / "model").exists()


def epsilon_on_all_rows(entries: list[dict[str, Any]], delta: float) -> float:
  """In REPLACE_ONE, had every step been on all rows."""
  events = [event_of(e) for e in entries if e.get("private")]
  inverse = 0.0
  for gaussians, sampled in map(parts_of, events):
    inverse += sum(4 / sigma**2 for sigma in gaussians)
    inverse += sum(4 * s.count / s.noise_multiplier**2 for s in sampled)
  accountant = PLDAccountant(value_discretization_interval=1e-3)
  accountant.compose(GaussianDpEvent(inverse**-0.5))
  return accountant.get_epsilon(delta)


@pytest.mark.slow
def test_what_was_spent_stays_spent(tmp_path):
  """No less than format 1 said of its ledger, which took paths for a filter."""
  said = json.loads((PLACE / "budget.json").read_text())
  shutil.copytree(PLACE / "ledgers", tmp_path / "ledgers")
  ledger = Ledger("pets", tmp_path / "ledgers")
  entries = ledger.entries()
  cap = cap_of(entries)
  assert cap is not None
  delta = said["spent"]["delta"]
  for name, epsilon in said["spent"]["epsilon"].items():
    spent = ledger.spending(relation_of(name))
    # Of Poisson samples nothing better is proven than what all rows cost.
    replaced = spent.relation is NeighboringRelation.REPLACE_ONE
    most = epsilon_on_all_rows(entries, delta) if replaced else epsilon
    assert epsilon < spent.epsilon(delta) < most * 1.03
    assert spent.not_private == said["spent"]["not_private"]
  left = cap.left(entries, delta, cap.neighboring_relation)
  assert left < said["left"]["epsilon"] < left * 1.08
  exact, over = (
    ReleasePlan(epsilons=(e,), delta=delta) for e in (left, left * 1.01)
  )
  assert not cap.allows(entries, over.event)
  ledger.charge(Charge.of_plan(exact, NoiseSource()))
  assert ledger.entries()[:-1] == entries
  spent = ledger.spending(cap.neighboring_relation)
  assert left < spent.epsilon(delta) <= cap.max_epsilon
