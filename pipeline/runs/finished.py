"""Whether a run was finished before, so that there is nothing left to do."""

import json
from pathlib import Path

from oneshot_dp.extract import places
from oneshot_dp.pipeline.ledger.bucket_output import is_half_put
from oneshot_dp.pipeline.ledger.delivery import RECEIPT_FILE, find_heads
from oneshot_dp.pipeline.runs.plan import Plan


def is_finished(plan: Plan) -> bool:
  """Returns whether this very run was charged, and its results are in place.

  The ledger must know all heads that are at the place of the results, and the
  charges of these must be of a run with the same identity.
  """
  out = plan.request.out
  if not _is_in_place(out, plan):
    return False
  # By bytes, not by names: the ledger knows the SHA-256 of the weights that it
  # released, so heads that were exchanged or edited are another run's.
  found = find_heads(out)
  noted = plan.ledger.heads()
  if not found or not found.items() <= noted.items():
    return False
  paid_by = {head.charge for head in found.values()}
  wanted = json.loads(json.dumps(plan.identity))
  charges = {}
  for entry in plan.ledger.entries():
    if entry.id in paid_by:
      charges[entry.id] = entry
  if charges.keys() != paid_by:
    return False
  for charge in charges.values():
    for name, value in wanted.items():
      if charge.identity.get(name) != value:
        return False
  return True


def _is_in_place(out: Path, plan: Plan) -> bool:
  """Whether something whole is at the place of the results."""
  if not isinstance(out, places.Url):
    return out.is_dir()
  # Of a run that was killed the delivery puts the rest, or finds none.
  if is_half_put(out, plan.ledger.path):
    return False
  # What is put last: of a run, results.json comes after all receipts.
  last = RECEIPT_FILE if plan.eval_rows is None else "results.json"
  return places.exists(out / last)
