"""`python -m oneshot_dp`: the command `oneshot-dp`."""

import sys

from oneshot_dp.pipeline.cli import main

if __name__ == "__main__":
  sys.exit(main())
