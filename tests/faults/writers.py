"""Processes that charge a ledger and deliver heads, to be killed.

Without JAX, so that a server of forks starts each in a moment.
"""

import contextlib
import hashlib
import json
import multiprocessing
import os
import secrets
from fractions import Fraction
from pathlib import Path

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import places
from oneshot_dp.pipeline.ledger.delivery import Delivery
from oneshot_dp.pipeline.ledger.entries import Cap, ChargeRequest, LedgerEntry
from oneshot_dp.pipeline.ledger.ledger import Ledger

COST = 0.25
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


def started(act, *words):
  """A process that does this, and the end of a pipe with what it sends."""
  reader, writer = FORKS.Pipe(duplex=False)
  process = FORKS.Process(target=act, args=(writer, *words))
  process.start()
  writer.close()
  return process, reader


def received(reader):
  """All that comes out of a pipe, until the process has ended."""
  with reader, contextlib.suppress(EOFError):
    while True:
      yield reader.recv()


def bill(rows=2000):
  keys = {"image": np.arange(1, rows, dtype=np.uint64)}
  charge = LedgerEntry(
    kind="charge", mu_squared=str(Fraction(COST)), unit="example", delta=1e-5
  )
  return ChargeRequest(dataset="pets", charges=(charge,), keys=keys)


def charge(pipe, path, name, others=None):
  """One charge after the other, until it is refused; with others at once."""
  ledger = Ledger(path)
  if others:
    ledger.set_cap("others", Cap(1.0, 1e-5))  # imports what is needed
    others.wait()
  for i in range(1000):
    run = Path(f"/runs/{name}-{i}-{secrets.token_hex(4)}")
    try:
      (made,) = ledger.charge([bill(rows=2 + i)], run, {})
    except (InputError, RunError) as error:
      pipe.send(f"refused: {error}")
      return
    pipe.send(made)


def deliver(_, path, out, heads=3):
  """Weights are random bytes, as noise is; receipts name their charge."""
  delivery = Delivery(
    out, Ledger(path), [bill()], identity={"heads": heads}, room=1 << 16
  )
  with delivery:
    delivery.open()
    if not delivery.already_done:
      write_random_heads(delivery.folder, delivery.charge_ids[0], heads)
    delivery.commit()


def deliver_to_bucket(_, path, url, environment):
  """The same, with the store and its credentials in the environment."""
  # A server of forks has the environment of when it was started.
  os.environ.update(environment)
  # Another process that has the place is no fault here.
  with contextlib.suppress(InputError):
    deliver(None, path, places.Url(url))


def write_random_heads(folder, charge_id, heads):
  for i in range(heads):
    place = folder / "heads" / str(i)
    place.mkdir(parents=True)
    weights = secrets.token_bytes(5000)
    (place / "head.safetensors").write_bytes(weights)
    sha256 = hashlib.sha256(weights).hexdigest()
    stated = {"charge": charge_id, "weights": sha256}
    (place / "receipt.json").write_text(json.dumps({"stated": stated}))
  rows = ["head"] * heads
  (folder / "results.csv").write_text("\n".join(rows))
