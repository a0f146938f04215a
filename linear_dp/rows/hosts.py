"""Hosts that each read a part of the rows, and add up what they found.

Host 0 leads: it asks the others for a pass over their rows, at numbers that it
names, and every pass ends with a sum over hosts. They need no more than that:
noise, ledgers and results are host 0's alone.
"""

import contextlib
import functools
import io
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int32, Int64

from oneshot_dp.configs.errors import InputError, LostHostError, RunError
from oneshot_dp.linear_dp.rows.secret import Secret

_END = "end"
_PATIENCE_MS = 10**9
_POLL_MS = 1000
_WORD = 8
_LIMBS = 4
_AT_ONCE = 2**21
"""Numbers that cross at once: 16 MiB, and 32 as limbs."""


class Hosts(Secret):
  """The only host of a run: its rows are all rows.

  Attributes:
    index: which host this is.
    count: how many there are.
    rows: what the last pass was over, where passes share work.
  """

  def __init__(self, index: int = 0, count: int = 1):
    self.index = index
    self.count = count
    self.rows: object = None

  def ask(self, what: str, **asked: Any) -> None:
    """Begins a pass: host 0 tells the others, which wait in `asked`."""

  def sum(
    self, *parts: Int64[np.ndarray, "..."], ends_pass: bool = True
  ) -> tuple[Int64[np.ndarray, "..."], ...]:
    """Arrays of all hosts, added up exactly; by default that ends a pass."""
    return parts

  def gather(self, own: Int64[np.ndarray, "n m"]) -> Int64[np.ndarray, "all m"]:
    """Amid a pass: the rows of every host, in their order, on all."""
    sizes = np.zeros(self.count, np.int64)
    sizes[self.index] = len(own)
    (sizes,) = self.sum(sizes, ends_pass=False)
    stop = sizes[: self.index + 1].sum()
    rows = np.zeros((sizes.sum(), own.shape[1]), np.int64)
    rows[stop - len(own) : stop] = own
    return self.sum(rows, ends_pass=False)[0]

  def saw(self, ids: Int64[np.ndarray, " n"]) -> None:
    """Refuses an `example_id` that came twice in a pass."""
    ids.sort()
    if (twice := ids[1:][ids[1:] == ids[:-1]]).size:
      raise _came_twice(int(twice[0]))


ALONE = Hosts()


class JoinedHosts(Hosts):
  """One of several, which do the same passes, each over its own rows.

  Formal guarantees: sums are those of int64, whichever host has which rows; an
  `example_id` that two hosts have seen is refused. What a host has summed goes
  to the others' memory and to no disk.

  Args:
    client: of JAX's coordination service, which tells whose turn it is. Arrays
      go another way: by an all-reduce on one device of every host.
  """

  def __init__(self, client: Any, index: int, count: int):
    super().__init__(index, count)
    self.status = 0
    """The exit status of host 0, once it needs no more."""
    self._client = client
    self._turn = 0
    self._is_asked = False
    self._ids = np.empty(0, np.int64)
    self._is_new = False

  def ask(self, what: str, **asked: Any) -> None:
    if self.index:
      return
    file = io.BytesIO()
    given = {k: np.asarray(v) for k, v in asked.items() if v is not None}
    np.savez(file, allow_pickle=False, **given)
    content = file.getvalue()
    self._say(f"{what},{len(content)}")
    self._is_asked = True
    self._from_first(content, len(content))

  def asked(self) -> Iterator[tuple[str, dict[str, Any]]]:
    """What host 0 asks for; whoever iterates does it, and ends it by `sum`."""
    while True:
      what, number = self._hear().rsplit(",", 1)
      if what == _END:
        self.status = int(number)
        return
      self._is_asked = True
      content = self._from_first(b"", int(number))
      with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {k: file[k] for k in file.files}
      yield what, {k: v if v.ndim else v.item() for k, v in arrays.items()}

  def sum(
    self, *parts: Int64[np.ndarray, "..."], ends_pass: bool = True
  ) -> tuple[Int64[np.ndarray, "..."], ...]:
    self.meet()
    sizes = np.zeros(self.count + 1, np.int64)
    sizes[self.index], sizes[-1] = self._ids.size, self._is_new
    arrays = [sizes, *parts]
    total = self._add(np.concatenate([np.ravel(a) for a in arrays]))
    ends = np.cumsum([a.size for a in arrays])[:-1]
    sizes, *found = np.split(total, ends)
    self._is_new = False
    if sizes[-1]:
      self._refuse_shared_ids(sizes[:-1].tolist())
    self._is_asked = not ends_pass
    pairs = zip(found, parts, strict=True)
    return tuple(sums.reshape(part.shape) for sums, part in pairs)

  def saw(self, ids: Int64[np.ndarray, " n"]) -> None:
    super().saw(ids)
    self._is_new = not np.array_equal(ids, self._ids)
    self._ids = ids

  def meet(self, error: Exception | None = None) -> None:
    """Waits for all; raises on each the error that one of them has.

    An InputError stays one. Whatever the hosts do next, they do it together.
    """
    turn, self._turn, self._is_asked = self._turn, self._turn + 1, False
    place = f"oneshot-dp/{turn}"
    try:
      if error is not None:
        kind = "2" if isinstance(error, InputError) else "1"
        self._client.key_value_set(
          f"{place}/errors/{self.index:06}",
          f"{kind}host {self.index}: {' '.join(str(error).split())}",
        )
      self._client.wait_at_barrier(f"{place}/all", _PATIENCE_MS)
      errors = self._client.key_value_dir_get(f"{place}/errors")
    except Exception as lost:  # (JAX's own, of several types.)
      raise LostHostError from lost
    for _, said in sorted(errors):
      raise (InputError if said[0] == "2" else RunError)(said[1:])

  @contextlib.contextmanager
  def together(self) -> Iterator[None]:
    """A block that all hosts do; if one fails, all do."""
    self._is_asked = True
    yield
    self.meet()

  def end(self, error: BaseException | None, status: int) -> None:
    """Tells the others that this host needs no more, or why it failed.

    Raises:
      InputError, RunError: what all fail with, where this one did in a pass.
    """
    if not self._is_asked:
      if self.index == 0:
        self._say(f"{_END},{status}")
      return
    is_told = isinstance(error, Exception)
    try:
      self.meet(error if is_told else RunError("it was stopped."))
    except (InputError, RunError) as of_all:
      if isinstance(error, (InputError, RunError)):
        raise of_all from error

  def table(self, own: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, "hosts m"]:
    """What every host has to say, in their order."""
    rows = np.zeros((self.count, own.size), np.int64)
    rows[self.index] = own
    return self._add(rows)

  def _refuse_shared_ids(self, sizes: Sequence[int]) -> None:
    """Compares the ids of each host with those of all behind it."""
    twice = np.zeros(2, np.int64)
    for turn, size in enumerate(sizes[:-1]):
      own = self._ids if self.index == turn else np.zeros(size, np.int64)
      ids = self._add(own)
      shared = np.intersect1d(ids, self._ids, assume_unique=True)
      if self.index > turn and shared.size and not twice[1]:
        twice[:] = shared[0], 1
    found = self.table(twice)
    for example_id in found[found[:, 1] > 0, 0].tolist():
      raise _came_twice(example_id)

  def _say(self, text: str) -> None:
    try:
      self._client.key_value_set(f"oneshot-dp/{self._turn}/asked", text)
    except Exception as lost:
      raise LostHostError from lost

  def _hear(self) -> str:
    """Waits without an end, and for Ctrl-C as well."""
    while True:
      start = time.monotonic()
      try:
        return self._client.blocking_key_value_get(
          f"oneshot-dp/{self._turn}/asked", _POLL_MS
        )
      except Exception as nothing:
        if (
          "DEADLINE_EXCEEDED" not in str(nothing)
          or time.monotonic() - start < _POLL_MS / 2000
        ):
          raise LostHostError from nothing

  def _from_first(self, content: bytes, size: int) -> bytes:
    """The bytes that host 0 gives."""
    words = np.zeros(-(-size // _WORD), np.int64)
    words.view(np.uint8)[: len(content)] = np.frombuffer(content, np.uint8)
    return self._add(words).tobytes()[:size]

  def _add(self, numbers: Int64[np.ndarray, "*n"]) -> Int64[np.ndarray, "*n"]:
    flat = numbers.ravel()
    total = np.empty_like(flat)
    try:
      for start in range(0, flat.size, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        total[part] = numbers_of(self._add_limbs(limbs_of(flat[part])))
    except Exception as lost:
      raise LostHostError from lost
    return total.reshape(numbers.shape)

  def _add_limbs(self, limbs: Int32[np.ndarray, " m"]) -> np.ndarray:
    mesh = self._mesh
    everywhere = jax.make_array_from_process_local_data(
      NamedSharding(mesh, PartitionSpec("hosts")),
      limbs[None],
      (self.count, limbs.size),
    )
    return np.asarray(_adder(mesh)(everywhere).addressable_data(0))

  @functools.cached_property
  def _mesh(self) -> Mesh:
    """The first device of every host."""
    first = {d.process_index: d for d in reversed(jax.devices())}
    return Mesh(np.array([first[i] for i in range(self.count)]), ("hosts",))


def limbs_of(numbers: Int64[np.ndarray, "..."]) -> Int32[np.ndarray, " m"]:
  """Each number as 4 limbs of 16 bits, whose sums hold 2¹⁵ hosts."""
  flat = np.ascontiguousarray(numbers, "<i8").ravel()
  return flat.view("<u2").astype(np.int32)


def numbers_of(limbs: Int32[np.ndarray, " m"]) -> Int64[np.ndarray, " n"]:
  """The numbers of sums of limbs; exact, as they are modulo 2⁶⁴."""
  words = np.zeros(limbs.size // _LIMBS, np.uint64)
  for i in range(_LIMBS):
    words += limbs[i::_LIMBS].astype(np.uint64) << np.uint64(16 * i)
  return words.view(np.int64)


@functools.cache
def _adder(mesh: Mesh) -> Any:
  """Compiles int32 [hosts, m], a row on each host → their sum, on all."""

  def add(rows: Int32[Array, "hosts m"]) -> Int32[Array, " m"]:
    return rows.sum(axis=0, dtype=jnp.int32)

  return jax.jit(add, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _came_twice(example_id: int) -> InputError:
  return InputError(
    f"example_id={example_id} comes more than once, which would double its"
    " influence: run `oneshot-dp verify` on the cache."
  )
