r"""An attack on what `train` runs: canaries that are there or not, and guesses.

A canary is a row (or a unit of several) that is in the data by the toss of a
fair coin. The adversary sees all that the door let out, knows the code and the
claim, and scores each canary by the likelihood ratio of being there or not:

    s_i = Σ_r (⟨V_r − others, a_ir⟩ − ‖a_ir‖²/2)/σ_r²

where V_r is release r, of noise multiplier σ_r, and a_ir what canary i adds to
it. Of made-up rows the adversary knows all coins but one, so `others` is exact.
Among real rows it knows neither rows nor coins: it looks where rows are zeros,
so the scores are post-processing of what was paid for.

jax_privacy's `CanaryScoreAuditor` turns guesses ("there", where s_i > 0) into
lower bounds of ε. What is far below the claim proves nothing.

Source: Nasr et al., "Tight auditing of differentially private machine learning"
(2023); Mahloujifar et al., "Auditing f-differential privacy in one run" (2024).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Float64
from scipy import stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadName, HeadOptions
from oneshot_dp.linear_dp.accounting import mu_squared
from oneshot_dp.linear_dp.data import Block, Data, R
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows
from oneshot_dp.linear_dp.statistics import ONE_COLUMN, class_sums
from oneshot_dp.linear_dp.train import HEADS

_LENGTH = 100.0
"""A canary's norm: far more than any row is clipped to."""
_CHANCE = 1e-6
"""Of each test for a pattern in the noise, if there is none."""
Block_ = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
  """Rows of random directions, in `dim` features of their own.

  Attributes:
    count: m.
    dim: c; canaries that share features hide one another a little.
    num_classes: K; canary i is of class i mod K.
    before: features of real rows, which canaries have as zeros.
    rows_each: rows of a canary, alike, which are one unit if more than one.
    unit: the privacy unit's name.
  """

  count: int
  dim: int
  num_classes: int
  before: int = 0
  rows_each: int = 1
  unit: str = "example"

  def block(self, coins: Bool[np.ndarray, " m"], first_id: int) -> Block_:
    """The rows: of zeros where a coin says that a canary is not there."""
    draw = np.random.default_rng(0).standard_normal((self.count, self.dim))
    draw *= _LENGTH / np.linalg.norm(draw, axis=1, keepdims=True)
    at = np.repeat(np.arange(self.count), self.rows_each)
    embedding = np.zeros((len(at), self.before + self.dim), np.float32)
    embedding[:, self.before :] = np.where(coins[:, None], draw, 0)[at]
    norm = np.linalg.norm(embedding.astype(np.float64), axis=1)
    columns = {
      "embedding": embedding,
      "embedding_norm": norm.astype(np.float32),
      "label": (at % self.num_classes).astype(np.int32),
      "example_id": first_id + np.arange(len(at)),
    }
    if self.unit != "example":
      columns["unit_id"] = -1 - at  # of no real unit: those are not negative
    return columns

  def among(self, coins: Bool[np.ndarray, " m"], real: Data | None) -> Data:
    """Canaries alone, or behind the real rows, which get zeros."""

    def blocks() -> Iterator[Block]:
      last = -1
      for block in () if real is None else real.blocks():
        wide = np.pad(
          np.asarray(block["embedding"], np.float32), [(0, 0), (0, self.dim)]
        )
        last = max(last, int(block["example_id"].max(initial=-1)))
        yield {**block, "embedding": wide}
      yield self.block(coins, last + 1)

    return Data(
      blocks=blocks,
      n=self.count * self.rows_each + (0 if real is None else real.n),
      feature_dim=self.before + self.dim,
      num_classes=self.num_classes,
      unit=self.unit,
    )


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class _Followed(Rows):
  """Rows, and beside them the canaries alone, which maps go over as well."""

  canaries: Rows
  real_space: Float64[np.ndarray, "p b"] | None = None

  @classmethod
  def of(cls, rows: Rows, canaries: Rows, space: Any = None) -> "_Followed":
    fields = {f.name: getattr(rows, f.name) for f in dataclasses.fields(Rows)}
    return cls(**fields, canaries=canaries, real_space=space)

  def mapped(self, centre: Any, matrix: Any) -> "_Followed":
    behind = np.eye(len(centre)) if matrix is None else matrix
    space = None
    if self.real_space is not None:  # where images of real rows lie
      spanned = [self.real_space.T @ behind, (centre @ behind)[None]]
      space = np.linalg.qr(np.concatenate(spanned).T)[0]
    canaries = self.canaries.mapped(centre, matrix)
    return _Followed.of(super().mapped(centre, matrix), canaries, space)


class Seen(NamedTuple):
  """A release, and what each canary adds to it if it is there: left ⊗ row."""

  name: str
  value: Float64[np.ndarray, "q p"]
  noise: float
  left: Float64[np.ndarray, "m q"]
  row: Float64[np.ndarray, "m p"]


class _Watched(PrivateSums):
  """The door, whose every release is seen."""

  def __init__(self, source: NoiseSource, paid: Any):
    super().__init__(source, paid)
    self.seen: list[Seen] = []

  def release(
    self, name: str, rows: Any, left: Any, buys: float, *public: Any, **how: Any
  ) -> tuple[Float64[np.ndarray, "q p"], float]:
    value, noise = super().release(name, rows, left, buys, *public, **how)
    added = _added(rows, left, public)
    self.seen.append(Seen(name, value, noise, *added))
    return value, noise


def _added(
  rows: _Followed, left: Any, public: Sequence[Any]
) -> tuple[Float64[np.ndarray, "m q"], Float64[np.ndarray, "m p"]]:
  """What canaries add, by the code that adds it."""
  lefts, rights = [], []
  weight = rows.data.weight
  for chunk in rows.canaries.chunks():
    there = np.asarray(chunk.weight) > 0
    if left is class_sums:
      one_hot = np.eye(rows.num_classes)[np.asarray(chunk.label)]
      a = one_hot * np.asarray(chunk.weight)[:, None]
    else:
      with jax.enable_x64(True):
        a = np.trunc(np.asarray(left(*chunk, *public), np.float64))
    z = np.asarray(chunk.row, np.float64) / R
    z = np.ones((len(z), 1)) if left in ONE_COLUMN else z
    if rows.real_space is not None and left not in ONE_COLUMN:
      z = z - (z @ rows.real_space) @ rows.real_space.T
    lefts.append(a[there] / weight)
    rights.append(z[there])
  return np.concatenate(lefts), np.concatenate(rights)


def one_run(
  head: HeadName,
  epsilon: float,
  delta: float,
  canaries: Canaries,
  coins: Bool[np.ndarray, " m"],
  source: NoiseSource,
  real: Data | None = None,
  options: HeadOptions | None = None,
) -> list[Seen]:
  """All that one training lets out, beside what canaries add to it.

  Formal guarantees: that of `train`, for every outcome of the coins, with n the
  real rows and the canaries; the head is thrown away. Charged before, by the
  caller, with real rows.
  """
  buys = mu_squared(epsilon, delta)
  sums = _Watched(source, buys)
  rows = HEADS[head].rows(canaries.among(coins, real))
  everyone = canaries.among(np.ones(canaries.count, bool), None)
  alone = HEADS[head].rows(everyone)
  space = (
    None if real is None else np.eye(rows.feature_dim)[:, : real.feature_dim]
  )
  followed = _Followed.of(rows, alone, space)
  HEADS[head].make(sums, followed, buys, 0.0, {}, options or HeadOptions())
  return sums.seen


def scores_of(
  seen: Sequence[Seen], coins: Bool[np.ndarray, " m"], *, knows_others: bool
) -> Float64[np.ndarray, " m"]:
  """The log of how much likelier a canary is there than not; see the module.

  Of coins that it does not know, the adversary takes off their mean, a half.
  """
  total = np.zeros(len(coins))
  shares = coins.astype(float) if knows_others else np.full(len(coins), 0.5)
  for each in seen:
    size = (each.left**2).sum(axis=1) * (each.row**2).sum(axis=1)
    rest = each.value - (each.left * shares[:, None]).T @ each.row
    score = np.einsum("mq,qp,mp->m", each.left, rest, each.row, optimize=True)
    total += (score + shares * size - size / 2) / each.noise**2
  return total


def faults_of(
  seen: Sequence[Seen], coins: Bool[np.ndarray, " m"], weight: int
) -> list[str]:
  """Patterns in the noise, which is known where all rows are: each hides less.

  Off its grid of integers; a deviation that is not the claimed one; noise that
  classes, coordinates or releases share.
  """
  found, before = [], {}
  for each in seen:
    exact = (each.left * coins[:, None]).T @ each.row
    noise = (each.value - exact) / each.noise
    steps = each.value * (weight * R)
    if np.abs(steps - np.rint(steps)).max() > 1e-3 * np.abs(steps).max() + 0.01:
      found.append(f"{each.name}: noise is not rounded to integers")
    if noise.size >= 30:
      square = float((noise**2).sum())
      if not _CHANCE < stats.chi2.cdf(square, noise.size) < 1 - _CHANCE:
        sd = (square / noise.size) ** 0.5
        found.append(f"{each.name}: noise is {sd:.3g} times what is claimed")
    rows = list(noise) if noise.shape[1] >= 30 else []
    pairs = [(rows[0], row, "classes") for row in rows[1:]]
    if (last := before.get(noise.shape)) is not None and noise.size >= 30:
      pairs.append((last.ravel(), noise.ravel(), "releases"))
    for one, other, who in pairs:
      if stats.pearsonr(one, other).pvalue < _CHANCE:
        found.append(f"{each.name}: {who} share noise")
        break
    before[noise.shape] = noise
  return list(dict.fromkeys(found))


class Bounds(NamedTuple):
  """Lower bounds of ε at δ, at a confidence, each of fewer assumptions."""

  gaussian: float
  """If each canary's score is of a mechanism that is Gaussian DP."""
  one_run: float
  """The same, whatever the canaries of one run have to do with each other."""
  auroc: float


def bounds_of(
  scores: Float[np.ndarray, " s"],
  coins: Bool[np.ndarray, " s"],
  delta: float,
  confidence: float = 0.95,
) -> Bounds:
  """What guesses prove; the threshold, 0, was fixed before.

  InputError: all coins fell alike.
  """
  from jax_privacy.auditing import CanaryScoreAuditor, Explicit

  if coins.all() or not coins.any():
    raise InputError("all coins fell alike: give more --canaries.")
  guessed = (scores > 0).astype(float)
  by_guess = CanaryScoreAuditor(guessed[coins], guessed[~coins])
  by_score = CanaryScoreAuditor(scores[coins], scores[~coins])
  threshold = float(np.quantile(scores, 0.95))
  significance = 1 - confidence
  return Bounds(
    gaussian=float(by_guess.epsilon_from_gdp(significance, delta)),
    one_run=float(
      by_score.epsilon_one_run_fdp(
        significance, delta, threshold_strategy=Explicit(threshold)
      )
    ),
    auroc=float(by_score.attack_auroc()),
  )


def audit_made_up(
  head: HeadName,
  epsilon: float,
  delta: float,
  source: NoiseSource,
  *,
  runs: int = 10,
  canaries: Canaries,
  confidence: float = 0.95,
  options: HeadOptions | None = None,
) -> tuple[Bounds, list[str]]:
  """Attacks heads of canaries alone: no private row, and no charge."""
  scores, tossed, faults = [], [], []
  toss = np.random.default_rng()
  for _ in range(runs):
    coins = toss.random(canaries.count) < 0.5
    seen = one_run(
      head, epsilon, delta, canaries, coins, source, options=options
    )
    scores.append(scores_of(seen, coins, knows_others=True))
    weight = canaries.among(coins, None).weight
    faults += faults_of(seen, coins, weight)
    tossed.append(coins)
  bounds = bounds_of(
    np.concatenate(scores), np.concatenate(tossed), delta, confidence
  )
  return bounds, list(dict.fromkeys(faults))


def report(
  claim: float, delta: float, bounds: Bounds, faults: Sequence[str], count: int
) -> tuple[str, Mapping[str, Any], str]:
  """Lines for people, facts for machines, and what is wrong, "" if nothing."""
  lines = [
    f"claim        epsilon {claim:g} at delta {delta:g}",
    f"lower bound  {bounds.gaussian:.4f}, {bounds.gaussian / claim:.2f} of the"
    f" claim, of {count:,} canaries (Gaussian DP)",
    f"             {bounds.one_run:.4f} whatever canaries share (one run)",
    f"attack       area under the ROC curve {bounds.auroc:.4f}",
  ]
  worst = max(bounds.gaussian, bounds.one_run)
  wrong = list(faults)
  if worst > claim:
    wrong.append(f"epsilon is at least {worst:.4g}, not {claim:g}")
  facts = {
    "epsilon": claim,
    "delta": delta,
    "canaries": count,
    "lower_bound": bounds.gaussian,
    "lower_bound_one_run": bounds.one_run,
    "auroc": bounds.auroc,
    "faults": wrong,
  }
  return "\n".join(lines), facts, "; ".join(wrong)
