"""Plans a run: opens, checks and prices a training request; charges nothing.

Everything that can fail is tried here: numbers, names, roles, rows, memory,
the disk, the cap. What a plan prints about itself follows from public facts.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, check_positive
from oneshot_dp.configs.head_config import (
  HeadName,
  HeadOptions,
  UnlabeledRows,
)
from oneshot_dp.extract.cache.format import check_views
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.distributed.hosts import Hosts
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.rows import Rows
from oneshot_dp.linear_dp.train import TrainedHead, check_plan, cost
from oneshot_dp.pipeline.heads.head_folder import SavedHead, refuse_exposed
from oneshot_dp.pipeline.heads.verify import earlier_head
from oneshot_dp.pipeline.ledger.delivery import RECEIPT_FILE, is_delivered
from oneshot_dp.pipeline.ledger.entries import ChargeRequest
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.public_start import read_start
from oneshot_dp.pipeline.report.results import head_name
from oneshot_dp.pipeline.requests import TrainRequest
from oneshot_dp.pipeline.runs.cache_roles import (
  CacheRole,
  check_roles,
  data_of,
)
from oneshot_dp.pipeline.runs.eval_rows import EvalRows, open_eval_rows
from oneshot_dp.pipeline.runs.price import (
  Job,
  charge_requests,
  epsilon_of_run,
  parent_charge_id,
  price_jobs,
  spent_mu_squared,
)
from oneshot_dp.pipeline.runs.resources import (
  check_memory_of_heads,
  check_object_size,
  disk_room,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
  """A request of which everything exists and fits, and what it will cost.

  Attributes:
    request: what was asked for.
    ledger: what is charged.
    source: what noise is drawn from.
    train: the private training cache.
    eval_rows: what the heads are scored on; None of a single head.
    unlabeled: the cache of public rows to learn from as well, if there is one.
    parent: the head to continue from, if there is one.
    options: the options of each kind of head.
    rows: the training rows as each kind of head reads them, validated.
    jobs: what is trained, and what is charged for each.
    mu_squared: μ² that each draw buys, all of its ε together, exactly.
    epsilon: of all that the run releases of the training data, rounded up.
    charge_requests: what the run costs, the training rows first.
    room: bytes of the disk that the run needs at most.
    notes: lines for the user about rows that are shared or unusual.
    identity: what distinguishes this run from all others; PRIVATE.
    is_finished: whether this very run was charged before, and its results are
      in place, so that nothing is left to do.
  """

  request: TrainRequest
  ledger: Ledger
  source: NoiseSource
  train: CacheRole
  eval_rows: EvalRows | None
  unlabeled: CacheRole | None
  parent: SavedHead | None
  options: Mapping[HeadName, HeadOptions]
  rows: Mapping[HeadName, Rows]
  jobs: Sequence[Job]
  mu_squared: Fraction
  epsilon: float
  charge_requests: Sequence[ChargeRequest]
  room: int
  notes: Sequence[str]
  identity: Mapping[str, Any]
  is_finished: bool

  @property
  def parent_charge_id(self) -> str | None:
    """The charge of the head to continue from, if there is one."""
    return parent_charge_id(self.parent)

  def path_of_head(self, trained: TrainedHead) -> str:
    """Returns the folder of a head within the run's; "" of a single head."""
    if self.eval_rows is None:
      return ""
    epsilon = math.inf if trained.epsilon is None else trained.epsilon
    return f"heads/{head_name(trained.name, epsilon, trained.draw)}"

  def settings(self) -> dict[str, Any]:
    """Returns what decides the results, all public; JSON."""
    return _settings(
      self.request, self.source, self.options, self.parent, self.roles
    )

  @property
  def roles(self) -> list[CacheRole]:
    """All caches of the run, the training rows first."""
    return _roles(self.train, self.eval_rows, self.unlabeled)


def build_plan(request: TrainRequest, hosts: Hosts) -> Plan:
  """Opens and checks everything that a request names, and prices it.

  Args:
    request: what was asked for.
    hosts: this host among the others of the run.

  Raises:
    InputError: the first thing that is wrong; nothing was charged.
  """
  # Numbers come first: who mistypes one should not wait until rows are read.
  _check_numbers(request)
  _check_output(request)
  ledger = Ledger(request.ledger)
  # One host charges. What is on the disk already may be finished, and cost
  # nothing. (A bucket is not asked here: its own errors come later.)
  is_charging = hosts.index == 0 and not os.path.lexists(request.out)
  if is_charging and not request.dry_run:
    ledger.check_writable()
  source = NoiseSource(request.noise_seed)
  train = _open_training_cache(request)
  eval_rows = _open_eval_set(request, source, hosts)
  unlabeled = _open_unlabeled_cache(request)
  roles = _roles(train, eval_rows, unlabeled)
  for role in roles[1:]:
    check_views(
      f"a head of {train}",
      train.cache.info.views,
      str(role),
      role.cache.info.views,
    )
  parent = None
  if request.parent is not None:
    parent = earlier_head(request.parent, ledger, train.cache, request.delta)
  options = _choose_options(request, train, parent, unlabeled)

  # The price follows from public numbers alone, and so does the memory: both
  # are refused before any training row is read.
  mu_squared = cost(request.epsilons, request.delta, spent_mu_squared(parent))
  jobs = price_jobs(request, train.cache.info, source, mu_squared, parent)
  check_memory_of_heads(request, train, unlabeled)
  check_object_size(request, train.cache.info)

  # Every training row is read once and checked.
  rows = _read_rows(request, train, hosts)
  row_notes = {head_rows.note for head_rows in rows.values()} - {""}
  settings = _settings(request, source, options, parent, roles)
  # A run is known again by its settings and by these digests, which are private
  # and stay in the ledger: a cache that was made anew with other rows is
  # another run.
  digests = [role.cache.private_digest for role in roles]
  identity = {**settings, "private_digests": digests}
  # All caches are compared with one another and with the ledger, by content. A
  # finished run scores nothing any more, and its test rows may have become
  # private since.
  notes = []
  is_finished = hosts.count == 1 and _is_finished(request, ledger, identity)
  if not is_finished:
    notes = _check_roles(request, roles, ledger)

  requests = charge_requests(train, jobs, eval_rows)
  return Plan(
    request=request,
    ledger=ledger,
    source=source,
    train=train,
    eval_rows=eval_rows,
    unlabeled=unlabeled,
    parent=parent,
    options=options,
    rows=rows,
    jobs=jobs,
    mu_squared=mu_squared,
    epsilon=epsilon_of_run(
      train.cache.info.dataset, requests, parent, request.delta
    ),
    charge_requests=requests,
    room=disk_room(request, train.cache.info, jobs),
    notes=[*notes, *sorted(row_notes)],
    identity=identity,
    is_finished=is_finished,
  )


def _check_numbers(request: TrainRequest) -> None:
  """Refuses budgets that are not a guarantee, before anything is opened."""
  for epsilon in request.epsilons:
    accounting.check_budget(
      epsilon,
      request.delta,
      allow_weak_privacy=request.allow_weak_privacy,
      flag="--epsilon",
    )
  check_positive("--num-draws", request.num_draws)
  if not request.heads or len(set(request.heads)) < len(request.heads):
    raise InputError(
      f"--head {' '.join(request.heads)}: name one or more, without duplicates."
    )


def _check_output(request: TrainRequest) -> None:
  """Refuses an output where others could read what is NOT PRIVATE."""
  if request.noise_seed is not None or request.baseline:
    refuse_exposed(request.out)


def _open_training_cache(request: TrainRequest) -> CacheRole:
  cache = open_cache(request.cache, request.part)
  accounting.check_delta(
    request.delta, cache.n, allow_weak_privacy=request.allow_weak_privacy
  )
  return CacheRole(cache, "private", "--cache")


def _open_eval_set(
  request: TrainRequest, source: NoiseSource, hosts: Hosts
) -> EvalRows | None:
  if request.eval_set is None:
    return None
  return open_eval_rows(
    request.eval_set,
    flag="--eval-cache",
    delta=request.delta,
    source=source,
    allow_weak_privacy=request.allow_weak_privacy,
    hosts=hosts,
  )


def _open_unlabeled_cache(request: TrainRequest) -> CacheRole | None:
  if request.unlabeled is None:
    return None
  return CacheRole(open_cache(request.unlabeled), "unlabeled", "--unlabeled")


def _roles(
  train: CacheRole, eval_rows: EvalRows | None, unlabeled: CacheRole | None
) -> list[CacheRole]:
  roles = [train]
  if eval_rows is not None:
    roles.append(eval_rows.role)
  if unlabeled is not None:
    roles.append(unlabeled)
  return roles


def _read_unlabeled_rows(
  unlabeled: CacheRole, feature_dim: int
) -> UnlabeledRows:
  """Reads the embeddings of public rows into memory; not their labels."""
  if unlabeled.cache.info.feature_dim != feature_dim:
    raise InputError(
      f"{unlabeled} has embeddings of {unlabeled.cache.info.feature_dim}"
      f" numbers, and the private rows of {feature_dim}: extract both with the"
      " same backbone and layer."
    )
  blocks = [
    np.asarray(block["embedding"], np.float32)
    for block in unlabeled.cache.blocks()
  ]
  if not blocks:
    raise InputError(f"{unlabeled} has no rows: give another cache.")
  return UnlabeledRows.of(np.concatenate(blocks), feature_dim=feature_dim)


def _choose_options(
  request: TrainRequest,
  train: CacheRole,
  parent: SavedHead | None,
  unlabeled: CacheRole | None,
) -> dict[HeadName, HeadOptions]:
  """Decides the options of each kind of head, and whether it can be trained.

  Options are given once, for all kinds. Beside a kind that accepts them, one
  that does not goes without; alone, or where no kind does, it is an error.
  """
  info = train.cache.info
  start = None
  if request.start is not None:
    start = read_start(request.start, info)
  if info.num_classes < 2:
    raise InputError(
      f"{train.cache.name} has one class, so there is nothing to tell apart:"
      " give a cache of two or more."
    )
  unlabeled_rows = None
  if unlabeled is not None:
    unlabeled_rows = _read_unlabeled_rows(unlabeled, info.feature_dim)
  given = HeadOptions(
    balanced=request.balanced, start=start, unlabeled=unlabeled_rows
  )
  # `check_plan` is asked about each kind before any row is read: one that
  # cannot be trained would otherwise be found after others were paid for.
  options: dict[HeadName, HeadOptions] = {}
  for head in request.heads:
    options[head] = given
    if len(request.heads) > 1 and not HEADS[head].accepts_options:
      options[head] = HeadOptions()
    check_plan(
      head=head,
      n=train.cache.n,
      feature_dim=info.feature_dim,
      num_classes=info.num_classes,
      options=options[head],
      parent_head=None if parent is None else parent.trained,
    )
  return options


def _is_finished(
  request: TrainRequest, ledger: Ledger, identity: Mapping[str, Any]
) -> bool:
  last_file = RECEIPT_FILE if request.eval_set is None else "results.json"
  return is_delivered(request.out, ledger, identity, last_file)


def _check_roles(
  request: TrainRequest, roles: Sequence[CacheRole], ledger: Ledger
) -> list[str]:
  """Refuses rows that are both private and public; returns notes."""
  allow_duplicates = False
  if request.eval_set is not None:
    allow_duplicates = request.eval_set.allow_duplicates
  return check_roles(roles, ledger, allow_duplicates=allow_duplicates)


def _read_rows(
  request: TrainRequest, train: CacheRole, hosts: Hosts
) -> dict[HeadName, Rows]:
  """Reads every training row once, so that a broken one is found now."""
  data = data_of(train.cache, hosts)
  rows = {head: HEADS[head].prepare_rows(data) for head in request.heads}
  for head_rows in rows.values():
    head_rows.validate()
  data.check_across_hosts()
  # Equal rows of one host say little about the others', so each looks at all.
  hosts.raise_together(data_of(train.cache).refuse_equal_rows)
  return rows


def _settings(
  request: TrainRequest,
  source: NoiseSource,
  options: Mapping[HeadName, HeadOptions],
  parent: SavedHead | None,
  roles: Sequence[CacheRole],
) -> dict[str, Any]:
  """Writes out what decides the results: config.json, and a run's identity."""
  # Only what decides the results. How many hosts there are changes no number,
  # and where results go is the name of the run in the ledger, beside this.
  private_epsilon = None
  if request.eval_set is not None:
    private_epsilon = request.eval_set.private_epsilon
  caches = []
  for role in roles:
    caches.append({**role.cache.info.public(), "rows": str(role.cache.part)})
  return {
    "heads": list(request.heads),
    "epsilons": list(request.epsilons),
    "delta": request.delta,
    "num_draws": request.num_draws,
    "baseline": request.baseline,
    "private_eval": private_epsilon,
    "noise_seed": request.noise_seed,
    "options": {
      head: head_options.as_json() for head, head_options in options.items()
    },
    "noise_source": source.description,
    "from": None if parent is None else parent.stated["weights_sha256"],
    "caches": caches,
  }
