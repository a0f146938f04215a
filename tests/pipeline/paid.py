"""What paid for an entry of a ledger, in numbers."""

import collections
from typing import Any

from oneshot_dp.linear_dp.accounting.events import Steps, parts_of
from oneshot_dp.pipeline.ledger.spending import event_of


def gaussians(entry: dict[str, Any]) -> dict[float, int]:
  """σ of each Gaussian mechanism, and how many; there is nothing else."""
  found, sampled = parts_of(event_of(entry))
  assert not sampled
  return dict(collections.Counter(found))


def samples(entry: dict[str, Any]) -> list[Steps]:
  """Steps on Poisson samples; there is nothing else."""
  found, sampled = parts_of(event_of(entry))
  assert not found
  return sampled
