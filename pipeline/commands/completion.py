"""A script that lets a shell complete commands, flags and choices.

It is one function of bash with the words in it, so that no Tab waits for
Python; zsh runs it too. Where nothing of ours fits, the shell offers files.
"""

import shlex
from collections.abc import Iterable
from typing import get_args, get_type_hints

from oneshot_dp.configs.registry import experiment_names
from oneshot_dp.pipeline.commands.arguments import COMMANDS, Completion
from oneshot_dp.pipeline.shell.answer import Answer
from oneshot_dp.pipeline.shell.parser import PROG, flags_of

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


def completion(shell: str) -> Answer:
  """The script for bash or zsh."""
  script = _script()
  if shell == "zsh":
    script = f"{_FOR_ZSH}\n{script}"
  return Answer(text=script, facts={"shell": shell, "script": script})


def _script() -> str:
  choices, flags = [], []
  for name in COMMANDS:
    options = flags_of(name)
    flags.append(_case(12, name, "words", options))
    choices += [
      _case(6, f"{name} {option}", "words", allowed)
      for option, allowed in options.items()
      if allowed is not None
    ]
  shells = get_args(get_type_hints(Completion)["shell"])
  first_words = [
    _case(12, "extract", "words+", experiment_names()),
    _case(12, "budget", "words+", ["set"]),
    _case(12, "completion", "words+", shells),
  ]
  return _SCRIPT.format(
    function=_FUNCTION,
    prog=PROG,
    commands=shlex.quote(" ".join(n for n in COMMANDS if " " not in n)),
    choices="\n".join(choices),
    flags="\n".join(flags),
    first_words="\n".join(first_words),
  )


def _case(indent: int, pattern: str, target: str, words: Iterable[str]) -> str:
  value = shlex.quote(" " + " ".join(words))
  return f"{' ' * indent}{shlex.quote(pattern)}) {target}={value} ;;"
