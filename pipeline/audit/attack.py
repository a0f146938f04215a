r"""An attack on what `train` runs: canaries that are there or not, and guesses.

A canary is a row (or a unit of several) that is in the data by the toss of a
fair coin. The adversary sees all that the door let out, knows the code and the
claim, and scores each canary by the likelihood ratio of being there or not:

    s_i = Σ_r (⟨V_r − others, a_ir⟩ − ‖a_ir‖²/2)/σ_r²

where V_r is release r, of noise multiplier σ_r, and a_ir what canary i adds to
it. Of made-up rows the adversary knows all coins but one, so `others` is exact.
Among real rows it knows neither rows nor coins: it looks where rows are zeros,
so the scores are post-processing of what was paid for.

Guesses ("there", where s_i > 0) become lower bounds of ε, one of them by
jax_privacy's `CanaryScoreAuditor`. What is far below the claim proves nothing.

Source: Nasr et al., "Tight auditing of differentially private machine learning"
(2023); Mahloujifar et al., "Auditing f-differential privacy in one run" (2024).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float64
from scipy import stats

from oneshot_dp.configs.head_config import HeadName, HeadOptions
from oneshot_dp.linear_dp.accounting import epsilon_of, mu_squared_from_epsilon
from oneshot_dp.linear_dp.dataset import Block, PrivateDataset
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import Chunk, Rows
from oneshot_dp.linear_dp.statistics import RowStatistic, class_sums

_LENGTH = 100.0  # a canary's norm: far more than any row is cut to
_CHANCE, _DEVIATIONS, _ENOUGH = 1e-7, 5.5, 100
"""A pattern is so rare by chance, or so many sd off, of so many numbers."""
_ERROR = 0.05  # of each bound
Coins = Bool[np.ndarray, " m"]
Scores = Float64[np.ndarray, " m"]


class Claim(NamedTuple):
  """What is attacked: a head, and how private it is said to be."""

  head: HeadName
  epsilon: float
  delta: float
  balanced: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
  """Rows of random directions, in features of their own.

  Attributes:
    count: m.
    dim: c, how many features; canaries hide one another a little there.
    num_classes: K; canary i is of class i mod K.
    rows_each: rows of a canary, alike, which are one unit if more than one.
    real: rows that they come after, in features behind theirs.
  """

  count: int
  dim: int
  num_classes: int
  rows_each: int = 1
  real: PrivateDataset | None = None

  def data(self, coins: Coins, *, alone: bool = False) -> PrivateDataset:
    """The rows: of zeros where a coin says that a canary is not there."""
    before, n, unit = 0, 0, "example" if self.rows_each == 1 else "unit"
    if (real := self.real) is not None:
      before, n, unit = real.feature_dim, real.n, real.unit
    draw = np.random.default_rng(0).standard_normal((self.count, self.dim))
    draw *= _LENGTH / np.linalg.norm(draw, axis=1, keepdims=True)
    draw = np.pad(np.where(coins[:, None], draw, 0), [(0, 0), (before, 0)])
    at = np.repeat(np.arange(self.count), self.rows_each)
    embedding = draw.astype(np.float32)[at]
    lowest = np.iinfo(np.int64).min  # of no real row or unit, and in order
    columns = {
      "embedding": embedding,
      "embedding_norm": np.linalg.norm(draw[at], axis=1).astype(np.float32),
      "label": (at % self.num_classes).astype(np.int32),
      "example_id": lowest + np.arange(len(at)),
    }
    if unit != "example":
      columns["unit_id"] = lowest + at

    def blocks() -> Iterator[Block]:
      for block in () if real is None or alone else real.blocks():
        wide = np.asarray(block["embedding"], np.float32)
        yield {**block, "embedding": np.pad(wide, [(0, 0), (0, self.dim)])}
      yield columns

    n, d, k = n + len(at), before + self.dim, self.num_classes
    return PrivateDataset(
      blocks=blocks, n=n, feature_dim=d, num_classes=k, unit=unit
    )


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Followed(Rows):
  """Rows, and beside them all canaries alone, which maps go over as well.

  Attributes:
    alone: rows of all canaries, there or not.
    count: m.
    real_space: where images of real rows lie, [p, b]; None without real rows.
  """

  alone: Rows
  count: int
  real_space: Float64[np.ndarray, "p b"] | None

  def mapped(self, center: Any, matrix: Any) -> "Followed":
    space = self.real_space
    if space is not None:
      behind = np.eye(len(center)) if matrix is None else matrix
      spanned = [space.T @ behind, (center @ behind)[None]]
      space = np.linalg.qr(np.concatenate(spanned).T)[0]
    rows = vars(super().mapped(center, matrix))
    alone = self.alone.mapped(center, matrix)
    return Followed(**rows, alone=alone, count=self.count, real_space=space)

  @functools.cached_property
  def directions(self) -> Float64[np.ndarray, "m p"]:
    """The rows of canaries at norm 1, but for where real rows lie."""
    z = self._of_canaries(lambda chunk: chunk.row)[:, 0] / ROW_NORM  # alike
    space = self.real_space
    return z if space is None else z - (z @ space) @ space.T

  def added(
    self, left: RowStatistic, public: Sequence[Any]
  ) -> tuple[Float64[np.ndarray, "m q"], Float64[np.ndarray, "m p"]]:
    """What each canary adds to a sum, left ⊗ row, by the code that adds it."""
    if left is class_sums:  # the door knows all classes
      public = (np.arange(self.data.num_classes),)

    def weighed(chunk: Chunk) -> np.ndarray:
      with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, (*chunk, *public))
        return np.trunc(np.asarray(left(*given), np.float64))

    row = self.directions
    if left.one_column:  # real rows hide canaries there
      row = np.full((self.count, 1), float(self.real_space is None))
    return self._of_canaries(weighed).sum(axis=1) / self.data.weight, row

  def _of_canaries(
    self, of: Callable[[Chunk], Any]
  ) -> Float64[np.ndarray, "m rows width"]:
    found = [
      np.asarray(of(chunk), np.float64)[np.asarray(chunk.weight) > 0]
      for chunk in self.alone.chunks()
    ]
    together = np.concatenate(found)
    return together.reshape(self.count, -1, together.shape[1])


class Seen(NamedTuple):
  """A release, and what each canary adds to it if it is there: left ⊗ row."""

  name: str
  value: Float64[np.ndarray, "q p"]
  noise: float
  left: Float64[np.ndarray, "m q"]
  row: Float64[np.ndarray, "m p"]


class _Watched(PrivateSums):
  """The door, whose every release is seen."""

  def __init__(self, paid: float):
    super().__init__(NoiseSource(), paid)
    self.seen: list[Seen] = []

  def release(
    self,
    name: str,
    rows: Any,
    statistic: RowStatistic,
    *,
    mu_squared: float,
    public: tuple[Any, ...] = (),
    cache: bool = True,
  ) -> tuple[Float64[np.ndarray, "q p"], float]:
    value, noise = super().release(
      name, rows, statistic, mu_squared=mu_squared, public=public, cache=cache
    )
    self.seen.append(Seen(name, value, noise, *rows.added(statistic, public)))
    return value, noise


def tossed(canaries: Canaries, head: HeadName) -> tuple[Followed, Coins]:
  """The rows as a head sees them, not read yet, and the coins."""
  coins = np.random.default_rng().random(canaries.count) < 0.5
  everyone = canaries.data(np.ones(canaries.count, bool), alone=True)
  rows, alone = map(HEADS[head].prepare_rows, (canaries.data(coins), everyone))
  space = canaries.real and np.eye(rows.feature_dim, canaries.real.feature_dim)
  known: Any = {"alone": alone, "count": canaries.count, "real_space": space}
  return Followed(**vars(rows), **known), coins


def attacked(rows: Followed, claim: Claim) -> list[Seen]:
  """All that one training lets out, beside what canaries add to it.

  Formal guarantees: that of `train`, whatever the coins, with n the real rows
  and the canaries; of real rows it is to be charged before.
  """
  sums = _Watched(buys := mu_squared_from_epsilon(claim.epsilon, claim.delta))
  options = HeadOptions(balanced=claim.balanced)
  HEADS[claim.head].make(
    sums,
    rows,
    new_mu_squared=buys,
    spent_mu_squared=0.0,
    state=None,
    options=options,
  )
  return sums.seen


def scores_of(seen: Sequence[Seen], shares: Scores) -> Scores:
  """s_i; of others `shares` are taken off: coins, or halves of unknown ones."""
  total = np.zeros(len(shares))
  for each in seen:
    size = (each.left**2).sum(axis=1) * (each.row**2).sum(axis=1)
    rest = each.value - (each.left * shares[:, None]).T @ each.row
    score = ((each.left @ rest) * each.row).sum(axis=1)
    total += (score + shares * size - size / 2) / each.noise**2
  return total


def faults_of(seen: Sequence[Seen], coins: Coins, weight: int) -> list[str]:
  """Patterns in the noise, which is known where all rows are: it hides less."""
  found, last = [], np.zeros(0)
  for each in seen:
    exact = (each.left * coins[:, None]).T @ each.row
    noise = (each.value - exact) / each.noise
    steps = each.value * (weight * ROW_NORM)
    if (abs(steps - np.rint(steps)) > abs(steps).max() * 2.0**-50).any():
      found.append(f"{each.name}: noise is not rounded to integers")
    sd, size = float((noise**2).mean()) ** 0.5, noise.size
    chance = stats.chi2.cdf(sd**2 * size, size)
    if size >= _ENOUGH and not _CHANCE < chance < 1 - _CHANCE:
      found.append(f"{each.name}: noise is {sd:.3g} times what is claimed")
    if any(_alike(noise[0], other) for other in noise[1:]):
      found.append(f"{each.name}: classes share noise")
    if _alike(last, noise.ravel()):
      found.append(f"{each.name}: shares noise with what left before")
    last = noise.ravel()
  return found


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
  """Whether the numbers that both begin with go together."""
  n = min(len(one), len(other))
  a, b = one[:n], other[:n]
  limit = _DEVIATIONS * (a @ a * (b @ b) / max(n, 1)) ** 0.5
  return n >= _ENOUGH and bool(abs(a @ b) > limit)


class Bounds(NamedTuple):
  """Lower bounds of ε at δ, 95 % sure, and how good the attack was."""

  gaussian: float  # if releases are, and guesses fail independently
  blind: float  # if releases are; by guesses that know no coin
  auroc: float


def bounds_of(
  scores: Scores, blind: Scores, coins: Coins, delta: float
) -> Bounds:
  """What guesses prove; thresholds, 0 and the best twentieth, know no coin."""
  from jax_privacy.auditing import CanaryScoreAuditor, Explicit

  auditor = CanaryScoreAuditor(scores[coins], scores[~coins])
  of_blind = CanaryScoreAuditor(blind[coins], blind[~coins])
  best = Explicit(float(np.quantile(blind, 0.95)))
  one_run = of_blind.epsilon_one_run_fdp(_ERROR, delta, threshold_strategy=best)
  gaussian = _from_guesses(scores > 0, coins, delta)
  return Bounds(gaussian, float(one_run), float(auditor.attack_auroc()))


def _from_guesses(there: Coins, coins: Coins, delta: float) -> float:
  """ε of the least μ at which so many guesses are right, by exact intervals.

  Not jax_privacy's `epsilon_from_gdp`, of version 2.0: it takes |μ|, so the
  width of the intervals passes for a leak where guesses are few or μ is small.
  """
  hits, alarms = (
    stats.binomtest(int(each.sum()), len(each)).proportion_ci(1 - _ERROR)
    for each in (there[coins], there[~coins])
  )
  mu = float(stats.norm.ppf(hits.low) - stats.norm.ppf(alarms.high))
  return epsilon_of(mu**2, delta) if mu > 0 else 0.0


def audit_made_up(
  claim: Claim, canaries: Canaries, runs: int = 10
) -> tuple[Bounds, list[str]]:
  """Attacks heads of canaries alone: no private row, and no charge."""
  found, faults, halves = [], [], np.full(canaries.count, 0.5)
  for _ in range(runs):
    rows, coins = tossed(canaries, claim.head)
    seen = attacked(rows, claim)
    faults += faults_of(seen, coins, rows.data.weight)
    found.append((*(scores_of(seen, s) for s in (coins * 1.0, halves)), coins))
  scores, blind, coins = map(np.concatenate, zip(*found, strict=True))
  return bounds_of(scores, blind, coins, claim.delta), [*dict.fromkeys(faults)]
