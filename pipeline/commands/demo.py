"""`oneshot-dp demo`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Run everything on 1,797 handwritten digits, in seconds, without downloads.

  Its ledger is in its own folder; no budget of yours is spent.

  Example: oneshot-dp demo --out demo
  """

  out: Annotated[Path, flag("Caches, ledger and results.", "DIR")] = Path(
    "demo"
  )


def run(flags: Flags) -> Answer:
  """Extracts both splits, and sweeps epsilon with both heads."""
  from oneshot_dp.configs.extract_config import load_experiment
  from oneshot_dp.extract.job.job import run_extraction
  from oneshot_dp.extract.storage import is_url
  from oneshot_dp.pipeline.commands import sweep

  out, caches, results = flags.out, flags.out / "caches", flags.out / "results"
  if is_url(out):
    raise InputError(f"--out {out}: name a folder on a disk.")
  if results.exists():
    said = f"{results} is there already; name another --out to begin anew"
    return Answer(text=said, facts={"results": results})
  own = "caches", "ledger.sqlite", f".{results.name}.unfinished"
  there = {path.name for path in out.iterdir()} if out.is_dir() else set()
  if there - {*own}:
    raise InputError(f"--out {out} holds other files: name a new folder.")
  digits = load_experiment("digits")
  for split in "train", "test":
    source = dataclasses.replace(digits.source, split=split)
    config = dataclasses.replace(digits, source=source)
    run_extraction(config, str(caches / split))
  return sweep.run(
    sweep.Flags(
      cache=caches / "train",
      eval_cache=caches / "test",
      out=results,
      heads=("lamb", "auto"),
      epsilons=(0.5, 1.0, 2.0, 4.0, 8.0),
      delta=1e-5,
      num_draws=3,
      baseline=True,
      ledger=out / "ledger.sqlite",
    )
  )
