"""The kinds of mechanism, each as a receipt states it."""

from typing import Any

from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.pipeline.mechanisms.least_squares import LeastSquares
from oneshot_dp.pipeline.mechanisms.logistic import Logistic
from oneshot_dp.pipeline.mechanisms.mechanism import Mechanism
from oneshot_dp.pipeline.mechanisms.multi_step import MultiStep
from oneshot_dp.pipeline.mechanisms.one_step import OneStep
from oneshot_dp.pipeline.mechanisms.whitened import Whitened


def mechanism_of(section: dict[str, Any]) -> Mechanism:
  """Reads the receipt's section.

  Raises:
    KeyError, TypeError, ValueError: it is of no mechanism that we know.
  """
  known = (OneStep, Whitened, LeastSquares, MultiStep, Logistic)
  # Receipts of before say "one step".
  kinds = {"one step": OneStep} | {kind.KIND: kind for kind in known}
  return kinds[section["kind"]].from_json(section)


def sampling_of(mechanism: Mechanism) -> PoissonSampling | None:
  """The random batches that its noise multiplier is about, if any."""
  return mechanism.sampling if isinstance(mechanism, MultiStep) else None


__all__ = [
  "LeastSquares",
  "Logistic",
  "MultiStep",
  "OneStep",
  "Whitened",
  "mechanism_of",
  "sampling_of",
]
