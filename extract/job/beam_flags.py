"""Tells the flags of the installed Beam from other words of a command line.

Beam itself drops what it does not know, with a warning in a log: a mistyped
flag of ours would be lost, and a job would not be the one that was asked for.
"""

import argparse
from collections.abc import Sequence

from apache_beam.options.pipeline_options import (
  PipelineOptions,
  _BeamArgumentParser,
)

from oneshot_dp.configs.errors import InputError

_STORE_ONE_VALUE = argparse._StoreAction


def split_beam_flags(
  words: Sequence[str],
) -> tuple[tuple[str, ...], list[str]]:
  """Splits words into Beam's flags, with their values, and all others.

  Args:
    words: what no flag of ours has taken, in order.

  Returns:
    Beam's flags with their values, and the other words.

  Raises:
    InputError: a flag of Beam that takes one value is given twice, or has none.
  """
  # Beam's flags are asked of Beam, as the runners that are installed add
  # theirs.
  actions = _beam_actions()
  taken: list[str] = []
  others: list[str] = []
  seen: set[str] = set()
  remaining = list(words)
  while remaining:
    word = remaining.pop(0)
    name, equals, _ = word.partition("=")
    action = actions.get(name)
    if action is None or not word.startswith("--"):
      others.append(word)
      continue
    taken.append(word)
    # Flags that collect values (--experiments) may be given several times.
    if name in seen and type(action) is _STORE_ONE_VALUE:
      raise InputError(f"{name} is given twice: which one is meant?")
    seen.add(name)
    if equals or action.nargs == 0:
      continue
    # Beam's other flags take the one word that follows.
    if not remaining or remaining[0].startswith("--"):
      raise InputError(f"{name}, a flag of Beam, needs a value: {name}=…")
    taken.append(remaining.pop(0))
  return tuple(taken), others


def _beam_actions() -> dict[str, argparse.Action]:
  """Beam's flags, of all runners that this installation has."""
  parser = _BeamArgumentParser(
    add_help=False, allow_abbrev=False, conflict_handler="resolve"
  )
  for options in _subclasses(PipelineOptions):
    # This is how options of Beam, and of its users, declare their flags.
    options._add_argparse_args(parser)
  return dict(parser._option_string_actions)


def _subclasses(kind: type[PipelineOptions]) -> list[type[PipelineOptions]]:
  subclasses = []
  for subclass in kind.__subclasses__():
    subclasses.append(subclass)
    subclasses.extend(_subclasses(subclass))
  return subclasses
