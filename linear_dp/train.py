"""Rows → private heads, the smallest ε first; all together cost the largest."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadName, HeadOptions
from oneshot_dp.linear_dp.accounting import epsilon_of, mu_squared_from_epsilon
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.heads.auto import auto
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.heads.one_step import (
  OPTIMIZERS,
  clipped_rows,
  one_step,
)
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums, Release
from oneshot_dp.linear_dp.rows import Rows, rows_of

_MOST_WEIGHTS = 2**31 - 1
_LEAST_STEP, _LEAST_MU_SQUARED = 1e-6, 2.0**-36
"""What a head buys at least, as a part of all and by itself: the noise of its
smallest share is below `noise.MAX_SD` then."""


class Head(NamedTuple):
  """How a head sees rows, and (sums, rows, buys, had, last, options) → it.

  `rows` are for any number of `train`s; what is wrong with one is told by
  `Rows.validate`, before any charge.
  """

  rows: Callable[[PrivateDataset], Rows]
  make: Callable[..., tuple[LinearHead, Mapping[str, np.ndarray]]]


HEADS: Mapping[str, Head] = {
  "auto": Head(functools.partial(rows_of, keep=True), auto)
} | {
  name: Head(clipped_rows, functools.partial(one_step, optimizer=optimizer))
  for name, optimizer in OPTIMIZERS.items()
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainedHead:
  """A head, and all that is to be said of it.

  Attributes:
    head, name: the weights, and how they are made.
    epsilon, delta: of all releases so far; None for a baseline.
    draw: which of several heads of one ε, from 0.
    mu_squared: what all releases so far cost together, at most; None likewise.
    releases: all so far, with those of the head that it went on from.
    state: what a larger ε goes on from, all public: "estimate/KEY" and
      "precision/KEY" of each statistic, and "kernel", "length" of `auto`.
    options, noise_source: as receipts say them.
    private: False for a baseline, or noise of a seed.
  """

  head: LinearHead
  name: HeadName
  epsilon: float | None = None
  delta: float | None = None
  draw: int = 0
  mu_squared: float | None = None
  releases: tuple[Release, ...] = ()
  state: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  options: Mapping[str, Any]
  noise_source: str
  private: bool


def cost(
  epsilons: Sequence[float], delta: float, already: Fraction | float = 0.0
) -> Fraction:
  """μ² to charge before one head and draw of all these ε: the largest's.

  Less what the head that is gone on from has `already`. InputError: an ε that
  is no guarantee, given twice, or no more than that head has.
  """
  if not epsilons or len(set(epsilons)) != len(epsilons):
    raise InputError(f"epsilons={[*epsilons]}: give one or more, each once.")
  bought = [
    mu_squared_from_epsilon(epsilon, delta) for epsilon in sorted(epsilons)
  ]
  if bought[0] <= float(already) * (1 + 1e-10):  # whose σ are rounded up
    has = epsilon_of(float(already), delta)
    raise InputError(
      f"epsilon={min(epsilons):g} is no more than the head to go on from has"
      f" at delta={delta:g}, {has:.4g}: give a larger one."
    )
  steps = np.diff([float(already), *bought])
  if steps.min() < max(_LEAST_STEP * bought[-1], _LEAST_MU_SQUARED):
    raise InputError(
      f"epsilons={sorted(epsilons)}: one is too small, or too near to what is"
      " below it, for noise that int64 has room for: leave it out."
    )
  return Fraction(bought[-1]) - Fraction(already)


def check_plan(
  *,
  head: str,
  n: int,
  feature_dim: int,
  num_classes: int,
  options: HeadOptions,
  before: TrainedHead | None = None,
) -> None:
  """InputError for what no head can be trained by, from public facts alone."""
  asked = {name: value for name, value in options.as_json().items() if value}
  message, sizes = "", f"{num_classes} classes of {feature_dim} features"
  if head not in HEADS:
    message = f"head={head!r} must be one of {', '.join(HEADS)}."
  elif asked and head != "auto":
    of = " and ".join(name.removesuffix("_sha256") for name in asked)
    message = f"{of} is for head 'auto', not for {head!r}; leave it out."
  elif n < 1:
    message = "there are no rows to train on: choose another part."
  elif num_classes * feature_dim > _MOST_WEIGHTS:
    message = f"{sizes} are too many weights: use a smaller embedding."
  elif before and before.mu_squared is None:
    message = "a baseline has nothing to go on from: leave out --from."
  elif before and before.name != head:
    message = f"--from needs the same kind of head: give --head {before.name}."
  elif before and not asked.items() <= dict(before.options).items():
    message = f"the head to go on from has {before.options}, not {asked}."
  if message:
    raise InputError(message)


def train(
  rows: Rows,
  *,
  head: HeadName,
  epsilons: Sequence[float],
  delta: float,
  paid: Fraction | float,
  source: NoiseSource,
  options: HeadOptions | None = None,
  draw: int = 0,
  before: TrainedHead | None = None,
) -> Iterator[TrainedHead]:
  """A head for each ε, the smallest first.

  Each larger ε buys what its μ² has more, and adds it to what is known.

  Formal guarantees: the head of each ε is (ε, δ)-DP in REPLACE_SPECIAL, and all
  together are as private as that of the largest: all that left are Gaussian
  mechanisms whose μ² add up to no more than `paid`, which the door refuses to
  exceed, and that of `before`. Each may depend on the results of those before
  (Smith & Thakurta, "Fully adaptive composition for Gaussian differential
  privacy", 2022). Whether it fails does not depend on the noise.

  `rows` are `HEADS[head].rows(data)`; `before` is a head of the same rows to go
  on from, with its options; and `cost(...)` was `paid` before.
  """
  options = options or HeadOptions()
  had, last, known = 0.0, {}, {}
  stated, earlier = options.as_json(), ()
  if before is not None:
    had, stated = before.mu_squared or 0.0, before.options
    earlier = before.releases
    options = HeadOptions(balanced=bool(stated.get("balanced")))
    for name, value in before.state.items():
      kind, _, key = name.partition("/")
      if kind == "estimate":
        known[key] = value, before.state[f"precision/{key}"].item()
      elif not key:
        last[name] = value
  sums = PrivateSums(source, paid, known)
  for epsilon in sorted(epsilons):
    so_far = mu_squared_from_epsilon(epsilon, delta)
    made, last = HEADS[head].make(sums, rows, so_far - had, had, last, options)
    had, state = so_far, dict(last)
    for key, (estimate, precision) in sums.estimates.items():
      state[f"estimate/{key}"] = estimate
      state[f"precision/{key}"] = np.array(precision)
    yield TrainedHead(
      head=made,
      name=head,
      epsilon=float(epsilon),
      delta=float(delta),
      draw=draw,
      mu_squared=so_far,
      releases=(*earlier, *sums.releases),
      state=state,
      options=stated,
      noise_source=source.description,
      private=source.is_private,
    )


def baseline(
  rows: Rows, head: HeadName, options: HeadOptions | None = None
) -> TrainedHead:
  """The head without noise: **NOT PRIVATE**, to compare with."""
  options = options or HeadOptions()
  sums = PrivateSums(None, 0.0)
  made, _ = HEADS[head].make(sums, rows, math.inf, 0.0, {}, options)
  said = {"options": options.as_json(), "noise_source": "no noise"}
  # Without state, which would be exact.
  return TrainedHead(head=made, name=head, private=False, **said)


def memory_needed(
  head: HeadName,
  n: int,
  feature_dim: int,
  num_classes: int,
  unit: str,
  shard_rows: int = 0,
) -> int:
  """About the bytes that training holds at most, from public facts.

  Measured: 12 times the weights [K, d] in 8 bytes, 11 times a moment [d, d];
  rows of `auto` twice, where they fit; a mean row of 8 bytes a row of a unit;
  96 bytes for the keys of a row, of 2^23 rows at most; 16 for its id; 24 shards
  of a cache, of `shard_rows`, 4 of which are read at once.
  """
  d, k = feature_dim, num_classes
  needed = 450 * 2**20 + 96 * k * d + 96 * min(n, 2**23) + 16 * n
  needed += 24 * shard_rows * (4 * d + 32)
  if unit != "example":
    needed += 18 * n * d
  if head == "auto":
    logits = 64 * k * max(1024, 2**20 // k)
    needed += 88 * d * d + 2 * min(2 * n * d, 2**33) + logits
  return needed
