"""Hosts that run the same program, each with its own part of the rows.

Every host executes the same statements in the same order. Where they need each
other they meet at a barrier: to add up integers exactly, to hear of an error
that one of them has, or to take over a value that host 0 made. Host 0 alone
draws noise, charges the ledger, prints and writes.

    with Hosts.join("0/2@10.0.0.1:1234") as hosts:
      hosts.agree("request", repr(request))
      total = hosts.sum(sum_of_own_rows)
"""

import atexit
import contextlib
import hashlib
import importlib.metadata
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
from jaxtyping import Bool, Int64

import oneshot_dp
from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.distributed.exit import LostHostExit
from oneshot_dp.linear_dp.distributed.host_place import (
  HostPlace,
  environment_number,
)

T = TypeVar("T")

_HEARTBEAT_SECONDS = 30
_LEAVE_SECONDS = 10
# Hosts wait for each other as long as it takes: a lost one ends the wait.
_BARRIER_MILLISECONDS = 10**9
_NUMBERS_AT_ONCE = 2**19  # 4 MiB from each host to each


class Hosts:
  """This host among the others of its run.

  Attributes:
    index: this host's number, from 0.
    count: how many hosts there are.
  """

  def __init__(
    self,
    index: int = 0,
    count: int = 1,
    *,
    client: Any = None,
    lost_host_exit: LostHostExit | None = None,
  ):
    self.index = index
    self.count = count
    # JAX's client of the coordination service, where hosts meet, and what ends
    # this process if one is lost; a host that is alone has neither.
    self._client = client
    self._exit = lost_host_exit
    self._barrier_count = 0
    # Errors that every host has heard of, so that none is announced twice.
    self._announced: list[Exception] = []

  @classmethod
  def join(cls, text: str | None) -> "Hosts":
    """Joins the other hosts, before JAX computes anything.

    From then on a host that is lost or frozen ends this process within a
    minute, with one line and status 1.

    Args:
      text: "auto" where SLURM, Kubernetes or JAX_* variables say which host
        this is, or "INDEX/COUNT@HOST:PORT"; None for a run on one host.

    Returns:
      This host; `ALONE` if there is no other.

    Raises:
      InputError: the text is neither, or hosts run different programs.
      RunError: the hosts do not find each other in time.
    """
    if text is None:
      return ALONE
    place = HostPlace.parse(text)
    if place.count == 1:
      return ALONE
    return _join(text, place)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: object) -> None:
    """Waits for the other hosts if the run ends by an error of one of them.

    Host 0 runs the service where hosts meet. Without the wait it could end
    before the others have read the error there.
    """
    if self._announced:
      self.leave()

  def leave(self) -> None:
    """Waits until the other hosts have finished, too."""
    import jax

    assert self._exit is not None
    self._exit.message = "another host was lost, or still at work, at the end."
    with contextlib.suppress(RuntimeError):
      jax.distributed.shutdown()

  def own_shards(
    self, num_shards: int, has_whole_units: bool
  ) -> Sequence[int] | None:
    """Returns the shards that this host reads; None means all of them.

    Where privacy units have many rows every host reads all shards, and keeps
    the rows of its own units (see `own_units`): a unit's rows lie anywhere.
    """
    if self.count == 1 or has_whole_units:
      return None
    return range(self.index, num_shards, self.count)

  def own_units(
    self, unit_id: Int64[np.ndarray, " r"]
  ) -> Bool[np.ndarray, " r"]:
    """Returns for each row whether this host has all rows of its unit.

    Ids are mixed by a multiplication, so that numbered units spread evenly.
    """
    mixed = unit_id.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(32)) % np.uint64(self.count) == self.index

  def agree(self, what: str, text: str) -> None:
    """Checks that all hosts have the same text; `what` names it in the error.

    Raises:
      InputError: on every host, if one of them has another text than host 0.
    """
    # Each host fills its own line, so the sum over hosts has all of them.
    digests = np.zeros((self.count, 4), np.int64)
    own_digest = hashlib.sha256(text.encode()).digest()
    digests[self.index] = np.frombuffer(own_digest, np.int64)
    digests = self.sum(lambda: digests)
    differs = (digests != digests[0]).any(axis=1)
    if differs.any():
      raise InputError(
        f"host {differs.argmax()} has a different {what} than host 0: start the"
        " same version, with the same flags and cache, on all hosts."
      )

  def raise_together(self, compute: Callable[[], T]) -> T:
    """Returns `compute()`; an error of one host is raised on all of them.

    Hosts that have no error wait here for the others, so that none goes on
    alone to a sum that will never be complete.

    Raises:
      InputError, RunError: as raised by `compute` on the first host that
        failed, with the host's number in front.
    """
    if self.count == 1:
      return compute()
    try:
      result = compute()
    except (InputError, RunError) as error:
      # Every host has heard of an error of a meeting within this one.
      if error not in self._announced:
        self._meet(error)
      raise
    except BaseException:
      with contextlib.suppress(RunError):
        self._meet(RunError("it was stopped."))
      raise
    self._meet(None)
    return result

  def sum(
    self, compute: Callable[[], Int64[np.ndarray, "..."]]
  ) -> Int64[np.ndarray, "..."]:
    """Returns the exact sum of what `compute()` gives on every host.

    Args:
      compute: returns this host's part, int64 of one shape on all hosts.

    Raises:
      InputError, RunError: see `raise_together`.
    """
    own = self.raise_together(compute)
    if self.count == 1:
      return own
    return self._added(own.ravel()).reshape(own.shape)

  def gathered(
    self, numbers: Int64[np.ndarray, " n"]
  ) -> Int64[np.ndarray, " total"]:
    """Returns the numbers of all hosts, one host's after another's.

    Args:
      numbers: this host's; each host may have another number of them.

    Raises:
      InputError, RunError: see `raise_together`.
    """
    # Each host fills its own stretch, so the sum over hosts has all of them.
    lengths = np.zeros(self.count, np.int64)
    lengths[self.index] = len(numbers)
    all_lengths = self.sum(lambda: lengths)
    start = all_lengths[: self.index].sum()
    stretches = np.zeros(all_lengths.sum(), np.int64)
    stretches[start : start + len(numbers)] = numbers
    return self.sum(lambda: stretches)

  def from_first(
    self,
    compute: Callable[[], Int64[np.ndarray, "..."]],
    shape: tuple[int, ...] = (1,),
  ) -> Int64[np.ndarray, "..."]:
    """Returns on every host what `compute()` gives on host 0 alone.

    Args:
      compute: called on host 0; returns int64 of this shape.
      shape: known on all hosts.

    Raises:
      InputError, RunError: see `raise_together`.
    """

    def value_of_first() -> Int64[np.ndarray, "..."]:
      if self.index == 0:
        return compute()
      return np.zeros(shape, np.int64)

    return self.sum(value_of_first)

  def _meet(self, error: Exception | None) -> None:
    """Waits for all hosts; raises on each of them the error that one has."""
    # Each meeting has a folder of its own in the coordination service's
    # store, in which a host that failed leaves its message before the barrier.
    folder = f"oneshot-dp/{self._barrier_count}/"
    self._barrier_count += 1
    try:
      if error is not None:
        status = "2" if isinstance(error, InputError) else "1"
        one_line = " ".join(str(error).split())
        message = f"{status}host {self.index}: {one_line}"
        self._client.key_value_set(f"{folder}{self.index:06}", message)
      self._client.wait_at_barrier(f"{folder}all", _BARRIER_MILLISECONDS)
      messages = self._client.key_value_dir_get(folder)
    except Exception as lost:  # JAX's own, of several types
      self._raise_lost(lost)
    if messages:
      # The lowest index first: all hosts end with the same error.
      _, message = min(messages)
      kind = InputError if message[0] == "2" else RunError
      announced = kind(message[1:])
      self._announced.append(announced)
      raise announced from error

  def _added(self, numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Adds up what each host has, exactly, piece by piece."""
    from jax.experimental.multihost_utils import process_allgather

    total = np.empty_like(numbers)
    try:
      for start in range(0, len(numbers), _NUMBERS_AT_ONCE):
        piece = np.ascontiguousarray(numbers[start : start + _NUMBERS_AT_ONCE])
        # As pairs of uint32: without x64, JAX would cut int64 to int32.
        gathered = np.asarray(process_allgather(piece.view(np.uint32)))
        by_host = np.ascontiguousarray(gathered).reshape(self.count, -1)
        added = by_host.view(np.int64).sum(axis=0)
        total[start : start + _NUMBERS_AT_ONCE] = added
    except Exception as lost:
      self._raise_lost(lost)
    return total

  def _raise_lost(self, cause: Exception) -> NoReturn:
    """Ends the run on this host: another one does not answer any more."""
    assert self._exit is not None
    self._exit.raise_lost(cause)


ALONE = Hosts()


def _join(text: str, place: HostPlace) -> Hosts:
  """Starts JAX's distributed runtime, and checks that hosts can add up."""
  join_seconds = environment_number("ONESHOT_DP_JOIN_SECONDS") or 35
  lost_host_exit = LostHostExit()
  lost_host_exit.install()
  _initialize_jax(text, place, join_seconds, lost_host_exit)
  import jax
  from jax._src import distributed  # the client has no public name

  hosts = Hosts(
    jax.process_index(),
    jax.process_count(),
    client=distributed.global_state.client,
    lost_host_exit=lost_host_exit,
  )
  atexit.register(hosts.leave)
  # Of an error in here all hosts hear, so each waits for the others.
  with hosts:
    # The first sum connects each host to each.
    lost_host_exit.message = (
      f"--hosts {text}: the hosts met, but cannot add up: each machine's own"
      " name (`hostname`) must stand for an address that the others reach."
    )
    hosts.sum(lambda: np.zeros(1, np.int64))
    lost_host_exit.message = (
      "another host of this run was lost, so it ends; what was charged stays"
      " charged (`oneshot-dp budget` lists it): start all hosts again."
    )
    hosts.agree("program", _program_identity())
  return hosts


def _initialize_jax(
  text: str, place: HostPlace, seconds: int, lost_host_exit: LostHostExit
) -> None:
  """Connects this process to host 0, where the hosts meet."""
  import jax

  # Between CPUs; GPUs and TPUs have collectives of their own.
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  handler = signal.getsignal(signal.SIGTERM)
  try:
    address = place.find_coordinator(seconds)
    tried = f" at {address}" if address else ""
    lost_host_exit.message = (
      f"--hosts {text}: the hosts did not meet within {seconds} s{tried}; start"
      " all at once, with an address of host 0 that it has and they can reach,"
      " or let them wait longer (ONESHOT_DP_JOIN_SECONDS)."
    )
    jax.distributed.initialize(
      coordinator_address=address,
      num_processes=place.count,
      process_id=place.index,
      cluster_detection_method="deactivate" if place.is_by_hand else None,
      # Nowhere but at the address that was given for it.
      coordinator_bind_address=os.environ.get(
        "JAX_COORDINATOR_BIND_ADDRESS", place.coordinator_address
      ),
      initialization_timeout=seconds,
      heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
      shutdown_timeout_seconds=_LEAVE_SECONDS,
    )
  except ValueError as e:  # JAX found nothing for `auto`
    raise InputError(
      f"--hosts {text}: nothing tells which host this is ({e}); give it as"
      " INDEX/COUNT@HOST:PORT."
    ) from e
  except RuntimeError as e:
    raise RunError(lost_host_exit.message) from e
  # JAX takes SIGTERM for a notice that a program is to save its state, and lets
  # it go on: SLURM and Kubernetes could not stop a run.
  is_main_thread = threading.current_thread() is threading.main_thread()
  if is_main_thread and handler is not None:
    signal.signal(signal.SIGTERM, handler)


def _program_identity() -> str:
  """Versions of the libraries, kind of device, and a digest of our code."""
  import jax

  code = []
  # The packages may be links, which rglob would not follow.
  for package in Path(oneshot_dp.__file__).parent.iterdir():
    for file in package.resolve().rglob("*.py"):
      code.append((str(file), hashlib.sha256(file.read_bytes()).hexdigest()))
  digests = [digest for _, digest in sorted(code)]
  versions = [
    importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")
  ]
  device_kind = jax.local_devices()[0].device_kind
  return repr((versions, device_kind, digests))
