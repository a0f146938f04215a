"""`python -m oneshot_dp`: the command `oneshot-dp`."""

import sys

from oneshot_dp.pipeline.cli import main

sys.exit(main())
