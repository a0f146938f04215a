"""The command `oneshot-dp`.

An error is one line on standard error: exit status 2 for what was asked, 1 for
a run that failed, 130 after Ctrl-C. A traceback is a bug.
"""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import io
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from oneshot_dp.configs.errors import InputError, RunError, escaped

COMMANDS = {
  "extract": "embed images once with a frozen backbone",
  "import": "make a cache of embeddings that you have",
  "inspect": "what a path is, and what is wrong with it",
  "train": "train one private head",
  "sweep": "train heads for many epsilons, and score them",
  "evaluate": "score a head on labelled embeddings",
  "predict": "label images with a head",
  "export": "a head with its backbone, for other tools",
  "report": "a page about a run, for people",
  "budget": "what was spent on a data set, and its cap",
  "verify": "check a cache, or a head and its charge",
  "audit": "attack heads, and compare with their epsilon",
  "demo": "all of it on handwritten digits, in seconds",
}
"""A NEW ONE GOES HERE, as one row, and in a file of its own in commands/."""
_PROG = "oneshot-dp"
_ABOUT = f"""\
usage: {_PROG} COMMAND …

Differentially private image classifiers: embed the images once with a frozen
public backbone, then train private linear heads on the embeddings.

%s

{_PROG} COMMAND --help says more. Every command takes --json: one JSON
object on standard output. For completion of what you type:
{_PROG} --tyro-print-completion bash|zsh|fish"""
_INTERRUPTED = (
  "interrupted; what was charged stays charged, and the same command goes on"
  " without a new charge"
)
_WORDS = {
  " Unrecognized options": ". Unrecognized options",
  " (Perhaps you meant|Arguments similar to).*?:": "; see",
  r"\. Got errors:.*|\{None\}\||'None', |, 'None'": "",
  r"Missing from \S+ (\w+):": r"\1 needs",
  r"Missing value for argument '(\S+)'.*": r"\1 needs a value",
  r"Error \w+ (\S+): .*\b(?i:int)\b.*?('.*')\]?$": r"\1 \2: give an integer",
  r"Error \w+ (\S+): .*(?i:float|parse).*?('.*')\]?$": r"\1 \2: give a number",
}
"""What tyro says, and how people say it."""
_HINTS = {
  r"--epsilon '.*\d,": "train takes one, and sweep --epsilons 0.5 2 several",
  r"--epsilons '.*\d,": "leave spaces between them: --epsilons 0.5 2",
  "options: -[a-z]{2}": "flags begin with two dashes",
}
"""Signs of mistakes that many make, and the fix."""
_LIMITS = re.compile(
  "can't start new thread|RESOURCE_EXHAUSTED|bad_alloc|(initialize|Unknown) b"
)
"""What libraries say in a RuntimeError where the machine has no more."""


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  status = _run(sys.argv[1:] if argv is None else list(argv))
  if argv is None:
    with contextlib.suppress(OSError):
      sys.stdout.flush()
      sys.stderr.flush()
    if status:  # Threads of Beam, busy in C++, would abort an orderly end.
      os._exit(status)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  return status


def _run(argv: list[str]) -> int:
  _prepare()
  with _interrupts() as interrupts:
    try:
      said, answer = _answer(argv, interrupts)
      if said:
        print(escaped(said), flush=True)
      for fault in answer.faults if answer else ():
        print(escaped(fault), file=sys.stderr)
      if answer and answer.failure is not None:
        raise answer.failure
    except KeyboardInterrupt as stop:
      return _fail(str(stop) or _INTERRUPTED, 130)
    except BrokenPipeError:  # whoever read our output has gone (`| head`)
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return 1
    except InputError as error:
      return _fail(error, 2)
    except RunError as error:
      return _fail(error, 1)
    except Exception as error:
      if interrupts.noted:  # a library made an error of its own of it
        return _fail(_INTERRUPTED, 130)
      kinds = OSError, MemoryError, RecursionError, UnicodeError
      if not isinstance(error, kinds) and not _LIMITS.search(str(error)):
        raise
      place = getattr(error, "filename", None) or "the run ended"
      reason = getattr(error, "strerror", None) or error
      return _fail(f"{place}: {type(error).__name__}: {reason}", 1)
    if interrupts.noted:
      return _fail("interrupted, when all was done already", 130)
  return 0


def _answer(argv: list[str], interrupts: Any) -> tuple[str, Any]:
  """What a command says and found; SystemExit: tyro has said it all."""
  for word in argv:
    if escaped(word) != word or "\n" in word:
      raise InputError(f"{word!a} has control characters: leave them out.")
  name = argv[0] if argv else "--help"
  if name in ("-h", "--help", "help"):
    lines = (f"  {each:10}{what}" for each, what in COMMANDS.items())
    return _ABOUT % "\n".join(lines), None
  if name.startswith("--tyro-"):
    from tyro.extras import subcommand_cli_from_dict

    lines: Any = {each: _line(_module(each).Flags) for each in COMMANDS}
    subcommand_cli_from_dict(lines, prog=_PROG, args=argv)
  if name not in COMMANDS:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"see {_PROG} --help."
    raise InputError(f"there is no command {name}; {hint}")
  command = _module(name)
  flags, as_json = _read(name, command.Flags, argv[1:])
  _check_environment()
  interrupts.seconds = getattr(command, "STOP_SECONDS", interrupts.seconds)
  # Standard output is the answer's alone, whatever a library prints; of several
  # hosts `Hosts.join` sees to it.
  alone = getattr(flags, "hosts", None) is None
  aside = contextlib.redirect_stdout(sys.stderr)
  with aside if alone else contextlib.nullcontext():
    answer = command.run(flags)
  return (answer.json() if as_json else answer.text), answer


def _module(name: str) -> Any:
  name = "import_" if name == "import" else name
  return importlib.import_module(f"{__package__}.commands.{name}")


def _line(kind: type) -> type:
  """The flags of a command, with the one that all commands have."""
  from oneshot_dp.pipeline.commands import Switch, flag

  fields = [
    ("flags", Annotated[kind, flag(None, name="")]),
    ("json", Annotated[Switch, flag("Print one JSON object.")], False),
  ]
  named: Any = {"namespace": {"__doc__": kind.__doc__}, "frozen": True}
  return dataclasses.make_dataclass("Line", fields, kw_only=True, **named)


def _read(name: str, kind: type, words: list[str]) -> tuple[Any, bool]:
  """The flags of a command line; SystemExit after --help."""
  import tyro

  takes_others, complaint = hasattr(kind, "beam_options"), io.StringIO()
  try:
    with contextlib.redirect_stderr(complaint):
      found: Any = tyro.cli(
        _line(kind),
        prog=f"{_PROG} {name}",
        args=words,
        return_unknown_args=takes_others,
        config=(tyro.conf.HelptextFromCommentsOff,),
      )
  except SystemExit as stop:
    if not stop.code:
      raise
    line = _in_one_line(complaint.getvalue())
    hints = [hint for sign, hint in _HINTS.items() if re.search(sign, line)]
    said = "; ".join([line, *hints, f"see {_PROG} {name} --help"])
    raise InputError(said) from None
  line, others = found if takes_others else (found, [])
  flags = line.flags
  if others:
    flags = dataclasses.replace(flags, beam_options=tuple(others))
  return flags, line.json


def _in_one_line(box: str) -> str:
  """A framed complaint of tyro's, without the frame and the help in it."""
  said = []
  for line in box.splitlines()[1:]:
    text = re.sub(r"^[│| ] ?|[│|]$", "", line).rstrip()
    if text.startswith(("For full helptext", "Argument helptext")):
      break
    # What is deeper is the help of a flag named above it.
    if not re.search(r"[─-]{3}", text) and not text.startswith(" " * 5):
      said.append(text.lstrip(" •"))
  line = " ".join(" ".join(said).split()).rstrip(".:")
  for theirs, ours in _WORDS.items():
    line = re.sub(theirs, ours, line)
  return line


def _prepare() -> None:
  """Makes standard streams and libraries behave, whatever they are given."""
  # A crash would leave private rows on the disk.
  most = resource.getrlimit(resource.RLIMIT_CORE)[1]
  resource.setrlimit(resource.RLIMIT_CORE, (0, most))
  logging.basicConfig(level=logging.ERROR, format="%(message)s")
  # It logs the traceback of a callback that Ctrl-C ended.
  logging.getLogger("jax").setLevel(logging.CRITICAL)
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  os.environ["MPLBACKEND"] = "agg"  # a notebook's, say, would end a page
  warnings.formatwarning = lambda message, *_, **__: (
    f"warning: {' '.join(str(message).split())}\n"
  )
  # Where a stream was closed, the ledger would be opened in its place.
  while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
    pass
  os.close(descriptor)
  for name in ("stdout", "stderr"):
    stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115
    setattr(sys, name, stream)
    if isinstance(stream, io.TextIOWrapper):  # its locale may have no ε
      stream.reconfigure(errors="backslashreplace")


@functools.cache
def _check_environment() -> None:
  """Refuses variables of which JAX makes a traceback, and XLA an abort."""
  if not any(n == "XLA_FLAGS" or n.startswith("JAX_") for n in os.environ):
    return
  words = [sys.executable, "-c", "import jax; jax.devices()"]
  tried = subprocess.run(words, capture_output=True, text=True, check=False)
  if tried.returncode:
    said = re.findall(r"Unknown flag.*|\w+Error: .*", tried.stderr)
    raise InputError(f"JAX refuses the environment: {''.join(said[-1:])}.")


@contextlib.contextmanager
def _interrupts() -> Iterator[Any]:
  """Notes a Ctrl-C in the block, which raises KeyboardInterrupt.

  Yields whether there was one, and how many seconds the end may take after it.
  A library may swallow the exception (a callback of JAX), or not come back to
  Python for long: what goes on after it for too long is ended.
  """
  interrupts = types.SimpleNamespace(noted=False, seconds=2.0)
  ended = threading.Event()
  handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
  if not handles or threading.current_thread() is not threading.main_thread():
    yield interrupts
    return
  reader, writer = os.pipe()
  os.set_blocking(writer, False)

  def watch() -> None:
    if not os.read(reader, 1):
      os.close(reader)
    elif not ended.wait(interrupts.seconds):
      os._exit(_fail(_INTERRUPTED, 130))

  def note(number: int, frame: Any) -> None:
    interrupts.noted = True
    raise KeyboardInterrupt

  threading.Thread(target=watch, daemon=True).start()
  before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  signal.signal(signal.SIGINT, note)
  try:
    yield interrupts
  finally:
    ended.set()
    signal.set_wakeup_fd(before)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.close(writer)


def _fail(error: object, status: int) -> int:
  said = escaped(" ".join(str(error).split()))
  with contextlib.suppress(OSError):
    print(f"{_PROG}: error: {said}", file=sys.stderr, flush=True)
  return status
