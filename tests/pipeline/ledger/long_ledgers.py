"""Ledgers of many entries, written at once."""

import hashlib
import json
import pathlib

from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.chained_file import canonical
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.training.train_heads import charged_rows


def write_long_ledger(
  cache: FeatureCache, directory: pathlib.Path, count: int
) -> Ledger:
  """A charge for a cache's rows, and as many more like it as make `count`."""
  ledger = Ledger(cache.info.dataset, directory)
  plan = ReleasePlan(epsilons=(0.01,), delta=1e-5)
  charge = Charge.of_plan(plan, NoiseSource(), **charged_rows(cache))
  ledger.charge(charge)
  (entry,) = ledger.entries()
  lines = [canonical(entry)]
  entry = {k: v for k, v in entry.items() if k != "row_keys"}
  for _ in range(count - 1):
    linked = entry | {"previous": entry.pop("entry")}
    linked.pop("entry", None)
    linked["entry"] = hashlib.sha256(canonical(linked)).hexdigest()
    entry = linked
    lines.append(canonical(entry))
  ledger.path.write_bytes(b"\n".join([*lines, b""]))
  head = ledger.path.with_name(f"{ledger.path.name}.head")
  head.write_text(json.dumps({"count": count, "entry": entry["entry"]}))
  return ledger
