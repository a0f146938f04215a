"""The command `oneshot-dp`.

Errors are one line on standard error: exit status 2 for what was asked, 1 for
a run that failed. A traceback is a bug.
"""

import contextlib
import inspect
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from configs.errors import InputError, RunError
from configs.registry import experiment_names, load_config
from configs.schema import ArraysSource, ExtractConfig
from pipeline import arguments
from pipeline.cache_arguments import Extract
from pipeline.privacy_arguments import BudgetSet

_PROG = "oneshot-dp"
_DESCRIPTION = (
  "Differentially private image classifiers: embed the images once with a"
  " frozen public backbone, then train private linear heads, one per"
  " epsilon."
)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  status = _run(sys.argv[1:] if argv is None else argv)
  if status and argv is None:
    # Beam's threads may still be busy in C++, and the interpreter's orderly
    # end would abort there.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
  return status


def _run(argv: Sequence[str]) -> int:
  # TFDS and Beam announce missing optional packages through the root logger.
  logging.basicConfig(level=logging.ERROR, format="%(message)s")
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  warnings.formatwarning = _warning_line
  try:
    command, beam_options = parse(argv)
    # Imported here: `--help` need not wait for JAX, TFDS and Beam.
    from pipeline import commands

    commands.run(command, beam_options)
  except InputError as error:
    return _fail(error, 2)
  except RunError as error:
    return _fail(error, 1)
  except KeyboardInterrupt:
    return _fail(
      "interrupted; an extraction resumes when the same command is run again"
      " (what was charged to a ledger stays charged)",
      130,
    )
  except BrokenPipeError:
    # The reader of our output has gone (`| head`); nothing is left to say.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  return 0


def parse(argv: Sequence[str]) -> tuple[Any, list[str]]:
  """The command as one of the dataclasses of `arguments`, and Beam's flags.

  Raises:
    InputError: the command line makes no sense; one line.
    SystemExit: 0, after --help.
  """
  complaint = io.StringIO()
  try:
    with contextlib.redirect_stderr(complaint):
      if argv and argv[0] == "extract":
        return _parse_extract(argv[1:])
      if list(argv[:2]) == ["budget", "set"]:
        prog = f"{_PROG} budget set"
        return tyro.cli(BudgetSet, prog=prog, args=argv[2:]), []
      command = tyro.cli(
        arguments.Command, prog=_PROG, description=_DESCRIPTION, args=argv
      )
      return command, []
  except SystemExit as stop:
    if not stop.code:
      raise
    raise InputError(_one_line(complaint.getvalue())) from stop


def _parse_extract(
  argv: Sequence[str],
) -> tuple[Extract, list[str]]:
  """`extract`: the experiment gives the defaults of the flags after it."""
  named = bool(argv) and not argv[0].startswith("-")
  defaults = (
    load_config(argv[0])
    if named
    else ExtractConfig(source=ArraysSource(path="images.npz"))
  )

  def extract(
    config: Annotated[
      Positional[str],
      tyro.conf.arg(metavar="CONFIG", help="Experiment name or Python file."),
    ],
    out: Annotated[Path, tyro.conf.arg(help="Directory of the cache.")],
    # No prefix: `--split`, `--backbone.weights`.
    job: Annotated[ExtractConfig, tyro.conf.arg(name="")] = defaults,
  ) -> Extract:
    return Extract(config=config, out=out, job=job)

  command, unknown = tyro.cli(
    extract,
    prog=f"{_PROG} extract",
    description=f"{inspect.cleandoc(Extract.__doc__ or '')}\n\n"
    f"Experiments: {', '.join(experiment_names())}.",
    args=argv,
    return_unknown_args=True,
    config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
  )
  if not named:
    raise InputError(
      f"CONFIG comes first: oneshot-dp extract {command.config} --out ..."
    )
  _refuse_stray_words(unknown)
  return command, list(unknown)


def _refuse_stray_words(beam_flags: Sequence[str]) -> None:
  """Beam takes flags and their values only."""
  takes_value = False
  for word in beam_flags:
    if not word.startswith("-") and not takes_value:
      raise InputError(
        f"{word!r} is one word too many: extract takes one CONFIG, then flags."
      )
    takes_value = word.startswith("-") and "=" not in word


def _one_line(box: str) -> str:
  """A framed message of tyro's as one line, without its title."""
  lines = [x for x in box.splitlines() if not re.search(r"[─-]{3}", x)]
  words = re.sub(r"[│|•]", " ", " ".join(lines))
  return " ".join(words.split())


def _warning_line(message: Warning | str, *_: Any, **__: Any) -> str:
  return f"warning: {message}\n"


def _fail(error: object, status: int) -> int:
  print(f"{_PROG}: error: {' '.join(str(error).split())}", file=sys.stderr)
  return status
