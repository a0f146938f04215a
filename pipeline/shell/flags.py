"""Which flags a command has, as its help lists them."""

import re

_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
_LISTED = re.compile(
  r"[│| ] (?P<flags>(?:-\w, )?--[A-Za-z][\w.-]*(?:, --[\w.-]+)*)"
  r"(?: \[?\{(?P<allowed>[\w,-]+)\}(?= |$))?"
)
"""A line in one of tyro's frames, which may be of spaces: the names of a flag,
and the words that may follow it."""


def flags_in(help_text: str) -> dict[str, list[str] | None]:
  """Flag → the words that may follow it; None where that is not a choice."""
  found: dict[str, list[str] | None] = {}
  for line in help_text.splitlines():
    if listed := _LISTED.match(line):
      allowed = listed["allowed"]
      for flag in _FLAG.findall(listed["flags"]):
        found[flag] = allowed.split(",") if allowed else None
  return found
