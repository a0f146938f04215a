"""The script is run by the shell that it is for."""

import contextlib
import io
import json
import shutil
import subprocess
from typing import get_args

import pytest

from oneshot_dp.configs.head_config import (
  AblationAxis,
  MethodName,
  RelationName,
)
from oneshot_dp.configs.registry import experiment_names
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.registry import COMMANDS
from oneshot_dp.pipeline.shell.completion import completion_script
from oneshot_dp.pipeline.shell.parser import flags_of

# What bash does at Tab: the words of the line, the last one unfinished.
_TAB = """
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
COMPREPLY=()
_oneshot_dp
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script() -> str:
  with contextlib.redirect_stdout(io.StringIO()) as said:
    assert main(["completion", "bash", "--json"]) == 0
  return json.loads(said.getvalue())["script"]


@pytest.fixture(scope="module")
def tab(script):
  def complete(*words: str) -> list[str]:
    process = subprocess.run(
      ["bash", "-c", f"{script}\n{_TAB}", "bash", "oneshot-dp", *words],
      capture_output=True,
      text=True,
      check=True,
      timeout=30,
    )
    assert process.stderr == ""
    return process.stdout.split()

  return complete


def test_commands_and_first_words(tab):
  assert set(tab("")) == {name.split()[0] for name in COMMANDS}
  assert tab("sw") == ["sweep"]
  assert tab("budget", "s") == ["set"]
  assert tab("completion", "z") == ["zsh"]
  assert tab("extract", "digits_r") == ["digits_random_patches"]
  flags = flags_of(COMMANDS["extract"])
  assert tab("extract", "") == [*flags, *experiment_names()]


@pytest.mark.parametrize("name", ["inspect", "budget set", "extract"])
def test_flags(tab, name):
  found = set(tab(*name.split(), "--"))
  assert found == set(flags_of(COMMANDS[name]))
  if name == "extract":  # of every kind of source
    of_sources = {"--source.path", "--source.root", "--source.data-dir"}
    assert of_sources | {"--backbone.name"} <= found


@pytest.mark.parametrize(
  ("words", "choices"),
  [
    (("train", "--head"), (*get_args(MethodName), "auto")),
    (("ablate", "--axes"), get_args(AblationAxis)),
    (("budget", "set", "--neighboring-relation"), get_args(RelationName)),
    (("extract", "x.py", "--on-decode-error"), ("fail", "skip")),
  ],
)
def test_choices(tab, words, choices):
  assert tuple(tab(*words, "")) == choices


def test_files_where_nothing_of_ours_fits(script, tab):
  assert "complete -o default -F _oneshot_dp oneshot-dp" in script
  assert tab("train", "--cache", "") == []
  assert tab("inspect", "caches/") == []
  assert "--json" in tab("train", "--cache", "--j")


@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh here")
def test_zsh_takes_it():
  script = completion_script("zsh", COMMANDS)
  words = ["zsh", "-fc", f"autoload -U compinit; compinit -u\n{script}"]
  subprocess.run(words, check=True, timeout=30)
