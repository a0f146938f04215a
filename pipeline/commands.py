"""What each command does: it is run, and its answer printed."""

import sys
from typing import Any

from pipeline import arguments
from pipeline.answer import Answer
from pipeline.parser import Request
from pipeline.terminal import as_asked


def run(request: Request) -> None:
  """Runs a parsed command, and prints its answer.

  Raises:
    InputError, RunError: see `cli`.
  """
  with as_asked(request.output):
    answer = _answer(request.command, request.beam_options)
  if said := answer.json() if request.output.json else answer.text:
    print(said)
  for fault in answer.faults:
    print(fault, file=sys.stderr)
  if answer.failure is not None:
    raise answer.failure


def _answer(command: Any, beam_options: tuple[str, ...]) -> Answer:
  """Each arm imports its own: JAX, Beam and TFDS take seconds."""
  match command:
    case arguments.Extract():
      from pipeline.cache_commands import run_extract

      return run_extract(command, beam_options)
    case arguments.Backbones():
      from pipeline.backbone_list import backbones

      return backbones(command.name)
    case arguments.ImportFeatures():
      from pipeline.cache_commands import run_import

      return run_import(command)
    case arguments.Inspect():
      from pipeline.cache_commands import inspect

      return inspect(command.cache)
    case arguments.Verify():
      from pipeline.cache_commands import verify

      return verify(command)
    case arguments.Train():
      from pipeline.training_commands import train

      return train(command)
    case arguments.Sweep():
      from pipeline.training_commands import sweep

      return sweep(command)
    case arguments.Compare():
      from pipeline.training_commands import compare

      return compare(command)
    case arguments.Figures():
      from pipeline.study_commands import figures

      return figures(command)
    case arguments.Ablate():
      from pipeline.study_commands import ablate

      return ablate(command)
    case arguments.Evaluate():
      from pipeline.privacy_commands import evaluate

      return evaluate(command)
    case arguments.Report():
      from pipeline.report_command import report

      return report(command)
    case arguments.Budget():
      from pipeline.budget_report import show_budget

      return show_budget(command)
    case arguments.BudgetSet():
      from pipeline.budget_report import set_cap

      return set_cap(command)
    case arguments.Audit():
      from pipeline.privacy_commands import audit

      return audit(command)
    case arguments.Demo():
      from pipeline.demo import run_demo

      return run_demo(command.out)
    case arguments.Completion():
      from pipeline.completion import completion

      return completion(command.shell)
  raise TypeError(f"{command!r} is no command.")
