"""`oneshot-dp demo`."""

import dataclasses
import sys
import time
from pathlib import Path

from oneshot_dp.configs.experiments.digits_glyph_vit import get_config
from oneshot_dp.configs.extract_config import TfdsSource
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.storage.durable_files import check_on_disk
from oneshot_dp.pipeline.commands.data import extract
from oneshot_dp.pipeline.commands.flags import PublicOptions
from oneshot_dp.pipeline.commands.heads import sweep
from oneshot_dp.pipeline.shell.answer import Answer

_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
_DELTA = 1e-5
_DRAWS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """The whole pipeline on scikit-learn's handwritten digits, with no downloads.

  Example: oneshot-dp demo --out demo
  """

  out: Path = Path("demo")
  """Where data, caches and results go; a second run reuses the caches."""


def run(flags: Flags) -> Answer:
  """Prepares digits, extracts both splits, sweeps epsilon, writes the report.

  What an earlier run finished is kept: to train heads again would be to release
  again. The demo has a ledger of its own, and spends no real budget.
  InputError: scikit-learn or matplotlib is not installed.
  """
  from oneshot_dp.pipeline.report.report import PAGE, write_report
  from oneshot_dp.pipeline.report.run_record import read_run
  from oneshot_dp.pipeline.runs.results import accuracy_table

  start = time.monotonic()
  check_on_disk(flags.out)
  results = flags.out / "results"
  if results.exists():
    _say(
      f"== {flags.out} is there already: its images, caches and heads are kept,"
      " nothing is extracted or charged (delete it to begin anew)"
    )
  else:
    _extract(flags.out, "train")
    _extract(flags.out, "test")
    _sweep(flags.out, results)
  rows = read_run(results).rows
  page = results / PAGE
  if not page.exists():
    _say("== report")
    write_report(results)
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


def _extract(out: Path, split: str) -> None:
  _say(f"== extract {split}: a Beam job runs the backbone once")
  job = dataclasses.replace(
    get_config(),
    source=TfdsSource(name="sklearn_digits", data_dir=str(out / "data")),
    split=split,
  )
  flags = extract.Flags(
    config="digits_glyph_vit", out=out / "caches" / split, job=job
  )
  _say(extract.run(flags).text.splitlines()[-1])


def _sweep(out: Path, results: Path) -> None:
  _say(
    "== sweep: the paper's single step, one clipped sum for"
    f" {len(_EPSILONS)} epsilons and {_DRAWS} draws"
  )
  sweep.run(
    sweep.Flags(
      cache=out / "caches/train",
      eval_cache=out / "caches/test",
      epsilons=_EPSILONS,
      out=results,
      privacy=PrivacyConfig(delta=_DELTA),
      training=HeadConfig(),
      public=PublicOptions(),
      num_draws=_DRAWS,
      baseline=True,
      ledger_dir=out / "ledgers",
    )
  )


def _say(note: str) -> None:
  print(note, file=sys.stderr)
