"""Processes that charge a ledger and deliver heads; started by the tests.

python writers.py kills LEDGER COUNT SEED    forks writers and kills each at a
                                             random moment; prints what returned
python writers.py race LEDGER COUNT          forks writers that charge until
                                             they are refused
python writers.py deliveries FOLDER LEDGER COUNT SEED
                                             forks runs, kills each at random
                                             moments until it has delivered

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
KEYS = {"image": np.arange(1, 2000, dtype=np.uint64)}


def bill(cost=COST, keys=None):
  charges = (Charge("one release", cost, delta=1e-5),)
  return Bill(
    dataset="pets", charges=charges, keys=KEYS if keys is None else keys
  )


def charge(ledger, name, count):
  for i in range(count):
    keys = {"image": np.arange(1, 2 + i, dtype=np.uint64)}
    run = Path(f"/runs/{name}-{i}-{secrets.token_hex(4)}")
    try:
      (made,) = ledger.charge([bill(keys=keys)], run, {})
    except (InputError, RunError) as error:
      print(f"refused: {error}", flush=True)
      return
    print(made, flush=True)


def forked(ledger, name):
  """A writer; what it says goes into a pipe, whose end is returned."""
  reader, writer = os.pipe()
  if not (child := os.fork()):
    with contextlib.suppress(BaseException):
      os.close(reader)
      os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
      os.dup2(writer, 1)
      charge(ledger, name, 1000)
    os._exit(0)
  os.close(writer)
  return child, reader


def kills(ledger, count, seed):
  """Each says by a pipe what returned; it dies at its first charge or later."""
  draw = random.Random(seed)
  returned = []
  for i in range(count):
    child, reader = forked(ledger, f"{seed}-{i}")
    select.select([reader] if i % 2 else [], [], [], 2 if i % 2 else 0)
    select.select([], [], [], draw.random() ** 2 * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
      returned += said.read().split()
  print(json.dumps(returned))


def race(ledger, count):
  """All at once, each until it is refused."""
  ledger.check(bill())  # imports what all of them need
  readers = [forked(ledger, f"racer {i}")[1] for i in range(count)]
  said = [os.fdopen(reader).read().splitlines() for reader in readers]
  print(json.dumps([line for lines in said for line in lines]))


def deliveries(folder, ledger, count, seed):
  """Kills runs at random moments, and runs them again until they are shown."""
  draw, killed, longest = random.Random(seed), 0, 0.01
  for i in range(count):
    out, done = folder / f"run {i}", 0
    while not out.exists():
      if not (child := os.fork()):
        with contextlib.suppress(BaseException):
          os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
          os.dup2(1, 2)
          deliver(out, ledger, 3)
        os._exit(0)
      begun = time.monotonic()
      select.select([], [], [], draw.random() * 1.2 * longest)
      if done := os.waitpid(child, os.WNOHANG)[0]:
        longest = max(0.01, (longest + time.monotonic() - begun) / 2)
      else:
        killed += 1
        longest *= 1.05
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not done:  # killed after it was shown: the same command clears up
      with contextlib.suppress(InputError):
        deliver(out, ledger, 3)
  print(killed)


def deliver(out, ledger, heads):
  """Weights are random bytes, as noise is; receipts name their charge."""

  def train(folder, ids):
    for i in range(heads):
      place = folder / "heads" / str(i)
      place.mkdir(parents=True)
      weights = secrets.token_bytes(5000)
      (place / "head.safetensors").write_bytes(weights)
      stated = {
        "charge": ids[0],
        "weights": hashlib.sha256(weights).hexdigest(),
      }
      (place / "receipt.json").write_text(json.dumps({"stated": stated}))
    (folder / "results.csv").write_text("head\n" * heads)

  deliver_once(
    out, ledger, [bill()], train, asked={"heads": heads}, room=1 << 16
  )


def main(what, *words):
  try:
    match what:
      case "kills":
        kills(Ledger(Path(words[0])), int(words[1]), int(words[2]))
      case "race":
        race(Ledger(Path(words[0])), int(words[1]))
      case "deliveries":
        where = Path(words[0]), Ledger(Path(words[1]))
        deliveries(*where, int(words[2]), int(words[3]))
  except (InputError, RunError) as error:
    print(error, file=sys.stderr)
    sys.exit(2 if isinstance(error, InputError) else 1)


if __name__ == "__main__":
  main(*sys.argv[1:])
