"""No warning comes from our own code: `python -W error` stays silent.

The rest of the suite turns warnings into errors too, but in a process that has
imported everything already and has filters for the oracles.
"""

import json

import pytest

from tests.packaging.conftest import ends_well

# What TFDS 4.9.10 does whenever it opens a data set, with protobuf 6.33.
THEIRS = "ignore:label() is deprecated:DeprecationWarning"

# Every module, then every command of argv, in one process: they share the
# seconds that JAX, Beam and TFDS take to import.
RUN = """
import importlib, json, pkgutil, sys
import oneshot_dp
for module in pkgutil.walk_packages(oneshot_dp.__path__, "oneshot_dp."):
  importlib.import_module(module.name)
from oneshot_dp.pipeline.cli import main
for argv in json.loads(sys.argv[1]):
  try:
    status = main(argv)
  except SystemExit as end:
    status = end.code
  assert not status, argv
"""

COMMANDS = (
  "--help",
  "sweep --help",
  "extract job.py --split train --out images",
  "extract digits_random_patches --split test --out digits"
  " --source.data-dir data",
  "inspect images",
  "verify images",
  "import images.npz --split train[:80%] --out train",
  "import images.npz --split train[80%:] --out test",
  "train --cache train --epsilon 1 --delta 1e-5 --out head",
  "evaluate head --cache test",
  "sweep --cache train --eval-cache test --epsilons 1 --delta 1e-5 --out heads",
  "report heads",
  "budget --cache train",
)


@pytest.mark.slow
def test_modules_and_commands_warn_of_nothing(folder):
  commands = json.dumps([line.split() for line in COMMANDS])
  ends_well("-W", "error", "-W", THEIRS, "-c", RUN, commands, cwd=folder)
