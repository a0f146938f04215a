"""Processes that charge a ledger and deliver heads; started by the tests.

python -m tests.faults.writers kills|race|deliveries LEDGER COUNT SEED

Without JAX, so that it can fork, and starts in a moment.
"""

import contextlib
import hashlib
import json
import os
import random
import secrets
import select
import signal
import sys
import time
from pathlib import Path

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.ledger.charges import Bill, Charge
from oneshot_dp.pipeline.ledger.deliver import deliver_once
from oneshot_dp.pipeline.ledger.ledger import Ledger

COST = 0.25


def bill(rows=2000):
  keys = {"image": np.arange(1, rows, dtype=np.uint64)}
  charges = (Charge("one release", COST, delta=1e-5),)
  return Bill(dataset="pets", charges=charges, keys=keys)


def forked(act, *words):
  """A process that does this, and the end of a pipe with what it prints."""
  reader, writer = os.pipe()
  if not (child := os.fork()):
    with contextlib.suppress(BaseException):
      os.close(reader)
      os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
      os.dup2(writer, 1)
      act(*words)
    os._exit(0)
  os.close(writer)
  return child, os.fdopen(reader)


def charge(ledger, name):
  """One charge after the other, until it is refused."""
  for i in range(1000):
    run = Path(f"/runs/{name}-{i}-{secrets.token_hex(4)}")
    try:
      (made,) = ledger.charge([bill(rows=2 + i)], run, {})
    except (InputError, RunError) as error:
      print(f"refused: {error}", flush=True)
      return
    print(made, flush=True)


def kills(ledger, count, seed):
  """Each says by a pipe what returned; it dies at its first charge or later."""
  draw = random.Random(seed)
  returned = []
  for i in range(count):
    child, said = forked(charge, ledger, f"{seed}-{i}")
    select.select([said] if i % 2 else [], [], [], 2 if i % 2 else 0)
    select.select([], [], [], draw.random() ** 2 * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with said:
      returned += said.read().split()
  print(json.dumps(returned))


def race(ledger, count, seed):
  """All at once, each until it is refused."""
  ledger.check(bill())  # imports what all of them need
  racers = [forked(charge, ledger, f"{seed}-{i}") for i in range(count)]
  said = [said.read().splitlines() for _, said in racers]
  print(json.dumps([line for lines in said for line in lines]))


def deliveries(ledger, count, seed):
  """Kills runs at random moments, and runs them again until they are shown."""
  draw, killed, longest = random.Random(seed), 0, 0.01
  for i in range(count):
    out, done = ledger.path.parent / "results" / f"run {i}", 0
    while not out.exists():
      child, said = forked(deliver, out, ledger)
      begun = time.monotonic()
      select.select([], [], [], draw.random() * 1.2 * longest)
      if done := os.waitpid(child, os.WNOHANG)[0]:
        longest = max(0.01, (longest + time.monotonic() - begun) / 2)
      else:
        killed += 1
        longest *= 1.05
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
      said.close()
    if not done:  # killed after it was shown: the same command clears up
      with contextlib.suppress(InputError):
        deliver(out, ledger)
  print(killed)


def deliver(out, ledger, heads=3):
  """Weights are random bytes, as noise is; receipts name their charge."""

  def train(folder, ids):
    for i in range(heads):
      place = folder / "heads" / str(i)
      place.mkdir(parents=True)
      weights = secrets.token_bytes(5000)
      (place / "head.safetensors").write_bytes(weights)
      sha256 = hashlib.sha256(weights).hexdigest()
      stated = {"charge": ids[0], "weights": sha256}
      (place / "receipt.json").write_text(json.dumps({"stated": stated}))
    (folder / "results.csv").write_text("head\n" * heads)

  deliver_once(
    out, ledger, [bill()], train, asked={"heads": heads}, room=1 << 16
  )


if __name__ == "__main__":
  what, path, *numbers = sys.argv[1:]
  globals()[what](Ledger(Path(path)), *map(int, numbers))
