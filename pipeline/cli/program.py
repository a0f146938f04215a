"""Finds the command that is typed, runs it, and prints its answer.

Standard output has the answer alone. An error is one line on standard error:
exit status 2 for a request that cannot be done, 1 for a run that failed, 130
after Ctrl-C, SIGTERM or SIGHUP. A traceback is a bug.
"""

import contextlib
import difflib
import functools
import importlib
import io
import logging
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.configs.stop_signals import STOP_SIGNALS, STOPPED_STATUS
from oneshot_dp.extract.files import disable_core_dumps
from oneshot_dp.pipeline import PROGRAM, Answer
from oneshot_dp.pipeline.cli import interrupts
from oneshot_dp.pipeline.cli.interrupts import Interrupts

COMMANDS = {
  "extract": "embed images once with a frozen public backbone",
  "import": "import precomputed embeddings",
  "inspect": "identify a path and report problems",
  "train": "train one private head",
  "sweep": "train heads for many epsilons, and score them",
  "evaluate": "score a head on labeled embeddings",
  "predict": "label images with a head",
  "export": "write a head and its backbone for other tools",
  "report": "write an HTML report",
  "budget": "show what was spent on a data set, and set its cap",
  "verify": "check a cache, or a head and its charge in the ledger",
  "audit": "attack heads, and compare with their claimed epsilon",
  "demo": "run everything on handwritten digits, in seconds",
}
"""A new command is one row here, and a file of its own in commands/."""
_HELP_WORDS = ("-h", "--help", "help")
_COMPLETION_WORDS = ("--print-completion", "--tyro-print-completion")
# What libraries say in a RuntimeError if the machine has no threads, memory or
# devices left, which is not a bug of ours.
_RESOURCE_ERRORS = re.compile(
  "can't start new thread|RESOURCE_EXHAUSTED|bad_alloc|(initialize|Unknown) b"
)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command.

  Args:
    argv: the words after the program's name; None takes those of the process,
      which ends with this command.

  Returns:
    The exit status.
  """
  if argv is not None:
    return _run(list(argv))
  status = _run(sys.argv[1:])
  with contextlib.suppress(OSError):
    sys.stdout.flush()
    sys.stderr.flush()
  if status:
    # Threads of Beam that are busy in C++ would abort an orderly end.
    os._exit(status)
  # From here on nothing is left to say about a signal to stop.
  for number in STOP_SIGNALS:
    if signal.getsignal(number) != signal.SIG_IGN:
      signal.signal(number, signal.SIG_DFL)
  return status


def _run(argv: list[str]) -> int:
  """Runs a command, and makes one line of whatever ends it."""
  _prepare_process()
  # Within, a signal is an exception: what was begun can be given back, and the
  # end is told in one line.
  with Interrupts() as stop:
    try:
      _print_answer(*_answer(argv, stop))
    except KeyboardInterrupt as interrupt:
      return _fail(str(interrupt) or interrupts.MESSAGE, STOPPED_STATUS)
    except BrokenPipeError:
      # Whoever read our output has gone, as `| head` does.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return 1
    except InputError as error:
      return _fail(error, 2)
    except RunError as error:
      return _fail(error, 1)
    # What a library makes of a full disk or of too little memory has many
    # types. It is told in one line; everything else is a bug, and keeps its
    # traceback.
    except Exception as error:
      if stop.received:  # a library made an error of its own of it
        return _fail(interrupts.MESSAGE, STOPPED_STATUS)
      if not _is_of_the_machine(error):
        raise
      return _fail(_machine_error_line(error), 1)
    if stop.received:
      return _fail("interrupted, when all was done already", STOPPED_STATUS)
  return 0


def _answer(argv: list[str], stop: Interrupts) -> tuple[str, Answer | None]:
  """Returns the text to print, and the answer of the command, if one ran."""
  # Words are printed in messages, and stored as names: one that forges a line
  # of output is refused before anything reads it.
  for word in argv:
    if escaped(word) != word or "\n" in word:
      raise InputError(f"{word!a} has control characters: leave them out.")
  name = argv[0] if argv else "--help"
  words = argv[1:]
  if name in _HELP_WORDS:
    if words:
      return _help_of(words[0]), None
    return _program_help(), None
  if name == "--version":
    from importlib import metadata  # it imports the whole of `email`

    return f"{PROGRAM} {metadata.version(PROGRAM)}", None
  option, _, value = name.partition("=")
  if option in _COMPLETION_WORDS:
    shell = value or " ".join(words)
    return _completion(shell), None
  command = load_command(name)
  # `--help` asks for help wherever it stands, also behind flags that are wrong.
  before_dashes = words[: words.index("--")] if "--" in words else words
  if {"-h", "--help"} & set(before_dashes):
    return _help_of(name), None
  # Here, since --help and --version do without flags and argparse.
  from oneshot_dp.pipeline.cli.usage import read_flags

  flags, as_json = read_flags(name, command.Flags, words)
  _check_jax_environment()
  stop.stop_seconds = flags.STOP_SECONDS
  # Whatever a library prints is not part of the answer. (Among hosts,
  # `Hosts.join` takes the process's standard streams aside.)
  aside = contextlib.nullcontext()
  if not flags.is_one_of_hosts:
    aside = contextlib.redirect_stdout(sys.stderr)
  with aside:
    answer = command.run(flags)
  return (answer.json() if as_json else answer.text), answer


def _print_answer(text: str, answer: Answer | None) -> None:
  """Prints an answer and its faults; raises its failure, if there is one."""
  # The answer comes first: what was found is shown even if it is a failure.
  if text:
    _print_on_stdout(escaped(text))
  if answer is None:
    return
  for fault in answer.faults:
    print(escaped(fault), file=sys.stderr)
  if answer.failure is not None:
    raise answer.failure


def _print_on_stdout(text: str) -> None:
  """Prints a text; RunError: standard output is full, and stderr has it."""
  try:
    print(text, flush=True)
  except BrokenPipeError:  # whoever reads it has had enough
    raise
  except OSError as error:
    # It may have cost a charge that pays for one answer.
    print(text, file=sys.stderr)
    raise RunError(
      f"standard output cannot be written ({error.strerror}): its text is here,"
      " before this line."
    ) from error


def load_command(name: str) -> Any:
  """Returns the module of a command; InputError: there is none of the name."""
  if name not in COMMANDS:
    hint = f"see {PROGRAM} --help."
    for similar in difflib.get_close_matches(name, COMMANDS, n=1):
      hint = f"did you mean {similar}?"
    raise InputError(f"there is no command {name[:80]}; {hint}")
  module = "import_" if name == "import" else name  # `import` is a keyword
  return importlib.import_module(f"oneshot_dp.pipeline.commands.{module}")


def _program_help() -> str:
  lines = [f"  {name:10}{about}" for name, about in COMMANDS.items()]
  commands = "\n".join(lines)
  return f"""\
usage: {PROGRAM} COMMAND …

Differentially private image classifiers: embed the images once with a frozen
public backbone, then train private linear heads on the embeddings.

{commands}

{PROGRAM} COMMAND --help describes the flags of a command. Every command takes
--json, which prints one JSON object. {PROGRAM} --version prints the version.
Completion for your shell: {PROGRAM} --print-completion bash|zsh|fish"""


def _help_of(name: str) -> str:
  from oneshot_dp.pipeline.cli.usage import command_help  # as in `_answer`

  return command_help(name, load_command(name).Flags)


def _completion(shell: str) -> str:
  """Returns a script by which a shell completes commands and flags."""
  import argparse

  import shtab

  from oneshot_dp.pipeline.cli.usage import command_parser

  if shell not in shtab.SUPPORTED_SHELLS:
    shells = ", ".join(shtab.SUPPORTED_SHELLS)
    raise InputError(
      f"--print-completion {shell[:80]!a} is not one of {shells}."
    )
  parser = argparse.ArgumentParser(prog=PROGRAM)
  commands = parser.add_subparsers()
  for name, about in COMMANDS.items():
    command = commands.add_parser(name, help=about, add_help=False)
    command_parser(name, load_command(name).Flags, command)
  return shtab.complete(parser, shell)  # pyrefly: ignore[bad-argument-type]


def _prepare_process() -> None:
  """Makes streams and libraries behave, whatever the process was given."""
  # A crash would leave private rows on the disk.
  disable_core_dumps()
  logging.basicConfig(level=logging.ERROR, format="%(message)s")
  # JAX logs the traceback of a callback that Ctrl-C ended.
  logging.getLogger("jax").setLevel(logging.CRITICAL)
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  # Another backend of matplotlib, such as a notebook's, would fail here.
  os.environ["MPLBACKEND"] = "agg"
  warnings.formatwarning = _one_line_warning
  # Where a standard stream is closed, the next file that is opened would take
  # its place: the ledger, say.
  while True:
    descriptor = os.open(os.devnull, os.O_RDWR)
    if descriptor > 2:
      os.close(descriptor)
      break
  for name in ("stdout", "stderr"):
    stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115
    setattr(sys, name, stream)
    # The encoding of the locale may have no ε.
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors="backslashreplace")


def _one_line_warning(message: object, *_: object, **__: object) -> str:
  return f"WARNING: {' '.join(str(message).split())}\n"


@functools.cache
def _check_jax_environment() -> None:
  """Refuses environment variables that JAX or XLA cannot read.

  JAX would print a traceback and XLA abort the process, so a process of its own
  tries them.
  """
  is_set = "XLA_FLAGS" in os.environ
  for name in os.environ:
    is_set = is_set or name.startswith("JAX_")
  if not is_set:
    return
  tried = subprocess.run(
    [sys.executable, "-c", "import jax; jax.devices()"],
    capture_output=True,
    text=True,
    check=False,
  )
  if tried.returncode == 0:
    return
  messages = re.findall(r"Unknown flag.*|\w+Error: .*", tried.stderr)
  reason = messages[-1] if messages else f"status {tried.returncode}"
  raise InputError(f"JAX refuses the environment: {reason}.")


def _is_of_the_machine(error: Exception) -> bool:
  """Whether the machine is at fault: its disk, its memory, its limits."""
  kinds = (OSError, MemoryError, RecursionError, UnicodeError)
  return isinstance(error, kinds) or bool(_RESOURCE_ERRORS.search(str(error)))


def _machine_error_line(error: Exception) -> str:
  place: object = "the run ended"
  reason: object = error
  if isinstance(error, OSError):
    place = error.filename or place
    reason = error.strerror or error
  return f"{place}: {type(error).__name__}: {reason}"


def _fail(error: object, status: int) -> int:
  """Prints one line on standard error; returns the status."""
  line = escaped(" ".join(str(error).split()))
  with contextlib.suppress(OSError):
    print(f"{PROGRAM}: error: {line}", file=sys.stderr, flush=True)
  return status
