"""What all commands share."""

import os
import subprocess
import sys
import types

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.cli import COMMANDS, main, program
from oneshot_dp.pipeline.commands import train
from tests.pipeline.command_line import fails, one_line, start, succeeds

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
    assert not (heavy | {"numpy", "tyro"}) & {*at_first.split()}
    assert len(helps) == len(COMMANDS)
    for shown in helps:
      assert "--json" in shown
      assert len(shown.splitlines()) <= 100
    assert not (heavy | {"pyarrow"}) & {*modules.split()}

  def test_completion_knows_commands_and_flags(self):
    said = run_python("-m", "oneshot_dp", "--print-completion", "bash")
    assert all(each in said for each in (*COMMANDS, "--eval-cache"))


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
  raise RunError(f"core {resource.getrlimit(resource.RLIMIT_CORE)[0]}")

_, most = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
command = types.SimpleNamespace(Flags=train.Flags, run=RUN)
program.load_command = lambda name: command
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

  def test_a_crash_leaves_no_rows_on_the_disk(self):
    process = start(TRAIN, first=_TRAIN_IS.replace("RUN", "at_a_crash"))
    assert one_line(process.communicate(timeout=30)[1]) == "core 0"

  def test_a_reader_that_has_gone(self):
    process = start(["--help"])
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 1

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
