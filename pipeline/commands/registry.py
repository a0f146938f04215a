"""What each command does: it is run, and its answer printed."""

import sys
from typing import Any

from oneshot_dp.pipeline.commands import arguments
from oneshot_dp.pipeline.shell.answer import Answer
from oneshot_dp.pipeline.shell.parser import Request
from oneshot_dp.pipeline.shell.terminal import as_asked


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
      from oneshot_dp.pipeline.commands.cache_commands import run_extract

      return run_extract(command, beam_options)
    case arguments.Backbones():
      from oneshot_dp.pipeline.commands.backbone_list import backbones

      return backbones(command.name)
    case arguments.ImportFeatures():
      from oneshot_dp.pipeline.commands.cache_commands import run_import

      return run_import(command)
    case arguments.Inspect():
      from oneshot_dp.pipeline.commands.cache_commands import inspect

      return inspect(command.cache)
    case arguments.Verify():
      from oneshot_dp.pipeline.commands.cache_commands import verify

      return verify(command)
    case arguments.Train():
      from oneshot_dp.pipeline.commands.training_commands import train

      return train(command)
    case arguments.Sweep():
      from oneshot_dp.pipeline.commands.training_commands import sweep

      return sweep(command)
    case arguments.Compare():
      from oneshot_dp.pipeline.commands.training_commands import compare

      return compare(command)
    case arguments.Figures():
      from oneshot_dp.pipeline.commands.study_commands import figures

      return figures(command)
    case arguments.Ablate():
      from oneshot_dp.pipeline.commands.study_commands import ablate

      return ablate(command)
    case arguments.Evaluate():
      from oneshot_dp.pipeline.commands.privacy_commands import evaluate

      return evaluate(command)
    case arguments.Report():
      from oneshot_dp.pipeline.commands.report_command import report

      return report(command)
    case arguments.Budget():
      from oneshot_dp.pipeline.commands.budget_report import show_budget

      return show_budget(command)
    case arguments.BudgetSet():
      from oneshot_dp.pipeline.commands.budget_report import set_cap

      return set_cap(command)
    case arguments.Audit():
      from oneshot_dp.pipeline.commands.privacy_commands import audit

      return audit(command)
    case arguments.Demo():
      from oneshot_dp.pipeline.commands.demo import run_demo

      return run_demo(command.out)
    case arguments.Completion():
      from oneshot_dp.pipeline.commands.completion import completion

      return completion(command.shell)
  raise TypeError(f"{command!r} is no command.")
