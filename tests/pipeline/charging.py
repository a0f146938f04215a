"""Charges ledgers from several processes at once; run by ledger_test.

A script of its own, so that it can fork before JAX has any threads.
"""

import itertools
import multiprocessing
import pathlib
import sys

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger

WORKERS = 4
CHARGES = 10
DATASETS = ("pets", "capped")


def charge_many(directory: pathlib.Path, worker: int) -> None:
  plan = ReleasePlan(epsilons=(1.0,), delta=1e-5)
  ledgers = [Ledger(dataset, directory) for dataset in DATASETS]
  for ledger, i in itertools.product(ledgers, range(CHARGES)):
    try:
      ledger.charge(
        Charge.of_plan(plan, NoiseSource(), worker=worker, number=i)
      )
    except InputError as refusal:
      if "would break the cap" not in str(refusal):
        raise


def main(directory: pathlib.Path) -> int:
  fork = multiprocessing.get_context("fork")
  workers = [
    fork.Process(target=charge_many, args=(directory, i))
    for i in range(WORKERS)
  ]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join()
  return sum(worker.exitcode != 0 for worker in workers)


if __name__ == "__main__":
  sys.exit(main(pathlib.Path(sys.argv[1])))
