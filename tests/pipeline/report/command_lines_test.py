import dataclasses
import json
import pathlib
import shlex

import pytest

from oneshot_dp.pipeline.commands.registry import COMMANDS
from oneshot_dp.pipeline.report.command_lines import Places, in_lines, run_again
from oneshot_dp.pipeline.report.run_record import RunRecord
from oneshot_dp.pipeline.shell.parser import parse
from tests.pipeline.runs.results_test import row

PLACES = Places(
  cache=pathlib.Path("/a b/train"),
  eval_cache=pathlib.Path("/a b/test"),
  ledger_dir=pathlib.Path("/ledgers"),
)
BASIS = (
  "--cache '/a b/train' --eval-cache '/a b/test' --epsilons 0.5 2 --delta 1e-05"
  " --ledger-dir /ledgers --out /runs/one-again"
)


def asked_of(command) -> dict:
  """What the command would leave in config.json."""
  asked = {
    "epsilons": list(command.epsilons),
    "privacy": dataclasses.asdict(command.privacy),
    "num_draws": command.num_draws,
    "baseline": command.baseline,
    "public_cache": None,
  }
  if hasattr(command, "heads"):
    return asked | {"heads": [{"head": head} for head in command.heads]}
  return asked | {
    "head": command.training.settings(),
    "max_rows_per_unit": command.max_rows_per_unit,
    "release": command.release,
    "private_eval": command.private_eval,
  }


@pytest.mark.parametrize(
  "options",
  [
    "sweep --release nested",
    "sweep --release independent --num-draws 3 --baseline --head adam"
    " --l2-clip-norm 0.25 --train-bias --eps-in-noise-sds 2"
    " --neighboring-relation replace-one --noise-seed 7",
    "sweep --release independent --head multi-step --steps.epochs 3"
    " --steps.batch-size 50 --steps.sampling poisson --steps.loss sigmoid"
    " --steps.init normal --steps.init-scale 0.01 --steps.no-unit-norm",
    "sweep --release nested --max-rows-per-unit 4 --private-eval 0.5",
    "compare --heads lamb whitened --num-draws 2 --baseline",
    "sweep --release nested --private-eval 0.1234567891",
  ],
)
def test_it_asks_for_the_very_same(options):
  name, *words = options.split()
  first = parse([name, *shlex.split(BASIS), *words], COMMANDS).flags
  run = RunRecord(
    directory=pathlib.Path("/runs/one"),
    config=json.loads(json.dumps(asked_of(first))),
    results={},
    rows=(row(0.5, 0, 0.8),),
  )
  copied = in_lines(run_again(run, PLACES))
  program, *again = shlex.split(copied.replace("\\\n", " "))
  assert program == "oneshot-dp"
  assert parse(again, COMMANDS).flags == first
