"""One of several hosts on the command line: which it is, and its last words.

Once another host is lost, JAX ends a process by abort(), with a stack trace;
here it is one line.
"""

import ctypes
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from oneshot_dp.configs.errors import InputError, LostHostError, RunError

_PROG = "oneshot-dp"
_BY_HAND = re.compile(
  r"(?P<process_id>\d+)/(?P<num_processes>\d+)@(?P<coordinator_address>.+:\d+)"
)
_ending = threading.Lock()
_kept: list[object] = []
_last_words: list[RunError] = [LostHostError()]


def place_of(asked: str) -> dict[str, Any]:
  """Which host this is of how many, and where host 0 is, as JAX takes it."""
  by_hand = _BY_HAND.fullmatch(asked)
  if not by_hand and asked != "auto":
    raise InputError(
      f"hosts={asked!r} must be auto, or INDEX/COUNT@HOST:PORT, such as"
      " 0/4@10.0.0.1:1234 on the first of four."
    )
  names = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
  }
  said = by_hand or {k: os.environ.get(v) for k, v in names.items()}
  found: dict[str, Any] = {name: said[name] for name in names if said[name]}
  for name in found.keys() - {"coordinator_address"}:
    if not found[name].isdecimal():
      raise InputError(f"{names[name]}={found[name]!r} must be a number.")
    found[name] = int(found[name])
  if found.get("process_id", 0) >= found.get("num_processes", math.inf):
    raise InputError(
      f"hosts={asked!r}: host {found['process_id']} is none of"
      f" {found['num_processes']}, which begin with 0."
    )
  if len(found) == len(names):
    found["cluster_detection_method"] = "deactivate"
  return found


def address_to_bind(place: Mapping[str, Any]) -> str | None:
  """Where host 0 listens: nowhere but at its address, if it knows that.

  None is JAX's way: on all interfaces, or as JAX_COORDINATOR_BIND_ADDRESS says.
  """
  address = place.get("coordinator_address")
  if address is None or "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
    return None
  host = address.rpartition(":")[0].strip("[]")
  try:
    family, *_, own = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as tried:
      tried.bind(own)
  except OSError:  # it stands for another machine's, such as a router's
    return None
  return address


def say_one_line() -> None:
  """From now on Python alone is heard, and abort() is one line and status 1.

  To be called before anything else holds `sys.stdout` or `sys.stderr`.
  """
  nothing = os.open(os.devnull, os.O_WRONLY)
  for name in ("stdout", "stderr"):
    stream = getattr(sys, name)
    stream.flush()
    said = os.dup(stream.fileno())
    os.dup2(nothing, stream.fileno())
    own = os.fdopen(said, "w", 1, stream.encoding, stream.errors)
    setattr(sys, name, own)
  stderr = sys.stderr.fileno()

  @ctypes.CFUNCTYPE(None, ctypes.c_int)
  def end(_: int) -> None:
    claim_the_last_word()
    os.write(stderr, f"{_PROG}: error: {_last_words[0]}\n".encode())
    os._exit(1)

  # (`signal.signal` would let abort() go on: its handlers run later.)
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
  libc.signal.restype = ctypes.c_void_p
  libc.signal(signal.SIGABRT, ctypes.cast(end, ctypes.c_void_p))
  _kept.append(end)


def set_last_words(error: RunError) -> None:
  """What abort() says from now on."""
  _last_words[0] = error


def claim_the_last_word() -> None:
  """Returns to the first thread that ends the process; others wait for it."""
  if not _ending.acquire(blocking=False):
    while True:
      time.sleep(1)
