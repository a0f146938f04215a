"""The whole pipeline on handwritten digits, with nothing to download."""

import dataclasses
import sys
import time
from pathlib import Path

from oneshot_dp.configs.experiments.digits_glyph_vit import get_config
from oneshot_dp.configs.extract_config import TfdsSource
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.pipeline.commands import cache_commands
from oneshot_dp.pipeline.commands.report_arguments import Report
from oneshot_dp.pipeline.commands.training_commands import stoppable
from oneshot_dp.pipeline.report.report import PAGE, write_report
from oneshot_dp.pipeline.report.run_record import read_run
from oneshot_dp.pipeline.runs.results import accuracy_table
from oneshot_dp.pipeline.runs.sweep import run_sweep
from oneshot_dp.pipeline.shell.answer import Answer

_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
_DELTA = 1e-5
_DRAWS = 5


def run_demo(out: Path) -> Answer:
  """Prepares digits, extracts both splits, sweeps epsilon, writes the report.

  What an earlier run finished is kept: to train heads again would be to release
  again.

  Args:
    out: `data/`, `caches/`, `results/` and `ledgers/` are made in it: the demo
      spends no real budget.

  Returns:
    The table of the sweep, and where the report is.

  Raises:
    InputError: scikit-learn or matplotlib is not installed.
    RunError: `out` cannot be written.
  """
  start = time.monotonic()
  results = out / "results"
  if results.exists():
    _say(
      f"== {out} is there already: its images, caches and heads are kept,"
      " nothing is extracted or charged (delete it to begin anew)"
    )
  else:
    _sweep(_extract(out, "train"), _extract(out, "test"), out, results)
  rows = read_run(results).rows
  page = results / PAGE
  if not page.exists():
    _say("== report")
    write_report(Report(directory=results))
  seconds = time.monotonic() - start
  return Answer(
    text=f"{accuracy_table(rows)}\n\n"
    f"table:  {results / 'results.csv'}\n"
    f"report: {page}, for your browser ({seconds:.1f} s in all)",
    facts={
      "results": results / "results.csv",
      "report": page,
      "seconds": seconds,
      "heads": rows,
    },
  )


def _sweep(
  train: FeatureCache, test: FeatureCache, out: Path, results: Path
) -> None:
  _say(f"== sweep: one clipped sum, {len(_EPSILONS)} epsilons, {_DRAWS} draws")
  ledger_dir = out / "ledgers"
  with stoppable(results, ledger_dir, train):
    run_sweep(
      train,
      test,
      results,
      _EPSILONS,
      PrivacyConfig(delta=_DELTA),
      HeadConfig(),
      num_draws=_DRAWS,
      order="nested",
      baseline=True,
      ledger_dir=ledger_dir,
    )


def _extract(out: Path, split: str) -> FeatureCache:
  _say(f"== extract {split}: a Beam job runs the backbone once")
  config = dataclasses.replace(
    get_config(),
    source=TfdsSource(name="sklearn_digits", data_dir=str(out / "data")),
    split=split,
  )
  extraction = cache_commands.extract(config, out / "caches" / split)
  _say(extraction.text.splitlines()[-1])
  return extraction.cache


def _say(note: str) -> None:
  print(note, file=sys.stderr)
