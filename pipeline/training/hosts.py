"""Training on several hosts: one runs the command, all add up their rows."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # the client has no public name

import oneshot_dp
from oneshot_dp.configs.errors import InputError, LostHostError, RunError
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.held_out import COUNTS, HELD_OUT, HeldOutRows
from oneshot_dp.linear_dp.heads.own_noise import secret_rows
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import (
  CLIPPED_SUM,
  exact_clipped_sum,
)
from oneshot_dp.linear_dp.public_statistics import (
  PublicMatrix,
  PublicStatistics,
)
from oneshot_dp.linear_dp.rows.hosts import (
  ALONE,
  Hosts,
  JoinedHosts,
)
from oneshot_dp.linear_dp.rows.units import CHOICE, choose_rows
from oneshot_dp.linear_dp.rows.whole_units import UNIT_SIZES, count_rows
from oneshot_dp.linear_dp.statistics.class_moments import (
  MOMENTS,
  class_moments,
)
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.gains import GAINS, count_gains
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  GRADIENT,
  clipped_gradient,
)
from oneshot_dp.linear_dp.statistics.row_gradient import Loss
from oneshot_dp.linear_dp.statistics.step_rows import (
  READING,
  STEP_ROWS,
  StepRows,
)
from oneshot_dp.pipeline.shell.answer import Answer
from oneshot_dp.pipeline.shell.many_hosts import (
  address_to_bind,
  claim_the_last_word,
  place_of,
  set_last_words,
)
from oneshot_dp.pipeline.training.cache_rows import (
  PUBLIC_MAP,
  cache_rows,
  mapped_by,
)
from oneshot_dp.pipeline.training.public_rows import held_out_of

_JOIN_SECONDS = int(os.environ.get("ONESHOT_DP_JOIN_SECONDS", "35"))
"""And about 6 of JAX's own: less than a minute where one never comes."""
_HEARTBEAT_SECONDS = 30
_LEAVE_SECONDS = 10
_LOST_LATE = (
  "another host of this run was lost as it ended; what host 0 has written is"
  " whole."
)
_LIBRARIES = ("jax", "jaxlib", "numpy")


def on_hosts(flags: Any, lead: Callable[[Hosts], Answer]) -> Answer:
  """Runs a command on host 0, with the rows that the others have.

  Formal guarantees: a host other than 0 reads its rows and adds them up; it
  draws no noise, and writes to no ledger and no disk. All have the same
  program, flags but for paths, and cache.

  Args:
    flags: of a command that trains: `hosts`, `cache` and more.
    lead: what host 0 does.

  Raises:
    InputError, RunError: on all hosts alike, whichever it is about; but where
      host 0 fails outside a pass, it alone says why.
    SystemExit: on the others, with host 0's exit status, once it has ended.
  """
  if flags.hosts is None:
    return lead(ALONE)
  with joined(flags.hosts) as hosts:
    with hosts.together():
      cache = open_cache(flags.cache)
    program = _program(Path(oneshot_dp.__file__).parent)
    _check_alike(hosts, flags, program, cache.private_digest)
    if hosts.index == 0:
      return lead(hosts)
    _serve(cache, hosts)
    raise SystemExit(hosts.status)


@contextlib.contextmanager
def joined(asked: str) -> Iterator[JoinedHosts]:
  """All hosts, until this one needs the others no more."""
  # Between CPUs; GPUs and TPUs have their own way.
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  not_met = RunError(
    f"--hosts {asked}: the hosts did not meet within {_JOIN_SECONDS} s; start"
    " the same command on all at once, with an address of host 0 that they can"
    " reach, or have them wait longer (ONESHOT_DP_JOIN_SECONDS)."
  )
  set_last_words(not_met)
  try:
    place = place_of(asked)
    jax.distributed.initialize(
      **place,
      coordinator_bind_address=address_to_bind(place),
      initialization_timeout=_JOIN_SECONDS,
      heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
      shutdown_timeout_seconds=_LEAVE_SECONDS,
    )
    client = distributed.global_state.client
    hosts = JoinedHosts(client, jax.process_index(), jax.process_count())
  except ValueError as e:  # auto has found nothing
    raise InputError(
      f"--hosts {asked}: nothing says which host this is ({e}); say it, as"
      " INDEX/COUNT@HOST:PORT."
    ) from e
  except RuntimeError as e:
    raise not_met from e
  no_sum = RunError(
    f"--hosts {asked}: the hosts met, but cannot add up: each machine's own"
    " name (`hostname`) must stand for an address that the others reach; see"
    " its /etc/hosts."
  )
  set_last_words(no_sum)
  try:  # the first sum connects each to each
    hosts.table(np.zeros(1, np.int64))
  except LostHostError as e:
    claim_the_last_word()
    raise no_sum from e
  set_last_words(LostHostError())
  error: BaseException | None = None
  try:
    yield hosts
  except BaseException as e:
    error = e
  try:
    if not isinstance(error, LostHostError):
      hosts.end(error, _status(error))
  except (InputError, RunError) as of_all:
    error = of_all
  if isinstance(error, LostHostError):
    claim_the_last_word()
  else:  # It waits until the others have heard.
    if hosts.status == 0 and (error is None or isinstance(error, SystemExit)):
      set_last_words(LostHostError(_LOST_LATE))
    with contextlib.suppress(RuntimeError):
      jax.distributed.shutdown()
  if error is not None:
    raise error


def _status(error: BaseException | None) -> int:
  match error:
    case None:
      return 0
    case KeyboardInterrupt():
      return 130
    case InputError():
      return 2
  return 1


def _program(root: Path) -> bytes:
  """A digest of the code below a folder, its libraries and kind of device."""
  device = jax.local_devices()[0]
  versions = [importlib.metadata.version(name) for name in _LIBRARIES]
  code = [
    (str(path.relative_to(root)), hashlib.sha256(path.read_bytes()).digest())
    # A checkout has links to its folders, which rglob does not follow.
    for folder, _, names in os.walk(root, followlinks=True)
    for path in (Path(folder, name) for name in names)
    if path.suffix == ".py"
  ]
  said = repr((versions, device.device_kind, sorted(code)))
  return hashlib.sha256(said.encode()).digest()


def _check_alike(
  hosts: JoinedHosts, flags: Any, program: bytes, cache_digest: str
) -> None:
  """Refuses hosts that would not add up the same thing."""
  asked = dataclasses.asdict(flags) | {"hosts": None}
  said = json.dumps(asked, default=_but_for_paths, sort_keys=True)
  digests = {
    "program": program,
    "flags": hashlib.sha256(said.encode()).digest(),
    "cache": bytes.fromhex(cache_digest),
  }
  own = np.frombuffer(b"".join(digests.values()), np.int64)
  table = hosts.table(own).reshape(hosts.count, len(digests), -1)
  other = (table != table[0]).any(axis=2)
  for index, name in zip(*map(np.ndarray.tolist, other.nonzero()), strict=True):
    raise InputError(
      f"host {index} has another {list(digests)[name]} than host 0: start the"
      " same version, with the same flags and cache, on all."
    )


def _but_for_paths(value: Any) -> str:
  """Where things are may differ from host to host."""
  return "" if isinstance(value, Path) else repr(value)


def _serve(cache: FeatureCache, hosts: JoinedHosts) -> None:
  """Does every pass that host 0 asks for, over this host's rows."""
  plain = cache_rows(cache, hosts=hosts)
  held_out = None
  rows, steps, sizes, chosen = plain, None, None, None
  for what, asked in hosts.asked():
    if what == PUBLIC_MAP:
      whitening = None
      if "integers" in asked:
        whitening = PublicMatrix(
          integers=asked["integers"], exponent=asked["exponent"]
        )
      statistics = PublicStatistics(mean=asked["mean"], whitening=whitening)
      rows = mapped_by(statistics, plain)
      hosts.sum()
    elif what == HELD_OUT:
      apart = held_out_of(cache, plain)
      held_out = HeldOutRows(rows=rows, secret_held_out=apart)
      rows = held_out.trained_on()
      hosts.sum()
    elif what == COUNTS and held_out is not None:
      heads = [
        LinearHead(kernel=kernel, bias=bias, unit_norm=bool(unit_norm))
        for kernel, bias, unit_norm in zip(*asked.values(), strict=True)
      ]
      held_out.count(heads, sizes)
    elif what == UNIT_SIZES:
      sizes = count_rows(rows.blocks(), hosts)
    elif what == CHOICE:
      chosen = choose_rows(rows.blocks(), hosts=hosts, **asked)
    elif what == CLIPPED_SUM:
      grid = ClippedGradientGrid(**asked)
      of_units = grid.clipped == "unit"
      exact_clipped_sum(
        rows.blocks(),
        grid,
        num_examples=rows.counted,
        chosen=None if of_units else chosen,
        sizes=sizes if of_units else None,
        hosts=hosts,
      )
    elif what == MOMENTS:
      class_moments(secret_rows(rows, sizes=sizes))
    elif what == STEP_ROWS:
      where = ReleasedMap(
        matrix=asked.get("matrix"), centre=asked.get("centre")
      )
      of_norm = secret_rows(rows, max_norm=asked.get("max_norm"), sizes=sizes)
      hosts.rows = steps = StepRows(of_norm, where)
      hosts.sum()
    elif steps is None:
      raise RunError(f"host 0 asks for {what!r} of no rows.")
    elif what == READING:
      steps.read()
    elif what == GRADIENT:
      loss = Loss(name=asked.pop("loss"), bias=asked.pop("bias"))
      clipped_gradient(steps, loss=loss, **asked)
    elif what == GAINS:
      count_gains(steps, **asked)
