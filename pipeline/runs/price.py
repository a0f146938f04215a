"""Prices a run: what it costs each data set, before anything is charged."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.pipeline.heads.head_folder import SavedHead
from oneshot_dp.pipeline.ledger.entries import (
  ChargeRequest,
  LedgerEntry,
  spent,
)
from oneshot_dp.pipeline.requests import TrainRequest
from oneshot_dp.pipeline.runs.cache_roles import CacheRole
from oneshot_dp.pipeline.runs.eval_rows import EvalRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """One call of `train` or `baseline`, and the charge that pays for it.

  Attributes:
    head: the kind of head.
    draw: which draw of noise, from 0; None trains without noise.
    charge: what the ledger is to hold about it.
  """

  head: HeadName
  draw: int | None
  charge: LedgerEntry


def price_jobs(
  request: TrainRequest,
  info: CacheInfo,
  source: NoiseSource,
  mu_squared: Fraction,
  parent: SavedHead | None,
) -> list[Job]:
  """Lists what is trained, with the charge for each: all draws, then baselines.

  Heads of one kind and draw are nested, so one charge covers all their ε. What
  is NOT PRIVATE is charged as well, without a cost: the ledger is to know it.

  Args:
    request: the kinds of heads, their ε and draws, and whether there are
      baselines.
    info: of the training cache, which names the privacy unit.
    source: of the noise; a seeded one makes charges without a cost.
    mu_squared: μ² of one draw: the largest ε, less what `parent` has spent.
    parent: the head that all of them continue from; None for new heads.

  Returns:
    The jobs, in the order in which they are trained.
  """
  # Every kind of head and every draw has noise of its own, and releases add up:
  # each is a charge of the same μ².
  epsilons = ", ".join(map(format_rounded_up, sorted(request.epsilons)))
  jobs = []
  for head in request.heads:
    for draw in range(request.num_draws):
      charge = LedgerEntry(
        kind="charge",
        description=f"{head} at epsilon {epsilons}",
        mu_squared=str(mu_squared) if source.is_private else None,
        unit=info.unit,
        delta=request.delta,
        parent_charge_id=parent_charge_id(parent),
      )
      jobs.append(Job(head=head, draw=draw, charge=charge))
  # Without noise there is no cost to add, and no cap that covers it: a data set
  # with a cap refuses it.
  if request.baseline:
    for head in request.heads:
      charge = LedgerEntry(
        kind="charge",
        description=f"{head} without noise",
        unit=info.unit,
        delta=request.delta,
        parent_charge_id=parent_charge_id(parent),
      )
      jobs.append(Job(head=head, draw=None, charge=charge))
  return jobs


def charge_requests(
  train: CacheRole, jobs: Sequence[Job], eval_rows: EvalRows | None
) -> list[ChargeRequest]:
  """Lists what is charged: the training rows, then a private test set.

  Args:
    train: the training cache, with the keys of its rows.
    jobs: from `price_jobs`.
    eval_rows: what heads are scored on; None if they are not. Public test rows
      are charged nothing.

  Returns:
    Requests for `Ledger.charge`; PRIVATE, as keys of rows are in them.
  """
  # One request for each data set: what all jobs cost it is checked against its
  # cap together.
  charges = tuple(job.charge for job in jobs)
  requests = [
    ChargeRequest(
      dataset=train.cache.info.dataset,
      charges=charges,
      keys=train.keys,
      cache=train.cache.path,
    )
  ]
  if eval_rows is not None:
    requests += eval_rows.charge_requests()
  return requests


def epsilon_of_run(
  dataset: str,
  requests: Sequence[ChargeRequest],
  parent: SavedHead | None,
  delta: float,
) -> float:
  """Computes ε of everything that the run releases of the training data.

  These are all private heads, the head that they continue from, and noisy
  accuracies where the test rows belong to the same data set.

  Args:
    dataset: the name of the training data, by which its charges are known.
    requests: from `charge_requests`.
    parent: the head that is continued; None for new heads.
    delta: at which ε is stated.

  Returns:
    ε, rounded up.
  """
  # μ² adds up exactly, ε does not: it is computed once, of the sum.
  total = Fraction(spent_mu_squared(parent))
  for request in requests:
    if request.dataset == dataset:
      total += spent(request.charges)
  return accounting.epsilon_of(accounting.sum_mu_squared([total]), delta)


def spent_mu_squared(parent: SavedHead | None) -> float:
  """μ² of the head to continue from; 0 if there is none."""
  if parent is None:
    return 0.0
  return parent.trained.mu_squared or 0.0


def parent_charge_id(parent: SavedHead | None) -> str | None:
  """Returns the charge of the head to continue from, if there is one."""
  if parent is None:
    return None
  return parent.stated["charge"]
