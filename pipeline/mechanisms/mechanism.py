"""What a head was made by, as its receipt states it."""

from typing import Any, Protocol, runtime_checkable

from dp_accounting import NeighboringRelation

AS_STORED = "embedding"
UNIT_NORM = "embedding / its L2 norm"
"""What the kernel of a head is multiplied with."""
UNCLIPPED = "nothing"
"""What is clipped where nothing bounds the influence of a row."""


@runtime_checkable
class Mechanism(Protocol):
  """A way to a head: all that its guarantee depends on, but the noise.

  `as_json` holds parameters and what follows from them; `from_json` reads the
  parameters only, so that comparing one with the other recomputes the rest.
  """

  def as_json(self) -> dict[str, Any]:
    """The receipt's section about it."""
    ...

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """In the units of the statement's noise_sd."""
    ...

  def training(self) -> dict[str, Any]:
    """Fields of the HeadConfig that it fixes."""
    ...

  def in_words(self, training: dict[str, Any]) -> str:
    """How the head was trained, for people."""
    ...
