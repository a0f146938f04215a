"""`oneshot-dp completion`."""

import dataclasses
from typing import Literal, get_args

from tyro.conf import Positional

from oneshot_dp.pipeline.commands.registry import COMMANDS
from oneshot_dp.pipeline.shell.answer import Answer
from oneshot_dp.pipeline.shell.completion import completion_script

Shell = Literal["bash", "zsh"]
USES_JAX = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Print a script that lets a shell complete commands, flags and choices.

  For this shell only: source <(oneshot-dp completion bash). For good, write it
  where your shell looks for it: for bash that is
  ~/.local/share/bash-completion/completions/oneshot-dp; for zsh, source it in
  ~/.zshrc.

  Example: oneshot-dp completion bash
  """

  shell: Positional[Shell]
  """Which shell."""


def first_words() -> list[str]:
  """What may follow the command, to be completed."""
  return list(get_args(Shell))


def run(flags: Flags) -> Answer:
  """The script."""
  script = completion_script(flags.shell, COMMANDS)
  return Answer(text=script, facts={"shell": flags.shell, "script": script})
