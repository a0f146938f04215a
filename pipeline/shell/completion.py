"""A script that lets a shell complete commands, flags and choices.

It is one function of bash with the words in it, so that no Tab waits for
Python; zsh runs it too. Where nothing of ours fits, the shell offers files.
"""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from oneshot_dp.pipeline.shell.help import PROG
from oneshot_dp.pipeline.shell.parser import flags_of

_FUNCTION = "_oneshot_dp"
_FOR_ZSH = "autoload -U +X bashcompinit && bashcompinit"
_SCRIPT = """\
{function}() {{
  local words="" name="${{COMP_WORDS[1]}}" first=2
  local word="${{COMP_WORDS[COMP_CWORD]}}"
  local previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  if [[ "$name ${{COMP_WORDS[2]}}" == "budget set" && $COMP_CWORD -gt 2 ]]; then
    name="budget set" first=3
  fi
  if (( COMP_CWORD == 1 )); then
    words={commands}
  else
    case "$name $previous" in
{choices}
      *)
        if [[ $previous != -* || $word == -* ]]; then
          case "$name" in
{flags}
          esac
        fi
        if (( COMP_CWORD == first )); then
          case "$name" in
{first_words}
          esac
        fi
        ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F {function} {prog}"""


def completion_script(shell: str, commands: Mapping[str, Any]) -> str:
  """The script for bash or zsh.

  A command's module may have `first_words`: what may follow it.
  """
  choices, flags, first_words = [], [], []
  for name, command in commands.items():
    options = flags_of(command)
    flags.append(_case(12, name, "words", options))
    choices += [
      _case(6, f"{name} {option}", "words", allowed)
      for option, allowed in options.items()
      if allowed is not None
    ]
    more = [
      other.split()[1] for other in commands if other.startswith(f"{name} ")
    ]
    more += getattr(command, "first_words", list)()
    if more:
      first_words.append(_case(12, name, "words+", more))
  script = _SCRIPT.format(
    function=_FUNCTION,
    prog=PROG,
    commands=shlex.quote(" ".join(n for n in commands if " " not in n)),
    choices="\n".join(choices),
    flags="\n".join(flags),
    first_words="\n".join(first_words),
  )
  return f"{_FOR_ZSH}\n{script}" if shell == "zsh" else script


def _case(indent: int, pattern: str, target: str, words: Iterable[str]) -> str:
  value = shlex.quote(" " + " ".join(words))
  return f"{' ' * indent}{shlex.quote(pattern)}) {target}={value} ;;"
