"""The command `oneshot-dp`, also as `python -m oneshot_dp`."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command; see `oneshot_dp.pipeline.cli.program`.

  Ctrl-C while the command line itself is imported ends in one line as well.
  """
  try:
    from oneshot_dp.pipeline import cli

    return cli.main(argv)
  except KeyboardInterrupt:
    print("oneshot-dp: error: interrupted", file=sys.stderr, flush=True)
    return 130


if __name__ == "__main__":
  sys.exit(main())
