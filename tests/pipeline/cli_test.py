"""What all commands share."""

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import types

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.cli import COMMANDS, main, program
from oneshot_dp.pipeline.cli.usage import read_flags
from oneshot_dp.pipeline.commands import extract, train
from tests.pipeline.command_line import (
  ROOT,
  fails,
  one_line,
  start,
  succeeds,
)

TRAIN = ["train", "--cache", "c", "--epsilon", "1"]
TRAIN += ["--delta", "1e-5", "--out", "o"]


def run_python(*words, **environment):
  environment = os.environ | environment
  words = [sys.executable, *words]
  return subprocess.check_output(words, text=True, env=environment)


class TestWords:
  def test_help_fits_a_screen_and_waits_for_nothing_heavy(self):
    code = (
      "import sys; from oneshot_dp.pipeline.cli import COMMANDS, main\n"
      "main(['--help']); print(*sys.modules, 'END')\n"
      "for name in COMMANDS:\n"
      "  try: main([name, '--help'])\n"
      "  except SystemExit as stop: assert not stop.code\n"
      "  print('END')\n"
      "print(*sys.modules)"
    )
    said = run_python("-c", code, COLUMNS="80")
    listed, *helps, modules = said.split("END\n")
    listed, at_first = listed.rstrip().rsplit("\n", 1)
    assert all(f"  {name} " in listed for name in COMMANDS)
    heavy = {"jax", "apache_beam", "matplotlib", "tensorflow_datasets"}
    only_commands = {"numpy", "argparse", "email"}
    assert not (heavy | only_commands) & {*at_first.split()}
    assert len(helps) == len(COMMANDS)
    for shown in helps:
      assert "--json" in shown
      assert len(shown.splitlines()) <= 120
    assert not (heavy | {"pyarrow"}) & {*modules.split()}

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ("module", "unneeded"),
    [
      ("pipeline.runs.run", {"PIL", "pyarrow", "flax", "apache_beam"}),
      ("extract.job.job", {"pyarrow", "matplotlib", "dp_accounting"}),
    ],
  )
  def test_a_command_waits_for_no_library_of_another(self, module, unneeded):
    code = f"import sys, oneshot_dp.{module}; print(*sys.modules)"
    imported = run_python("-c", code)
    assert not unneeded & {*imported.split()}

  @pytest.mark.parametrize("columns", ["1", "2", "3"])
  def test_help_in_a_narrow_terminal_ends(self, columns):
    said = run_python("-m", "oneshot_dp", "train", "--help", COLUMNS=columns)
    assert "--epsilon" in said

  @pytest.mark.parametrize("command", ["extract", "evaluate"])
  def test_help_in_a_terminal_of_80_columns_breaks_no_word_at_a_hyphen(
    self, capsys, monkeypatch, command
  ):
    monkeypatch.setenv("COLUMNS", "80")
    lines = succeeds(capsys, command, "--help")[0].splitlines()
    assert [line for line in lines if line.endswith("-")] == []

  @pytest.mark.parametrize("words", ["help train", "train -h", "--help train"])
  def test_help_of_a_command_in_any_form_is_the_same(self, capsys, words):
    expected = succeeds(capsys, "train", "--help")
    assert succeeds(capsys, *words.split()) == expected

  def test_version_is_that_of_the_package(self, capsys):
    version = importlib.metadata.version("oneshot-dp")
    assert succeeds(capsys, "--version")[0] == f"oneshot-dp {version}\n"

  def test_completion_of_an_unknown_shell_is_one_line(self, capsys):
    for option in ("--print-completion", "--tyro-print-completion"):
      line = fails(capsys, option, "ksh")
      assert line.startswith("--print-completion 'ksh' is not one of bash")
      assert "powershell" in succeeds(capsys, option, "powershell")[0].lower()

  def test_completion_knows_commands_and_flags(self):
    said = run_python("-m", "oneshot_dp", "--print-completion", "bash")
    assert all(each in said for each in (*COMMANDS, "--eval-cache"))


class TestWordsAreNeverDropped:
  """What no flag takes is refused, or goes to Beam if Beam knows it."""

  @pytest.mark.parametrize(
    ("line", "said"),
    [
      ("train --cache a --cache b", "--cache is given twice"),
      ("train --cache=a --cache=b", "--cache is given twice"),
      ("train --balanced --balanced", "--balanced is given twice"),
      ("train --json --json", "--json is given twice"),
      ("extract a --out b --out c", "--out is given twice"),
      ("extract a -units o.csv --out c", "'-units' is not a flag of extract"),
      ("extract a --unit o.csv --out c", "did you mean --units?"),
      ("extract a --backbon b --out c", "did you mean --backbone?"),
      ("train --eps 1", "did you mean --epsilon?"),
      ("extract a --runer=R --out c", "is not a flag of extract; see"),
      ("train a", "'a' is one argument too many for train"),
      ("verify a b", "'b' is one argument too many for verify"),
      ("evaluate a b --cache c", "'b' is one argument too many"),
      ("extract a --out c --runner=x --runner=y", "--runner is given twice"),
      ("extract a --out c --flink_maste=x", "not a flag of extract"),
    ],
  )
  def test_a_word_too_many_is_one_line(self, capsys, line, said):
    assert said in fails_unchanged(capsys, line)

  def test_words_behind_flags_are_positional(self):
    words = ["a.parquet", "--backbone", "glyph_vit", "--out", "c", "b.parquet"]
    flags, _ = read_flags("extract", extract.Flags, words)
    assert flags.source == ("a.parquet", "b.parquet")

  def test_words_behind_two_dashes_are_positional(self):
    words = ["--out", "c", "--", "--out", "-a"]
    flags, _ = read_flags("extract", extract.Flags, words)
    assert flags.source == ("--out", "-a")

  def test_flags_of_beam_take_their_values_along(self):
    words = "--flink_master h:1 a --out c --runner=FlinkRunner --streaming b"
    flags, _ = read_flags("extract", extract.Flags, words.split())
    assert flags.source == ("a", "b")
    assert flags.beam_options == (
      *("--flink_master", "h:1"),
      *("--runner=FlinkRunner", "--streaming"),
    )


def fails_unchanged(capsys, line):
  """The error of a line whose flags may be given twice."""
  assert main(line.split()) == 2
  return one_line(capsys.readouterr().err)


@pytest.fixture
def acts(monkeypatch):
  """Makes `train` do something else."""

  def patch(run, **more):
    module = types.SimpleNamespace(Flags=train.Flags, run=run, **more)
    monkeypatch.setattr(program, "load_command", lambda name: module)

  return patch


class TestAnswers:
  def test_text_or_one_json_object_and_nothing_else(self, acts, capsys):
    def run(flags):
      print("a library's word")
      return Answer(text="done ε", facts={"e": float("inf")})

    acts(run)
    said = "a library's word\n"
    assert succeeds(capsys, *TRAIN) == ("done ε\n", said)
    assert succeeds(capsys, *TRAIN, "--json") == ('{"e": "inf"}\n', said)

  def test_faults_and_a_failure_come_with_an_answer(self, acts, capsys):
    failure = RunError("not so")
    acts(
      lambda _: Answer(text="a", facts={}, faults=("b\x1b",), failure=failure)
    )
    assert main(TRAIN) == 1
    said = capsys.readouterr()
    assert said.out == "a\n"
    assert said.err == "b\\x1b\noneshot-dp: error: not so\n"

  @pytest.mark.parametrize(
    ("error", "status", "said"),
    [
      (InputError("bad\nname \x1b[0m"), 2, "bad name \\x1b[0m"),
      (RunError("it failed"), 1, "it failed"),
      (FileNotFoundError(2, "No such file", "x"), 1, "x: FileNotFoundError"),
      (MemoryError(), 1, "the run ended: MemoryError"),
      (RuntimeError("can't start new thread"), 1, "the run ended"),
      (RuntimeError("Unable to initialize backend 'x'"), 1, "the run ended"),
      (KeyboardInterrupt(), 130, "interrupted; what was charged stays"),
      (KeyboardInterrupt("interrupted; my line"), 130, "interrupted; my line"),
    ],
  )
  def test_errors_are_one_line(self, acts, capsys, error, status, said):
    def run(flags):
      raise error

    acts(run)
    assert fails(capsys, *TRAIN, status=status).startswith(said)

  def test_an_answer_that_a_full_standard_output_refuses_is_on_the_other(
    self, acts, capsys, monkeypatch
  ):
    acts(lambda _: Answer(text="charged for", facts={}))

    with open("/dev/full", "w") as full:
      monkeypatch.setattr("sys.stdout", full)
      status = main(TRAIN)
      monkeypatch.undo()
      with contextlib.suppress(OSError):
        full.close()

    *before, _ = capsys.readouterr().err.splitlines()
    assert status == 1
    assert before == ["charged for"]

  def test_a_bug_keeps_its_traceback(self, acts):
    acts(lambda flags: {}["bug"])
    with pytest.raises(KeyError):
      main(TRAIN)


_TRAIN_IS = """
import ctypes, os, resource, signal, threading, types
from oneshot_dp.configs.errors import RunError
from oneshot_dp.pipeline.cli import program
from oneshot_dp.pipeline.commands import train

def stop(x=None):
  os.kill(os.getpid(), signal.SIGINT)
  return x

def in_a_callback(flags):
  import jax, numpy as np
  shape = jax.ShapeDtypeStruct((), np.float32)
  step = jax.jit(lambda x: jax.pure_callback(stop, shape, x))
  while True:
    try: step(np.float32(1)).block_until_ready()
    except Exception: pass

def in_c(flags):
  threading.Timer(0.5, stop).start()
  libc = ctypes.CDLL(None)
  while True: libc.poll(None, 0, 100000)  # without Python, as XLA waits

def at_a_crash(flags):
  # 3 is PR_GET_DUMPABLE: a pipe in core_pattern pays no attention to limits.
  dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
  limit = resource.getrlimit(resource.RLIMIT_CORE)[0]
  raise RunError(f"core {limit}, dumpable {dumpable}")

_, most = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
command = types.SimpleNamespace(Flags=train.Flags, run=RUN)
program.load_command = lambda name: command
"""

# A method that a class statement calls: Python makes a RuntimeError of what
# happens in it.
_STOPPED_IN_ITS_IMPORTS = """
import os, signal, sys
from oneshot_dp.__main__ import main

class Field:
  def __set_name__(self, owner, name):
    os.kill(os.getpid(), signal.{name})

class Finder:
  def find_spec(self, name, path, target=None):
    if name == "oneshot_dp.pipeline.cli.program":
      type("Imported", (), {{"field": Field()}})

signal.signal(signal.{name}, signal.SIG_DFL)
sys.meta_path.insert(0, Finder())
main()
"""


class TestProcess:
  """As a person starts it."""

  @pytest.mark.slow
  @pytest.mark.parametrize("run", ["in_a_callback", "in_c"])
  def test_ctrl_c_ends_it_wherever_it_is(self, run):
    process = start(TRAIN, first=_TRAIN_IS.replace("RUN", run))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert one_line(err).startswith("interrupted; what was charged")

  @pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
  def test_a_signal_to_stop_ends_as_ctrl_c_does(self, name):
    stopped = _TRAIN_IS.replace("RUN", "in_c").replace(
      "signal.SIGINT", f"signal.{name}"
    )
    # Under nohup the tests ignore SIGHUP, and so would what they start.
    heard = f"import signal\nsignal.signal(signal.{name}, signal.SIG_DFL)\n"
    process = start(TRAIN, first=heard + stopped)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert one_line(err).startswith("interrupted; what was charged")

  @pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
  def test_a_signal_while_the_command_is_imported_ends_it_in_one_line(
    self, name
  ):
    code = _STOPPED_IN_ITS_IMPORTS.format(name=name)
    ended = subprocess.run(
      [sys.executable, "-c", code, "--version"],
      env=os.environ | {"PYTHONPATH": str(ROOT)},
      capture_output=True,
      text=True,
      timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert one_line(ended.stderr) == "interrupted before anything was begun"

  @pytest.mark.slow
  def test_a_signal_that_is_ignored_stays_ignored(self, acts, capsys):
    def run(flags):
      os.kill(os.getpid(), signal.SIGHUP)
      return Answer(text="done", facts={})

    acts(run)
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
      assert succeeds(capsys, *TRAIN)[0] == "done\n"
    finally:
      signal.signal(signal.SIGHUP, handler)

  def test_a_crash_leaves_no_rows_on_the_disk(self):
    process = start(TRAIN, first=_TRAIN_IS.replace("RUN", "at_a_crash"))
    assert one_line(process.communicate(timeout=30)[1]) == "core 0, dumpable 0"

  def test_a_reader_that_has_gone(self):
    process = start(["--help"])
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 1

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ("environment", "said"),
    [
      ({"XLA_FLAGS": "--xla_no_such=1"}, "Unknown flag in XLA_FLAGS: --xla_no"),
      ({"JAX_ENABLE_X64": "perhaps"}, "ValueError: invalid truth value"),
    ],
  )
  def test_an_environment_that_jax_refuses(self, environment, said):
    process = start(TRAIN, **environment)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    line = one_line(err)
    assert line.startswith(f"JAX refuses the environment: {said}")
