"""Hosts that run the same program, each over its own part of the rows.

Sums are added up exactly; host 0 alone draws noise, charges, prints and writes.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import hashlib
import importlib.metadata
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Int64

import oneshot_dp
from oneshot_dp.configs.errors import InputError, RunError

_BY_HAND = re.compile(
  r"(?P<process_id>\d+)/(?P<num_processes>\d+)@(?P<coordinator_address>.+:\d+)"
)
_HEARTBEAT_SECONDS, _LEAVE_SECONDS, _PATIENCE_MS = 30, 10, 10**9
_AT_ONCE = 2**19  # numbers: 4 MiB from each host to each
_ending = threading.Lock()  # of the first thread that ends the process
_last_words: list[RunError] = []
_told: list[Exception] = []  # errors that every host heard of
_kept: list[object] = []


@dataclasses.dataclass(frozen=True, eq=False)
class Hosts:
  """This host, `index` of `count`; `client` is JAX's, of where hosts meet."""

  index: int = 0
  count: int = 1
  client: Any = dataclasses.field(default=None, repr=False)
  _turn: list[int] = dataclasses.field(default_factory=lambda: [0], repr=False)

  @classmethod
  def of(cls, text: str | None) -> "Hosts":
    """Joins the hosts of `auto` or `INDEX/COUNT@HOST:PORT`; None is alone.

    Before JAX computes anything. From then on a host that is lost or frozen
    ends this process within a minute, with one line and status 1.

    InputError: no place, or other programs. RunError: they do not meet.
    """
    place = {"num_processes": 1} if text is None else _place_of(text)
    return ALONE if place.get("num_processes") == 1 else _joined(text, place)

  def own_shards(
    self, num_shards: int, has_units: bool
  ) -> Sequence[int] | None:
    """The shards that this host reads; None is all, of which it keeps units."""
    if self.count == 1 or has_units:
      return None
    return range(self.index, num_shards, self.count)

  def own_units(
    self, unit_id: Int64[np.ndarray, " r"]
  ) -> Bool[np.ndarray, " r"]:
    """Whether each row is of a unit that this host has all rows of."""
    mixed = unit_id.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(32)) % np.uint64(self.count) == self.index

  def agree(self, what: str, text: str) -> None:
    """InputError on every host where one says another text than host 0."""
    said = np.zeros((self.count, 4), np.int64)
    digest = hashlib.sha256(text.encode()).digest()
    said[self.index] = np.frombuffer(digest, np.int64)
    said = self.sum(lambda: said)
    for other in np.flatnonzero((said != said[0]).any(axis=1)).tolist():
      raise InputError(
        f"host {other} has another {what} than host 0: start the same version,"
        " with the same flags and cache, on all."
      )

  def sum(
    self, own: Callable[[], Int64[np.ndarray, "..."]]
  ) -> Int64[np.ndarray, "..."]:
    """What all hosts' `own()` give, added up exactly; or the error of one."""
    if self.count == 1:
      return own()
    try:
      made = own()
    except (InputError, RunError) as error:
      if error not in _told:  # of a sum within this one, all have heard
        self._meet(error)
      raise
    except BaseException:
      with contextlib.suppress(RunError):
        self._meet(RunError("it was stopped."))
      raise
    self._meet(None)
    return self._added(made.ravel()).reshape(made.shape)

  def from_first(
    self,
    make: Callable[[], Int64[np.ndarray, "..."]],
    shape: tuple[int, ...] = (1,),
  ) -> Int64[np.ndarray, "..."]:
    """What host 0's `make()` of this shape gives, on all; or its error."""
    return self.sum(lambda: np.zeros(shape, int) if self.index else make())

  def _meet(self, error: Exception | None) -> None:
    """Waits for all; raises on each the error that one of them has."""
    place = f"oneshot-dp/{self._turn[0]}/"
    self._turn[0] += 1
    try:
      if error is not None:
        kind = "2" if isinstance(error, InputError) else "1"
        said = f"{kind}host {self.index}: {' '.join(str(error).split())}"
        self.client.key_value_set(f"{place}{self.index:06}", said)
      self.client.wait_at_barrier(f"{place}all", _PATIENCE_MS)
      errors = self.client.key_value_dir_get(place)
    except Exception as lost:  # (JAX's own, of several types.)
      _lose(lost)
    for _, said in sorted(errors):
      kind = InputError if said[0] == "2" else RunError
      _told.append(kind(said[1:]))
      raise _told[-1] from error

  def _added(self, numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    from jax.experimental.multihost_utils import process_allgather

    total = np.empty_like(numbers)
    try:
      for start in range(0, len(numbers), _AT_ONCE):
        part = np.ascontiguousarray(numbers[start : start + _AT_ONCE])
        # In halves: JAX has no int64 unless it is told so.
        halves = np.asarray(process_allgather(part.view(np.uint32)))
        whole = np.ascontiguousarray(halves).reshape(self.count, -1)
        total[start : start + _AT_ONCE] = whole.view(np.int64).sum(axis=0)
    except Exception as lost:
      _lose(lost)
    return total


ALONE = Hosts()


def _place_of(text: str) -> dict[str, Any]:
  """As JAX takes it."""
  by_hand = _BY_HAND.fullmatch(text)
  if not by_hand and text != "auto":
    raise InputError(
      f"hosts={text!r} must be auto, or INDEX/COUNT@HOST:PORT, such as"
      " 0/4@10.0.0.1:1234 on the first of four."
    )
  place: dict[str, Any] = {
    "coordinator_address": os.environ.get("JAX_COORDINATOR_ADDRESS"),
    "num_processes": _number("JAX_NUM_PROCESSES"),
    "process_id": _number("JAX_PROCESS_ID"),
  }
  if by_hand:
    said = by_hand.groupdict()
    place = {k: v if ":" in v else int(v) for k, v in said.items()}
    place["cluster_detection_method"] = "deactivate"
    if place["process_id"] >= place["num_processes"]:
      raise InputError(f"hosts={text!r}: hosts are 0 to COUNT - 1.")
  return {k: v for k, v in place.items() if v is not None}


def _number(name: str) -> int | None:
  said = os.environ.get(name)
  if said and not said.isdecimal():
    raise InputError(f"{name}={said!r} must be a number.")
  return int(said) if said else None


def _joined(text: str | None, place: dict[str, Any]) -> Hosts:
  import jax
  from jax._src import distributed  # the client has no public name

  seconds = _number("ONESHOT_DP_JOIN_SECONDS") or 35
  # Between CPUs; GPUs and TPUs have their own way.
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  not_met = RunError(
    f"--hosts {text}: the hosts did not meet within {seconds} s; start all at"
    " once, with an address of host 0 that it has and they can reach, or have"
    " them wait longer (ONESHOT_DP_JOIN_SECONDS)."
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
  no_sum = (
    f"--hosts {text}: the hosts met, but cannot add up: each machine's own name"
    " (`hostname`) must stand for an address that the others reach."
  )
  _last_words[:] = [RunError(no_sum)]
  hosts.sum(lambda: np.zeros(1, np.int64))  # connects each to each
  lost = (
    "another host of this run was lost, so it ends; what was charged stays"
    " charged (`oneshot-dp budget` tells it): start all hosts again."
  )
  _last_words[:] = [RunError(lost)]
  packages = Path(oneshot_dp.__file__).parent.iterdir()  # perhaps links
  files = sorted(f for p in packages for f in p.resolve().rglob("*.py"))
  code = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
  versions = map(importlib.metadata.version, ("jax", "jaxlib", "numpy"))
  kind = jax.local_devices()[0].device_kind
  hosts.agree("program", repr((*versions, kind, code)))
  return hosts


def _lose(cause: Exception) -> NoReturn:
  """Raises what is said of a lost host, after which JAX is not heard."""
  _ending.acquire()
  atexit.register(lambda: (sys.stderr.flush(), os._exit(1)))
  raise _last_words[0] from cause


def end_as_told() -> None:
  """Before an end by an error: waits until all have heard of it, if all do."""
  if _told:  # Host 0 would take the place where they meet with it.
    _leave()


def _leave() -> None:
  """Waits until the others have come to their end, too."""
  import jax

  late = "another host was lost, or still at work, at the end."
  _last_words[:] = [RunError(late)]
  with contextlib.suppress(RuntimeError):
    jax.distributed.shutdown()


def _say_one_line() -> None:
  """From now on Python alone is heard, and JAX's abort() says one line."""
  nothing = os.open(os.devnull, os.O_WRONLY)
  for name in ("stdout", "stderr"):
    stream = getattr(sys, name)
    stream.flush()
    own = os.fdopen(os.dup(stream.fileno()), "w", 1, stream.encoding)
    os.dup2(nothing, stream.fileno())
    setattr(sys, name, own)
  stderr = sys.stderr.fileno()

  @ctypes.CFUNCTYPE(None, ctypes.c_int)
  def end(_: int) -> None:
    _ending.acquire()
    os.write(stderr, f"oneshot-dp: error: {_last_words[0]}\n".encode())
    os._exit(1)

  # (Handlers of `signal.signal` run later, and abort() would go on.)
  ctypes.CDLL(None).signal(ctypes.c_int(signal.SIGABRT), end)
  _kept.append(end)
