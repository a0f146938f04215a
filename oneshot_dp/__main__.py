"""The command `oneshot-dp`, also as `python -m oneshot_dp`."""

import sys
from collections.abc import Sequence

from oneshot_dp.configs.stop_signals import exit_on_stop_signals


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command; see `oneshot_dp.pipeline.cli.program`.

  Ctrl-C, SIGTERM and SIGHUP end it in one line while the command line itself is
  imported, too. (What comes before is Python's own start.)
  """
  if argv is None:  # the process ends with this command
    exit_on_stop_signals()
  from oneshot_dp.pipeline import cli

  return cli.main(argv)


if __name__ == "__main__":
  sys.exit(main())
