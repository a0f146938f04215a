"""Eight processes race for the last of a budget; run by a test beside it.

    python -m tests.faults.ledger_race SECONDS

Each charges releases of random ε to one ledger with a cap until not even the
smallest is left, then goes on to the next ledger. A process writes down which
charges it was granted, as if it had released. Afterwards every one of them is
in its ledger and no other is, and their sum, by dp_accounting's own arithmetic,
keeps the cap. Prints what there was.
"""

import json
import math
import multiprocessing
import pathlib
import random
import sys
import tempfile
import time

from dp_accounting import NeighboringRelation, get_epsilon_gaussian

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger

PROCESSES = 8
EPSILONS = (0.5, 1.0, 2.0, 3.0)
DELTA = 1e-5
CAP = Cap(
  max_epsilon=8.0,
  max_delta=DELTA,
  neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
)


def ledger_of(place: pathlib.Path, number: int) -> Ledger:
  """The ledger of a round, in a folder of its own."""
  return Ledger("pets", place / f"{number:05}")


def race(place: pathlib.Path, seed: int, until: float) -> None:
  """One process."""
  chance, number, granted, refused = random.Random(seed), 0, [], 0
  while time.monotonic() < until:
    ledger = ledger_of(place, number)
    # Whoever comes first sets it; the same cap again changes nothing.
    if not ledger.entries():
      ledger.set_cap(CAP)
    epsilon = chance.choice(EPSILONS)
    plan = ReleasePlan(epsilons=(epsilon,), delta=DELTA)
    try:
      (entry,) = ledger.charge(Charge.of_plan(plan, NoiseSource()))
      granted.append([number, entry])
    except InputError as error:
      if "would break the cap" not in str(error):
        raise
      refused += 1
      number += epsilon == EPSILONS[0]
  report = {"granted": granted, "refused": refused}
  (place / f"process-{seed}").write_text(json.dumps(report))


def main(seconds: float) -> int:
  """Starts them, and checks what they leave."""
  fork = multiprocessing.get_context("fork")
  with tempfile.TemporaryDirectory() as name:
    place = pathlib.Path(name)
    until = time.monotonic() + seconds
    processes = [
      fork.Process(target=race, args=(place, seed, until))
      for seed in range(PROCESSES)
    ]
    for process in processes:
      process.start()
    for process in processes:
      process.join(seconds + 60)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    reports = [json.loads(p.read_text()) for p in place.glob("process-*")]
    granted = {tuple(g) for report in reports for g in report["granted"]}
    assert len(granted) == sum(len(report["granted"]) for report in reports)
    most, rounds, found = 0.0, 1 + max(number for number, _ in granted), set()
    for number in range(rounds):
      entries = ledger_of(place, number).entries()
      charges = [e for e in entries if e["kind"] != "cap"]
      found |= {(number, e["entry"]) for e in charges}
      sigmas = [e["dp_event"]["noise_multiplier"] for e in charges]
      together = 1 / math.sqrt(math.fsum(sigma**-2 for sigma in sigmas))
      spent = get_epsilon_gaussian(together, DELTA)
      assert spent <= CAP.max_epsilon, (number, spent)
      most = max(most, spent)
    assert found == granted, "a charge is lost, or was never granted"
    refused = sum(report["refused"] for report in reports)
    print(
      f"{PROCESSES} processes, {rounds} ledgers with a cap of 8: {len(granted)}"
      f" charges, {refused} refused; at most epsilon {most:.4f} was spent"
    )
  return 0


if __name__ == "__main__":
  sys.exit(main(float(sys.argv[1])))
