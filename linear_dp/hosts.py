"""Hosts that run the same program, each over its own part of the rows.

Sums are added up exactly, host 0 draws the noise and tells the others what
left; it alone charges, prints and writes. One host is a case of it.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Shaped

from oneshot_dp.configs.errors import InputError, RunError

_PATIENCE_MS = 10**9
_AT_ONCE = 2**19
"""Numbers that cross at once: 4 MiB from each host to each."""


@dataclasses.dataclass(frozen=True, eq=False)
class Hosts:
  """This host, `index` of `count`; alone where there is no other.

  Formal guarantees: sums are those of int64, whichever host has which rows.
  What a host has summed goes to the others' memory and to no disk.
  """

  index: int = 0
  count: int = 1
  client: Any = dataclasses.field(default=None, repr=False)
  """JAX's, of the service that hosts meet by."""
  _turn: list[int] = dataclasses.field(default_factory=lambda: [0], repr=False)

  @classmethod
  def of(cls, text: str | None) -> "Hosts":
    """Joins the hosts of `auto` or `INDEX/COUNT@HOST:PORT`; None is alone.

    To be called before JAX computes anything. From then on a host that is lost
    or frozen ends this process within a minute, with one line and status 1.

    InputError: the text says no place, or the hosts run different programs.
    RunError: they do not meet.
    """
    if text is None:
      return ALONE
    from oneshot_dp.linear_dp import join_hosts

    return join_hosts.joined(text)

  @property
  def is_first(self) -> bool:
    """Whether this host charges, prints and writes."""
    return self.index == 0

  def own_shards(
    self, num_shards: int, has_units: bool
  ) -> Sequence[int] | None:
    """The shards that this host reads; None is all of them.

    Where a privacy unit may have many rows, in any shards, every host reads all
    of them and keeps the rows of its own units (`own_units`).
    """
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
    if self.count == 1:
      return
    digest = hashlib.sha256(text.encode()).digest()
    said = np.zeros((self.count, 4), np.int64)
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
    made = self._together(own)
    return self._added(made.ravel()).reshape(made.shape)

  def from_first(
    self, make: Callable[[], Shaped[np.ndarray, "..."]]
  ) -> Shaped[np.ndarray, "..."]:
    """What host 0's `make()` gives, on every host; or its error."""
    if self.count == 1:
      return make()
    made = self._together(make if self.index == 0 else lambda: np.empty(0))
    sizes = np.zeros(8, np.int64)
    if self.index == 0:
      sizes[: made.ndim + 2] = made.nbytes, made.ndim, *made.shape
      sizes[7] = int.from_bytes(made.dtype.str.encode(), "little")
    size, dims, *shape = (sizes := self._added(sizes)).tolist()
    dtype = int(sizes[7]).to_bytes(8, "little").rstrip(b"\0").decode()
    words = np.zeros(-(-size // 8), np.int64)
    if self.index == 0:
      words.view(np.uint8)[:size] = np.frombuffer(made.tobytes(), np.uint8)
    content = self._added(words).tobytes()[:size]
    return np.frombuffer(content, dtype).reshape(shape[:dims]).copy()

  def _together(self, make: Callable[[], np.ndarray]) -> np.ndarray:
    """What `make` gives, once all hosts have made theirs; or the error of one.

    An InputError stays one. Whatever the hosts do next, they do it together.
    """
    error, made = None, np.empty(0)
    try:
      made = make()
    except (InputError, RunError) as e:
      error = e
    except BaseException:
      self._meet(RunError("it was stopped."))
      raise
    self._meet(error)
    return made

  def _meet(self, error: Exception | None) -> None:
    """Waits for all; raises on each the error that one of them has."""
    place = f"oneshot-dp/{self._turn[0]}"
    self._turn[0] += 1
    try:
      if error is not None:
        kind = "2" if isinstance(error, InputError) else "1"
        self.client.key_value_set(
          f"{place}/{self.index:06}",
          f"{kind}host {self.index}: {' '.join(str(error).split())}",
        )
      self.client.wait_at_barrier(f"{place}-all", _PATIENCE_MS)
      errors = self.client.key_value_dir_get(place)
    except Exception as lost:  # (JAX's own, of several types.)
      raise self._lost() from lost
    for _, said in sorted(errors):
      raise (InputError if said[0] == "2" else RunError)(said[1:]) from error

  def _added(self, numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    from jax.experimental import multihost_utils

    total = np.empty_like(numbers)
    try:
      for start in range(0, len(numbers), _AT_ONCE):
        part = np.ascontiguousarray(numbers[start : start + _AT_ONCE])
        # In halves: JAX has no int64 unless it is told so.
        all_of_it = np.asarray(
          multihost_utils.process_allgather(part.view(np.uint32))
        )
        halves = np.ascontiguousarray(all_of_it).reshape(self.count, -1)
        total[start : start + _AT_ONCE] = halves.view(np.int64).sum(axis=0)
    except Exception as lost:
      raise self._lost() from lost
    return total

  def _lost(self) -> RunError:
    from oneshot_dp.linear_dp import join_hosts

    return join_hosts.lost()


ALONE = Hosts()
