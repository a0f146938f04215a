"""`oneshot-dp demo`."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from oneshot_dp.pipeline.answer import Answer
from oneshot_dp.pipeline.commands.flags import flag

_EPSILONS = 0.5, 1.0, 2.0, 4.0, 8.0
_DELTA = 1e-5
_DRAWS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """All of it on 1,797 handwritten digits, in seconds and without downloads.

  Its ledger is in its own folder; no budget of yours is spent.

  Example: oneshot-dp demo --out demo
  """

  out: Annotated[
    Path, flag("Caches, ledger and results; what is done is kept.", "DIR")
  ] = Path("demo")


def run(flags: Flags) -> Answer:
  """Extracts both splits, sweeps epsilon with both heads, writes the page."""
  from oneshot_dp.configs.experiments import load_experiment
  from oneshot_dp.extract.job.job import run_extraction
  from oneshot_dp.pipeline.plan import Request
  from oneshot_dp.pipeline.run import run_request

  out, results = flags.out, flags.out / "results"
  if (results / "results.json").exists():
    return Answer(
      text=f"{results} is there already; delete {out} to begin anew",
      facts={"results": results},
    )
  digits = load_experiment("digits")
  for split in "train", "test":
    print(
      f"== extract {split}: the backbone sees each image once", file=sys.stderr
    )
    source = dataclasses.replace(digits.source, split=split)
    config = dataclasses.replace(digits, source=source)
    run_extraction(config, str(out / "caches" / split))
  print("== sweep: two kinds of heads, five epsilons", file=sys.stderr)
  return run_request(
    Request(
      cache=out / "caches" / "train",
      eval_cache=out / "caches" / "test",
      out=results,
      heads=("lamb", "auto"),
      epsilons=_EPSILONS,
      delta=_DELTA,
      num_draws=_DRAWS,
      baseline=True,
      ledger=out / "ledger.sqlite",
    )
  )
