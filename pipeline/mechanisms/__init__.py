"""The kinds of mechanism, each as a receipt states it."""

from typing import Any

from pipeline.mechanism import Mechanism
from pipeline.mechanisms.logistic import Logistic
from pipeline.mechanisms.one_step import OneStep
from pipeline.mechanisms.whitened import Whitened


def mechanism_of(section: dict[str, Any]) -> Mechanism:
  """Reads the receipt's section.

  Raises:
    KeyError, TypeError, ValueError: it is of no mechanism that we know.
  """
  kinds = {kind.KIND: kind for kind in (OneStep, Whitened, Logistic)}
  return kinds[section["kind"]].from_json(section)


__all__ = ["Logistic", "OneStep", "Whitened", "mechanism_of"]
