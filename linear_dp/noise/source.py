"""Random bits: the operating system's, or a seed's for research."""

import os
from collections.abc import Callable

import numpy as np
from jaxtyping import Shaped, UInt8, UInt64

from oneshot_dp.configs.errors import InputError


class NoiseSource:
  """Where random bits come from.

  Formal guarantees: with no seed, the operating system's cryptographic
  generator; the only source whose releases are private. A seed is for research:
  whoever knows it can subtract the noise, and `description` says so wherever
  it is written.

  >>> NoiseSource().description, NoiseSource(seed=0).description
  ('os.urandom', 'seeded: NOT PRIVATE')

  Args:
    seed: research only: the same bits every time; None is the operating
      system's generator.

  Attributes:
    is_private: False where there is a seed.
    drawn: how many 32-bit words were drawn; where the stream of a seed is.
  """

  def __init__(self, seed: int | None = None):
    if seed is not None and seed < 0:
      raise InputError(f"noise seed {seed} must not be negative.")
    self.is_private = seed is None
    self.drawn = 0
    self._read = (
      os.urandom if seed is None else np.random.Generator(_philox(seed)).bytes
    )

  @property
  def description(self) -> str:
    """What receipts, tables and plots call this source."""
    return "os.urandom" if self.is_private else "seeded: NOT PRIVATE"

  def words(self, count: int) -> UInt64[np.ndarray, " count"]:
    """`count` independent uniform 64-bit words."""
    return np.frombuffer(self._bytes(8 * count), np.uint64)

  def bits(self, count: int) -> UInt8[np.ndarray, " count"]:
    """`count` independent fair bits."""
    packed = np.frombuffer(self._bytes(-(-count // 8)), np.uint8)
    return np.unpackbits(packed, count=count)

  def once(
    self, name: str, make: Callable[[], Shaped[np.ndarray, "..."]]
  ) -> Shaped[np.ndarray, "..."]:
    """What a release lets out: `make()`, in which its noise is drawn.

    A training that outlives its process has a source that gives the same
    again, and draws nothing, where `make` has returned in an earlier one.

    `name` is that of the statistic.
    """
    del name
    return make()

  def skip_to(self, drawn: int) -> None:
    """Brings the stream of a seed to where it was; others have no place."""
    while not self.is_private and self.drawn < drawn:
      self._bytes(4 * min(drawn - self.drawn, 1 << 20))

  def _bytes(self, count: int) -> bytes:
    self.drawn += -(-count // 4)
    return self._read(count)


def _philox(seed: int) -> np.random.Philox:
  return np.random.Philox(np.random.SeedSequence(seed))
