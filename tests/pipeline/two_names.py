"""Two processes charge the same rows under two names; run by ledger_test.

A script of its own, so that it can fork before JAX has any threads.
"""

import multiprocessing
import multiprocessing.synchronize
import pathlib
import sys

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.row_sketch import RowSketch

ROUNDS = 40
NAMES = ("pets", "cats")


def charge(
  folder: pathlib.Path, name: str, both: multiprocessing.synchronize.Barrier
) -> None:
  plan = ReleasePlan(epsilons=(1.0,), delta=1e-5)
  rows = RowSketch.of(np.arange(1, 101, dtype=np.uint64))
  cost = Charge.of_plan(plan, NoiseSource(), rows=rows, private_digest="ab")
  for number in range(ROUNDS):
    ledger = Ledger(name, folder / str(number))
    both.wait()
    try:
      ledger.charge(cost)
    except InputError as refusal:
      if "were charged to" not in str(refusal):
        raise


def main(folder: pathlib.Path) -> int:
  fork = multiprocessing.get_context("fork")
  both = fork.Barrier(len(NAMES))
  workers = [
    fork.Process(target=charge, args=(folder, name, both)) for name in NAMES
  ]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join()
  return sum(worker.exitcode != 0 for worker in workers)


if __name__ == "__main__":
  sys.exit(main(pathlib.Path(sys.argv[1])))
