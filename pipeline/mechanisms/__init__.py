"""The kinds of mechanism, each as a receipt states it."""

from typing import Any

from linear_dp.sampled_accounting import PoissonSampling
from pipeline.mechanism import Mechanism
from pipeline.mechanisms.least_squares import LeastSquares
from pipeline.mechanisms.logistic import Logistic
from pipeline.mechanisms.multi_step import MultiStep
from pipeline.mechanisms.one_step import OneStep
from pipeline.mechanisms.whitened import Whitened


def mechanism_of(section: dict[str, Any]) -> Mechanism:
  """Reads the receipt's section.

  Raises:
    KeyError, TypeError, ValueError: it is of no mechanism that we know.
  """
  known = (OneStep, Whitened, LeastSquares, MultiStep, Logistic)
  kinds = {kind.KIND: kind for kind in known}
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
