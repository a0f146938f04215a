"""Rows in clusters, heads of `auto` made of them, and what a head released."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from oneshot_dp.configs.head_config import HeadOptions, PublicStart
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.heads.auto import auto
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import rows_of

K = 4
D = 10
CENTERS = np.random.default_rng(0).standard_normal((K, D))
START = PublicStart.of(CENTERS, num_classes=K, feature_dim=D)


def clusters(n, seed=1, spread=1.0):
  """Embeddings [n, D] about the centers of their classes, and labels [n]."""
  rng = np.random.default_rng(seed)
  label = rng.integers(0, K, n)
  x = CENTERS[label] + spread * rng.standard_normal((n, D)) + 1.0
  return x.astype(np.float32), label


def rows_of_clusters(n=1000, rows_per_unit=None):
  """The rows of `clusters`, as a head is given them."""
  unit_ids = None
  if rows_per_unit:
    unit_ids = np.arange(n) // rows_per_unit
  data = dataset_from_arrays(*clusters(n), num_classes=K, unit_ids=unit_ids)
  return rows_of(data, keep=True)


class Observation(NamedTuple):
  """One release: what it was of, what was public of it, and what came out."""

  name: str
  mu_squared: float
  public: tuple
  estimate: np.ndarray

  @property
  def kernel(self):
    """The weights that a gradient was computed at."""
    integers, step = self.public[:2]
    return integers * step * ROW_NORM


class ObservedSums(PrivateSums):
  """The mechanism itself, which remembers what it was asked and said."""

  def __init__(self, *args):
    super().__init__(*args)
    self.observations = []

  def release(
    self, name, rows, statistic, *, mu_squared, public: tuple = (), cache=True
  ):
    estimate, noise = super().release(
      name, rows, statistic, mu_squared=mu_squared, public=public, cache=cache
    )
    seen = Observation(name, mu_squared, public, estimate)
    self.observations.append(seen)
    return estimate, noise

  def all_of(self, name):
    """The observations of this name, in the order of the releases."""
    return [seen for seen in self.observations if seen.name == name]

  def only(self, name):
    """The observation of this name, of which there is one."""
    (seen,) = self.all_of(name)
    return seen


def make_head(sums, rows, new_mu_squared, *, spent=0.0, state=None, **options):
  """Calls `auto` with what a head needs when it continues none."""
  return auto(
    sums,
    rows,
    new_mu_squared=new_mu_squared,
    spent_mu_squared=spent,
    state=state,
    options=HeadOptions(**options),
  )


def observe_head(rows, mu_squared, **options):
  """Returns the mechanism after one head with noise, and the head."""
  sums = ObservedSums(NoiseSource(3), mu_squared)
  head = make_head(sums, rows, mu_squared, **options).head
  return sums, head


def mu_squared_of(releases):
  """Σ σ⁻², exactly: a sum of floats could hide what is over the budget."""
  total = Fraction(0)
  for release in releases:
    total += Fraction(release.noise_multiplier) ** -2
  return total
