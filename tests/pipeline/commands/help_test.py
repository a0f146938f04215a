"""What is said without doing anything: quickly, and with examples that work."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.registry import COMMANDS
from oneshot_dp.pipeline.shell.help import overview
from oneshot_dp.pipeline.shell.parser import flags_of, parse
from tests.pipeline.command_line import ROOT

SLOW_TO_IMPORT = {
  "apache_beam",
  "dp_accounting",
  "flax",
  "jax",
  "matplotlib",
  "optax",
  "scipy",
  "tensorflow_datasets",
}
QUICK = [
  "",
  "--help",
  "sweep --help",
  "extract --help",
  "extract cifar10_vit_ti16 --help",
  "train --epsilno 1",
  "trian",
  "completion bash",
]
_SAYS_WHAT_THEY_IMPORT = """
import sys
from oneshot_dp.pipeline.cli import main
for line in sys.argv[1:]:
  try:
    main(line.split())
  except SystemExit:
    pass
  top = {name.partition(".")[0] for name in sys.modules}
  print("imported:", *sorted(top), file=sys.stderr)
"""


def test_nothing_slow_is_imported():
  process = subprocess.run(
    [sys.executable, "-c", _SAYS_WHAT_THEY_IMPORT, *QUICK],
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=60,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
  )
  _, *imported = process.stderr.split("imported:")
  for line, found in zip(QUICK, imported, strict=True):
    modules = set(found.partition("\n")[0].split())
    assert "tyro" in modules
    assert not SLOW_TO_IMPORT & modules, line


def examples() -> list[str]:
  """Every example of every command, as it stands in the docstring."""
  return [
    " ".join(found.split())
    for command in COMMANDS.values()
    for found in re.findall(
      r"Example: (oneshot-dp .*?)(?:\n\s*\n|\Z)",
      command.Flags.__doc__ or "",
      re.DOTALL,
    )
  ]


@pytest.mark.parametrize("example", examples())
def test_every_example_is_understood(example):
  program, *words = shlex.split(example)
  assert program == "oneshot-dp"
  name = max(
    (n for n in COMMANDS if f"{example} ".startswith(f"oneshot-dp {n} ")),
    key=len,
  )
  assert parse(words, COMMANDS).command is COMMANDS[name]


def shown(capsys, *words: str) -> str:
  with pytest.raises(SystemExit) as stop:
    main(words)
  assert not stop.value.code
  return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_and_says_how_to_be_quiet(capsys, name):
  text = " ".join(shown(capsys, *name.split(), "--help").split())
  assert f"usage: oneshot-dp {name} " in text
  assert f"Example: oneshot-dp {name}" in text
  for flag in ("--json", "--quiet", "--help"):
    assert f" {flag} " in text
  assert "None}" not in text


@pytest.mark.parametrize("name", ["train", "extract"])
def test_advanced_flags_are_folded(capsys, monkeypatch, name):
  monkeypatch.setenv("COLUMNS", "80")
  short, whole = shown(capsys, name, "-h"), shown(capsys, name, "--help-all")
  said = re.search(r"^(\d+) flags more, for experts: oneshot-dp", short, re.M)
  assert said
  few, all_ = (
    set(re.findall(r"^  (?:-h, )?(--[\w.-]+)", text, re.M))
    for text in (short, whole)
  )
  assert "--out" in few < all_ <= set(flags_of(COMMANDS[name]))
  assert len(all_) - len(few) == int(said[1])
  for line in (*short.splitlines(), *whole.splitlines()):
    assert len(line) <= 80 or line.startswith("Example: ")


def test_the_overview_has_a_line_for_each_command(monkeypatch, capsys):
  monkeypatch.setenv("COLUMNS", "80")
  for words in (["-h"], [], ["help"]):
    assert shown(capsys, *words) == f"{overview(COMMANDS)}\n"
  assert shown(capsys, "help", "train") == shown(capsys, "train", "--help")
  lines = overview(COMMANDS).splitlines()
  assert max(map(len, lines)) <= 80
  for name in COMMANDS:
    assert sum(line.startswith(f"  {name}  ") for line in lines) == 1


@pytest.mark.parametrize("name", ["extract", "sweep", "budget set", "demo"])
def test_complaints_are_short(name):
  """Not a page of help in one line, nor a guess at what is like nothing."""
  with pytest.raises(InputError) as error:
    parse([*name.split(), "--zzz", "2"], COMMANDS)
  assert len(str(error.value)) < 300
  assert "did you mean" not in str(error.value)
