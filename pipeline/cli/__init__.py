"""The command line: what is typed, and how a command ends.

`program` finds the command and prints its answer, `usage` reads flags and
writes help, `interrupts` ends a command that is stopped.
"""

from oneshot_dp.pipeline.cli.program import COMMANDS, main

__all__ = ["COMMANDS", "main"]
