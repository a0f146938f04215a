"""`oneshot-dp demo`."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.places import parse_place
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import CommandFlags, Flag
from oneshot_dp.pipeline.requests import EvalSet, TrainRequest

_CACHES = "caches"
_LEDGER = "ledger.sqlite"
_RESULTS = "results"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Run everything on 1,797 handwritten digits, in seconds, without downloads.

  Its ledger is in its own folder; no budget of yours is spent.
  """

  EXAMPLES: ClassVar = ("oneshot-dp demo --out demo",)

  out: Path = Flag(
    parse=parse_place,
    form="DIR",
    help="Folder for caches, ledger and results, on a disk.",
  ).default(Path("demo"))


def run(flags: Flags) -> Answer:
  """Extracts both splits, and trains and scores two kinds of head."""
  from oneshot_dp.extract.storage import is_url
  from oneshot_dp.pipeline.runs.run import run_request

  out = flags.out
  if is_url(out):
    raise InputError(f"--out {out}: name a folder on a disk.")
  # The results come last, so where they are, everything is done.
  results = out / _RESULTS
  if results.exists():
    return Answer(
      text=f"{results} is finished already: see report.html and results.csv;"
      f" to start again, remove {out}, or name another --out",
      facts={"results": results},
    )
  _check_folder_is_ours(out)
  caches = out / _CACHES
  _extract_digits(caches)
  return run_request(
    TrainRequest(
      cache=caches / "train",
      heads=("lamb", "auto"),
      # Digits are easy: only with small epsilons is there a cost to see.
      epsilons=(0.25, 0.5, 1.0, 2.0, 8.0),
      delta=1e-5,
      out=results,
      num_draws=3,
      baseline=True,
      eval_set=EvalSet(cache=caches / "test"),
      ledger=out / _LEDGER,
    )
  )


def _check_folder_is_ours(out: Path) -> None:
  """Refuses a folder with anything in it that a demo does not write."""
  if not out.is_dir():
    return
  written_by_demo = {_CACHES, _LEDGER, f".{_RESULTS}.unfinished"}
  for path in out.iterdir():
    if path.name not in written_by_demo:
      raise InputError(f"--out {out} holds other files: name a new folder.")


def _extract_digits(caches: Path) -> None:
  """Writes a cache of each split of the digits that come with the package."""
  from oneshot_dp.configs.extract_config import load_experiment
  from oneshot_dp.extract.job.job import run_extraction

  digits = load_experiment("digits")
  for split in ("train", "test"):
    source = dataclasses.replace(digits.source, split=split)
    config = dataclasses.replace(digits, source=source)
    run_extraction(config, str(caches / split))
