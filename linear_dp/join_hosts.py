"""How hosts find each other, and the last words of one that lost another."""

import atexit
import contextlib
import ctypes
import hashlib
import importlib.metadata
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, LostHostError, RunError
from oneshot_dp.linear_dp.hosts import ALONE, Hosts

_BY_HAND = re.compile(
  r"(?P<process_id>\d+)/(?P<num_processes>\d+)@(?P<coordinator_address>.+:\d+)"
)
_HEARTBEAT_SECONDS = 30
_LEAVE_SECONDS = 10
_ending = threading.Lock()
_last_words: list[RunError] = []
_kept: list[object] = []


def joined(text: str) -> Hosts:
  """Meets the others; see `Hosts.of`."""
  import jax
  from jax._src import distributed  # the client has no public name

  place = _place_of(text)
  if place.get("num_processes") == 1:
    return ALONE
  seconds = int(_number("ONESHOT_DP_JOIN_SECONDS") or 35)
  # Between CPUs; GPUs and TPUs have their own way.
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  not_met = RunError(
    f"--hosts {text}: the hosts did not meet within {seconds} s; start the same"
    " command on all at once, with an address of host 0 that it has and they"
    " can reach, or have them wait longer (ONESHOT_DP_JOIN_SECONDS)."
  )
  _say_one_line()
  _last_words[:] = [not_met]
  try:
    jax.distributed.initialize(
      **place,
      # Nowhere but at the address that was given for it.
      coordinator_bind_address=os.environ.get(
        "JAX_COORDINATOR_BIND_ADDRESS", place.get("coordinator_address")
      ),
      initialization_timeout=seconds,
      heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
      shutdown_timeout_seconds=_LEAVE_SECONDS,
    )
  except ValueError as e:  # auto has found nothing
    raise InputError(
      f"--hosts {text}: nothing says which host this is ({e}); say it, as"
      " INDEX/COUNT@HOST:PORT."
    ) from e
  except RuntimeError as e:
    raise not_met from e
  atexit.register(_leave)
  client = distributed.global_state.client
  hosts = Hosts(jax.process_index(), jax.process_count(), client)
  _last_words[:] = [
    RunError(
      f"--hosts {text}: the hosts met, but cannot add up: each machine's own"
      " name (`hostname`) must stand for an address that the others reach."
    )
  ]
  hosts.sum(lambda: np.zeros(1, np.int64))  # connects each to each
  _last_words[:] = [LostHostError()]
  hosts.agree("program", _program())
  return hosts


def lost() -> RunError:
  """What is raised for a lost host, after which JAX is not heard."""
  _claim_the_last_word()
  atexit.register(lambda: (sys.stdout.flush(), sys.stderr.flush(), os._exit(1)))
  return _last_words[0]


def _place_of(text: str) -> dict[str, Any]:
  """Which host this is of how many, and where host 0 is, as JAX takes it."""
  by_hand = _BY_HAND.fullmatch(text)
  if not by_hand and text != "auto":
    raise InputError(
      f"hosts={text!r} must be auto, or INDEX/COUNT@HOST:PORT, such as"
      " 0/4@10.0.0.1:1234 on the first of four."
    )
  place = (
    by_hand.groupdict()
    if by_hand
    else {
      "coordinator_address": os.environ.get("JAX_COORDINATOR_ADDRESS"),
      "num_processes": _number("JAX_NUM_PROCESSES"),
      "process_id": _number("JAX_PROCESS_ID"),
    }
  )
  found: dict[str, Any] = {k: v for k, v in place.items() if v}
  for name in found.keys() - {"coordinator_address"}:
    found[name] = int(found[name])
  if found.get("process_id", 0) >= found.get("num_processes", 2**31):
    raise InputError(
      f"hosts={text!r}: host {found['process_id']} is none of"
      f" {found['num_processes']}, which begin with 0."
    )
  if len(found) == len(place):
    found["cluster_detection_method"] = "deactivate"
  return found


def _number(name: str) -> str | None:
  said = os.environ.get(name)
  if said and not said.isdecimal():
    raise InputError(f"{name}={said!r} must be a number.")
  return said


def _program() -> str:
  """The code of this package, its libraries and the kind of device."""
  import jax

  import oneshot_dp

  # A checkout has links to its folders, which rglob does not follow.
  folders = os.walk(Path(oneshot_dp.__file__).parent, followlinks=True)
  code = sorted(
    hashlib.sha256(Path(folder, name).read_bytes()).hexdigest()
    for folder, _, names in folders
    for name in names
    if name.endswith(".py")
  )
  versions = map(importlib.metadata.version, ("jax", "jaxlib", "numpy"))
  return repr((*versions, jax.local_devices()[0].device_kind, code))


def _leave() -> None:
  """Waits until the others have come to their end, too."""
  import jax

  _last_words[:] = [
    LostHostError("another host was lost, or at work, when this one ended.")
  ]
  with contextlib.suppress(RuntimeError):
    jax.distributed.shutdown()


def _say_one_line() -> None:
  """From now on Python alone is heard, and abort() is one line and status 1.

  Once another host is lost, JAX ends a process so, with a stack trace.
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
    _claim_the_last_word()
    os.write(stderr, f"oneshot-dp: error: {_last_words[0]}\n".encode())
    os._exit(1)

  # (`signal.signal` would let abort() go on: its handlers run later.)
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
  libc.signal.restype = ctypes.c_void_p
  libc.signal(signal.SIGABRT, ctypes.cast(end, ctypes.c_void_p))
  _kept.append(end)


def _claim_the_last_word() -> None:
  """Returns to the first thread that ends the process; others wait for it."""
  if not _ending.acquire(blocking=False):
    while True:
      time.sleep(1)
