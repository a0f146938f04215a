"""Releases from several processes, killed at random; run by a test beside it.

A script of its own, so that it can fork before JAX has any threads. A worker
writes down what it released, in a file of its own, when the release has left
the library; it is killed (SIGKILL) at a random moment and replaced, until there
are enough releases.
"""

import hashlib
import json
import multiprocessing
import os
import pathlib
import random
import sys
import time

import numpy as np

from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum
from oneshot_dp.linear_dp.one_step.release import (
  baseline_without_privacy,
  release,
)
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger

WORKERS, RELEASES, KILLS = 4, 100, 30
EPSILONS = (4.0, 1.0)
DELTA = 1e-5


def work(folder: pathlib.Path, seed: int) -> None:
  """Releases until it is killed."""
  grid = ClippedGradientGrid(num_classes=3, feature_dim=40)
  sums = np.random.default_rng(0).integers(-(2**30), 2**30, (3, grid.row_dim))
  secret = SecretSum(grid=grid, num_examples=5000, secret_class_sums=sums)
  # One plan for all: a draw that is used again is the same to the bit.
  plan = ReleasePlan(epsilons=EPSILONS, delta=DELTA)
  exact = baseline_without_privacy(secret, plan).noisy_sum
  ledger = Ledger("pets", folder / "ledgers")
  log = os.open(
    folder / f"released-{seed}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
  )
  entry = ""

  def charge(plan: ReleasePlan, source: NoiseSource) -> None:
    nonlocal entry
    (entry,) = ledger.charge(Charge.of_plan(plan, source))

  while True:
    for r in release(secret, plan, NoiseSource(), charge=charge):
      # Row by row: not even a class may share its noise with another.
      noise = [
        hashlib.sha256(row.tobytes()).hexdigest() for row in r.noisy_sum - exact
      ]
      line = {
        "entry": entry,
        "noise": noise,
        "epsilon": r.statement.epsilon,
        "noise_multiplier": r.statement.noise_multiplier,
      }
      os.write(log, json.dumps(line).encode() + b"\n")


def count(folder: pathlib.Path) -> int:
  """How many releases are written down."""
  return sum(p.read_bytes().count(b"\n") for p in folder.glob("released-*"))


def main(folder: pathlib.Path) -> int:
  """Keeps four workers busy, and kills them; prints how many it killed."""
  fork = multiprocessing.get_context("fork")
  moments = random.Random()
  killed = started = 0
  workers: list[multiprocessing.process.BaseProcess] = []
  deadline = time.monotonic() + 120
  while killed < KILLS or count(folder) < RELEASES * len(EPSILONS):
    assert time.monotonic() < deadline, "too slow"
    while len(workers) < WORKERS:
      worker = fork.Process(target=work, args=(folder, started))
      started += 1
      worker.start()
      workers.append(worker)
    time.sleep(moments.uniform(0, 0.1))
    if killed >= KILLS:
      continue
    worker = workers.pop(moments.randrange(WORKERS))
    assert worker.is_alive(), "a worker failed by itself"
    worker.kill()
    worker.join()
    killed += 1
  for worker in workers:
    worker.kill()
    worker.join()
  print(killed + WORKERS)
  return 0


if __name__ == "__main__":
  sys.exit(main(pathlib.Path(sys.argv[1])))
