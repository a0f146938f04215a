"""Processes that race for the last of a budget while they are being killed.

    python -m tests.faults.releases SECONDS

Each makes releases of random ε, charged to one ledger with a cap, until not
even the smallest is left, then goes on to the next ledger. It writes down, in a
file of its own, what has left the library; it is killed (SIGKILL) at a random
moment and replaced. Afterwards `check` is what every ledger must keep.

A script of its own, so that it can fork before JAX has any threads.
"""

import collections
import hashlib
import json
import math
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import time

import numpy as np
from dp_accounting import NeighboringRelation, get_epsilon_gaussian

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum
from oneshot_dp.linear_dp.one_step.release import (
  baseline_without_privacy,
  release,
)
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger

WORKERS = 6
EPSILONS = (0.5, 1.0, 2.0, 3.0)
DELTA = 1e-5
CAP = Cap(
  max_epsilon=8.0,
  max_delta=DELTA,
  neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
)


def ledger_of(place: pathlib.Path, number: int) -> Ledger:
  """The ledger of a round, in a folder of its own."""
  return Ledger("pets", place / "ledgers" / f"{number:05}")


def work(place: pathlib.Path, seed: int) -> None:
  """Releases until it is killed."""
  chance, number = random.Random(seed), len(list(place.glob("ledgers/*")))
  grid = ClippedGradientGrid(num_classes=3, feature_dim=40)
  sums = np.random.default_rng(0).integers(-(2**30), 2**30, (3, grid.row_dim))
  secret = SecretSum(grid=grid, num_examples=5000, secret_class_sums=sums)
  exact = baseline_without_privacy(
    secret, ReleasePlan(epsilons=EPSILONS, delta=DELTA)
  ).noisy_sum
  flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
  log = os.open(place / f"process-{seed}", flags, 0o600)
  entry = ""

  def charge(plan: ReleasePlan, source: NoiseSource) -> None:
    nonlocal entry
    (entry,) = ledger.charge(Charge.of_plan(plan, source))

  while True:
    ledger = ledger_of(place, number)
    # Whoever comes first sets it; the same cap again changes nothing.
    if not ledger.entries():
      ledger.set_cap(CAP)
    epsilon = chance.choice(EPSILONS)
    # One plan for all of an epsilon: a draw that is used again is the same.
    plan = ReleasePlan(epsilons=(epsilon, epsilon / 4), delta=DELTA)
    try:
      for r in release(secret, plan, NoiseSource(), charge=charge):
        # Row by row: not even a class may share its noise with another.
        noise = [
          hashlib.sha256(row.tobytes()).hexdigest()
          for row in r.noisy_sum - exact
        ]
        line = [number, entry, r.statement.epsilon, noise]
        os.write(log, json.dumps(line).encode() + b"\n")
    except InputError as error:
      if "would break the cap" not in str(error):
        raise
      os.write(log, b"refused\n")
      number += epsilon == EPSILONS[0]


def race(place: pathlib.Path, seconds: float) -> int:
  """Keeps the workers busy, and kills them; how many it killed."""
  fork, moments = multiprocessing.get_context("fork"), random.Random()
  workers: list[multiprocessing.process.BaseProcess] = []
  (place / "ledgers").mkdir()
  until, killed = time.monotonic() + seconds, 0
  while time.monotonic() < until:
    while len(workers) < WORKERS:
      seed = killed + len(workers)
      workers.append(fork.Process(target=work, args=(place, seed)))
      workers[-1].start()
    time.sleep(moments.uniform(0, 0.2))
    worker = workers.pop(moments.randrange(WORKERS))
    assert worker.is_alive(), "a worker failed by itself"
    worker.kill()
    worker.join()
    killed += 1
  for worker in workers:
    worker.kill()
    worker.join()
  return killed + len(workers)


def check(place: pathlib.Path, kills: int) -> str:
  """Every ledger has what was released, and keeps its cap; what there was."""
  lines = [
    line
    for path in place.glob("process-*")
    for line in path.read_text().splitlines(keepends=True)
    if line.endswith("\n")  # a torn last line let nothing out
  ]
  released = [json.loads(line) for line in lines if line != "refused\n"]
  heads = collections.defaultdict(list)
  for number, entry, epsilon, _ in released:
    heads[number, entry].append(epsilon)
  noise = [row for *_, rows in released for row in rows]
  assert len(set(noise)) == len(noise) == 3 * len(released), "noise is shared"
  charged, most = {}, 0.0
  for number in range(len(list(place.glob("ledgers/*")))):
    charges = [
      e for e in ledger_of(place, number).entries() if e["kind"] != "cap"
    ]
    charged |= {(number, e["entry"]): e["epsilons"] for e in charges}
    # By dp_accounting's own arithmetic.
    sigmas = [e["dp_event"]["noise_multiplier"] for e in charges]
    if sigmas:
      together = 1 / math.sqrt(math.fsum(sigma**-2 for sigma in sigmas))
      most = max(most, get_epsilon_gaussian(together, DELTA))
  assert most <= CAP.max_epsilon, "the cap is broken"
  for name, epsilons in heads.items():
    # A kill between two heads of a draw leaves the first.
    assert epsilons == charged[name][: len(epsilons)], "charged for another"
  # A kill costs one charge at most.
  assert len(charged) - len(heads) <= kills, "charges without a release"
  refused = len(lines) - len(released)
  return (
    f"{kills} kills of {WORKERS} processes: {len(charged)} charges for"
    f" {len(released)} heads, {refused} refused; at most epsilon {most:.4f} was"
    f" spent of {CAP.max_epsilon:g}"
  )


if __name__ == "__main__":
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    print(check(folder, race(folder, float(sys.argv[1]))))
