"""Random bits: the operating system's, or a seed's for research."""

import os

import numpy as np
from jaxtyping import UInt8, UInt64

from oneshot_dp.configs.errors import InputError


class NoiseSource:
  """Where random bits come from.

  Formal guarantees: with no seed, the operating system's cryptographic
  generator; the only source whose releases are private. A seed is for research:
  whoever knows it can subtract the noise, and `description` says so wherever
  it is written.

  >>> NoiseSource().description, NoiseSource(seed=0).description
  ('os.urandom', 'seeded: NOT PRIVATE')
  """

  def __init__(self, seed: int | None = None):
    if seed is not None and seed < 0:
      raise InputError(f"noise seed {seed} must not be negative.")
    self.is_private = seed is None
    self._read = os.urandom
    if seed is not None:
      philox = np.random.Philox(np.random.SeedSequence(seed))
      self._read = np.random.Generator(philox).bytes

  @property
  def description(self) -> str:
    """What receipts, tables and plots call this source."""
    return "os.urandom" if self.is_private else "seeded: NOT PRIVATE"

  def words(self, count: int) -> UInt64[np.ndarray, " count"]:
    """`count` independent uniform 64-bit words."""
    return np.frombuffer(self._read(8 * count), np.uint64)

  def bits(self, count: int) -> UInt8[np.ndarray, " count"]:
    """`count` independent fair bits."""
    packed = np.frombuffer(self._read(-(-count // 8)), np.uint8)
    return np.unpackbits(packed, count=count)
