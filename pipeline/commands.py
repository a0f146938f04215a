"""What each command does and prints."""

from typing import Any

from extract.cache_reader import open_cache
from extract.cache_summary import describe
from pipeline.ablation_arguments import Ablate
from pipeline.arguments import Demo
from pipeline.budget_report import set_cap, show_budget
from pipeline.cache_arguments import (
  Backbones,
  Extract,
  ImportFeatures,
  Inspect,
  Verify,
)
from pipeline.cache_commands import extract, run_import, verify
from pipeline.cap import Cap
from pipeline.figure_arguments import Figures
from pipeline.privacy_arguments import Audit, Budget, BudgetSet, Evaluate
from pipeline.privacy_commands import audit, evaluate
from pipeline.training import RELATIONS
from pipeline.training_arguments import Compare, Sweep, Train
from pipeline.training_commands import ablate, compare, figures, sweep, train


def run(command: Any, beam_options: list[str]) -> None:
  """Runs a parsed command.

  Raises:
    InputError, RunError: see `cli`.
  """
  match command:
    case Extract():
      extract(command.job, command.out, beam_options)
    case Backbones():
      from pipeline.backbone_list import describe_backbone, list_backbones

      name = command.name
      print(list_backbones() if name is None else describe_backbone(name))
    case ImportFeatures():
      run_import(command)
    case Inspect():
      print(describe(open_cache(command.cache)))
    case Verify():
      verify(command)
    case Train():
      train(command)
    case Sweep():
      sweep(command)
    case Compare():
      compare(command)
    case Figures():
      figures(command)
    case Ablate():
      ablate(command)
    case Evaluate():
      evaluate(command)
    case Budget():
      show_budget(
        command.cache, delta=command.delta, ledger_dir=command.ledger_dir
      )
    case BudgetSet():
      cap = Cap(
        max_epsilon=command.max_epsilon,
        max_delta=command.max_delta,
        neighboring_relation=RELATIONS[command.neighboring_relation],
      )
      set_cap(command.cache, cap, ledger_dir=command.ledger_dir)
    case Audit():
      audit(command)
    case Demo():
      from pipeline.demo import run_demo

      run_demo(command.out)
