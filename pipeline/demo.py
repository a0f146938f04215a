"""The whole pipeline on handwritten digits, with nothing to download."""

import dataclasses
from pathlib import Path

from configs.digits_random_patches import get_config
from configs.schema import HeadConfig, PrivacyConfig
from pipeline import cache_commands
from pipeline.digits import prepare_digits
from pipeline.results import accuracy_table
from pipeline.sweep import run_sweep

_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
_DELTA = 1e-5
_SEEDS = 5


def run_demo(out: Path) -> None:
  """Prepares digits, extracts both splits, sweeps epsilon, prints the table.

  Args:
    out: `data/`, `caches/` (kept and reused) and `results-1`, `results-2`, …
      are made in it, and a ledger of its own: the demo spends no real budget.
  """
  source = prepare_digits(str(out / "data"))
  caches = {}
  for split in ("train", "test"):
    print(f"\n== extract {split}: a Beam job runs the backbone once")
    config = dataclasses.replace(get_config(), source=source, split=split)
    caches[split] = cache_commands.extract(config, out / "caches" / split, [])
  print(f"\n== sweep: one clipped sum, {len(_EPSILONS)} epsilons")
  results = _next_results(out)
  rows = run_sweep(
    caches["train"],
    caches["test"],
    results,
    _EPSILONS,
    PrivacyConfig(delta=_DELTA),
    HeadConfig(),
    num_seeds=_SEEDS,
    order="nested",
    baseline=True,
    ledger_dir=out / "ledgers",
  )
  print(accuracy_table(rows))
  print(f"table: {results / 'results.csv'}\nplot:  {results / 'accuracy.png'}")


def _next_results(out: Path) -> Path:
  number = 1
  while (out / f"results-{number}").exists():
    number += 1
  return out / f"results-{number}"
