r"""Which rows each step of a multi-step head sees, whatever they hold.

The random bits come from the source of the noise: what sampling saves assumes
that nobody knows who was taken.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import SamplingName
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.noise.source import NoiseSource

_GRID = 2**32
"""q, the probability of a row being taken, is a multiple of 2⁻³², exactly."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
  """Passes over the rows, in steps that see all or some of them.

  Formal guarantees: with Gaussian noise of multiplier σ_t in every step, T
  steps together are

  * "full": T Gaussian mechanisms on all rows;
  * "poisson": `poisson`, a row being in a step with probability q exactly,
    independently of all rows and steps;
  * "partition": `epochs` Gaussian mechanisms of σ_t, since a row is in exactly
    one batch of every epoch, which it chooses by itself (parallel composition;
    the noise hides the rest).

  The paper's batches have a fixed size, and are accounted for as though they
  were Poisson samples; "partition" is what of that can be proven.

  `batch_size`, n with "full", and `epochs` are averages.

  Source: Poisson: `accounting.events`. Partition: balls in bins, Chua et al.,
  "Balls-and-Bins Sampling for DP-SGD", 2024; McSherry, "Privacy Integrated
  Queries", 2009, for parallel composition.
  """

  sampling: SamplingName
  num_examples: int
  batch_size: int
  epochs: int

  def __post_init__(self):
    if not 1 <= self.batch_size <= self.num_examples:
      raise InputError(
        f"batch_size={self.batch_size} is not between 1 and the"
        f" {self.num_examples} rows."
      )
    if self.epochs < 1:
      raise InputError(f"epochs={self.epochs} must be at least 1.")
    if self.sampling == "full" and self.batch_size != self.num_examples:
      raise InputError(
        f"batch_size={self.batch_size} is not all rows: give a sampling."
      )
    if self.sampling == "partition" and self._parts == 1:
      raise InputError(
        f"batch_size={self.batch_size} leaves the {self.num_examples} rows in"
        " one part: leave it out for full batches, or give a smaller one."
      )

  @property
  def num_steps(self) -> int:
    """T."""
    if self.sampling == "poisson":
      return max(1, round(self.epochs * self.num_examples / self.batch_size))
    return self.epochs * self._parts

  @property
  def mean_size(self) -> float:
    """Rows of a step, on average: what a sum over them is divided by."""
    if self.sampling == "poisson":
      return self.probability * self.num_examples
    return self.num_examples / self._parts

  @property
  def probability(self) -> float:
    """q: of a row to be in a step."""
    if self.sampling == "poisson":
      return round(_GRID * self.batch_size / self.num_examples) / _GRID
    return round(_GRID / self._parts) / _GRID

  @property
  def poisson(self) -> PoissonSampling:
    """All steps, as Poisson samples."""
    return PoissonSampling(
      probability=self.probability, num_steps=self.num_steps
    )

  def step_noise_multiplier(self, noise_multiplier: float) -> float:
    """σ_t, rounded up, of a plan's σ, which with "poisson" is σ_t itself."""
    if self.sampling == "poisson":
      return noise_multiplier
    seen = self.num_steps if self.sampling == "full" else self.epochs
    return noise_multiplier * (math.sqrt(seen) * (1 + 2**-50))

  def chosen(
    self, source: NoiseSource, num_rows: int
  ) -> Iterator[Bool[np.ndarray, " n"] | None]:
    """The rows of every step, by their places; None is all of them."""
    match self.sampling:
      case "full":
        yield from itertools.repeat(None, self.num_steps)
      case "poisson":
        threshold = np.uint64(round(self.probability * _GRID))
        for _ in range(self.num_steps):
          # The upper half of a word is uniform on a grid of 2⁻³².
          yield source.words(num_rows) >> np.uint64(32) < threshold
      case "partition":
        for _ in range(self.epochs):
          # What is left of an epoch goes on with the parts that it began with.
          batch = source.once(
            "parts", lambda: source.words(num_rows) % np.uint64(self._parts)
          )
          for index in range(self._parts):
            yield batch == index

  @property
  def _parts(self) -> int:
    """Batches of an epoch, but for Poisson samples."""
    return round(self.num_examples / self.batch_size)
