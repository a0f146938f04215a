"""What a run costs each data set, exactly, before anything is charged."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.pipeline.heads.head_folder import SavedHead
from oneshot_dp.pipeline.ledger.entries import ChargeRequest, LedgerEntry
from oneshot_dp.pipeline.requests import TrainRequest
from oneshot_dp.pipeline.runs.cache_roles import CacheRole
from oneshot_dp.pipeline.runs.evaluation import EvalRows


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
  """
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
  """Lists what is charged: the training rows, then a private test set."""
  charges = tuple(job.charge for job in jobs)
  requests = [
    ChargeRequest(
      dataset=train.cache.info.dataset, charges=charges, keys=train.keys
    )
  ]
  if eval_rows is not None:
    requests += eval_rows.charge_requests()
  return requests


def epsilon_of_run(
  request: TrainRequest, mu_squared: Fraction, parent: SavedHead | None
) -> float:
  """Computes ε of all private heads of the run, and of the one before them."""
  num_draws = len(request.heads) * request.num_draws
  total = Fraction(spent_mu_squared(parent)) + num_draws * mu_squared
  return accounting.epsilon_of(
    accounting.sum_mu_squared([total]), request.delta
  )


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
