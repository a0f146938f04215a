r"""What noisy releases say of each canary, and what it would add to them.

Whoever sees a release takes from it the numbers x_i that canary i alone can
have moved, in units of the noise that the release claims: with the canary they
are a_i + noise, without it noise. a_i follows from what was public before.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

from oneshot_dp.linear_dp.heads.own_noise import GRADIENT_SUM
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.row_gradient import SOFTMAX, Loss
from oneshot_dp.linear_dp.trainer import Released
from oneshot_dp.pipeline.audit.canaries import Canaries

_OFF_GRID = 2.0**-10
"""Steps from an integer at which float64 has not left it by its own errors."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
  """Numbers of each canary.

  Attributes:
    seen: x, less what stands in the place of a canary that is not there.
    response: a.
    is_of: which canaries the release says something of; None is all.
  """

  seen: Float[np.ndarray, "m q"]
  response: Float[np.ndarray, "m q"]
  is_of: Bool[np.ndarray, " m"] | None = None


def is_off_grid(released: Released) -> bool:
  """Whether a value is no integer of its grid, so that noise was not rounded.

  The low bits of floating-point noise say what it was added to (Mironov, CCS
  2012): no bound on ε is left then.
  """
  steps = released.value / released.grid_step
  return bool((np.abs(steps - np.rint(steps)) > _OFF_GRID).any())


def observe(
  released: Released, canaries: Canaries, coins: Bool[np.ndarray, " m"] | None
) -> Observation | None:
  """What a release says of each canary; None of a statistic of no one's own.

  Args:
    released: the release.
    canaries: the canaries.
    coins: which of them are there, for an adversary who knows all but one of
      these coins, and all other rows; None is one who knows of neither.
  """
  look = _LOOKS[released.name]
  return look(released, canaries, coins)


_Look = Callable[
  [Released, Canaries, Bool[np.ndarray, " m"] | None], Observation | None
]


def _clipped_sum(
  released: Released, canaries: Canaries, coins: np.ndarray | None
) -> Observation:
  del coins
  grid = released.at["grid"]
  column = canaries.feature.copy()
  if canaries.has_bias:
    column[-1] = canaries.width
  direction = -1.0 * canaries.replaced * np.ones(canaries.number)
  if canaries.has_bias:
    direction[-1] *= -1
  rows = min(canaries.rows_per_unit, grid.rows_per_unit)
  p0 = grid.initial_probability
  present = rows * (p0 - _one_hot(canaries.label, grid.num_classes))
  absent = p0 - _one_hot(canaries.absent_label, grid.num_classes)
  absent *= rows * direction[:, None]
  unit = grid.rows_per_unit * grid.residual_norm
  return _observation(
    released,
    canaries,
    released.value[:, column].T / GRID_RADIUS / unit,
    present / unit,
    absent / unit,
  )


def _moment(
  released: Released, canaries: Canaries, coins: np.ndarray | None
) -> Observation:
  del coins
  seen = np.diag(released.value)[canaries.feature, None]
  square = np.ones((canaries.number, 1))
  return _observation(
    released, canaries, seen, square, square * canaries.replaced
  )


def _row_sum(scale: Callable[[Released], float]) -> _Look:
  def look(
    released: Released, canaries: Canaries, coins: np.ndarray | None
  ) -> Observation:
    del coins
    seen = released.value[canaries.feature, None] * scale(released)
    one = np.ones((canaries.number, 1))
    return _observation(released, canaries, seen, one, -one * canaries.replaced)

  return look


def _class_sums(
  released: Released, canaries: Canaries, coins: np.ndarray | None
) -> Observation:
  del coins
  seen = released.value[:, canaries.feature].T
  own = _one_hot(canaries.label, canaries.num_classes)
  return _observation(released, canaries, seen, own, -own * canaries.replaced)


def _class_counts(
  released: Released, canaries: Canaries, coins: np.ndarray | None
) -> Observation | None:
  """They speak of the first canary of each class: others say it again."""
  if coins is None or canaries.replaced:
    return None
  others = coins @ _one_hot(canaries.label, canaries.num_classes)
  others = others[canaries.label] - coins
  seen = (released.value[canaries.label] - others)[:, None]
  is_of = np.arange(canaries.number) < canaries.num_classes
  one = is_of[:, None].astype(np.float64)
  found = _observation(released, canaries, seen * one, one, 0 * one)
  return dataclasses.replace(found, is_of=is_of)


def _gradient_sum(
  released: Released, canaries: Canaries, coins: np.ndarray | None
) -> Observation:
  at = released.at
  max_norm = at.get("max_norm")
  loss: Loss = at.get("loss", SOFTMAX)

  def row_of(sign: float) -> tuple[np.ndarray, np.ndarray]:
    """The direction of z, and what the gradient is along it, as parts of C."""
    u = np.zeros((canaries.number, canaries.width))
    length = 1.0 if max_norm is None else min(canaries.length, max_norm)
    u[np.arange(canaries.number), canaries.feature] = sign * length
    z = u if max_norm else _mapped(u, at.get("map"))
    residual = _residual(loss, z @ at["kernel"], canaries.label)
    norm = np.linalg.norm(residual, axis=1, keepdims=True) * length
    clipped = residual * np.minimum(1, at["clip_norm"] / norm) * length
    return z / length, clipped / at["clip_norm"]

  z, present = row_of(1.0)
  opposite, absent = row_of(-1.0)
  absent = canaries.replaced * absent
  value = released.value / at["clip_norm"]
  if at.get("map") is None:
    return _observation(released, canaries, z @ value, present, -absent)
  # Mapped rows are not at right angles to each other.
  if coins is not None:
    value = value - z.T @ (coins[:, None] * present)
    value = value - opposite.T @ (~coins[:, None] * absent)
    absent = (z * opposite).sum(axis=1, keepdims=True) * absent
    seen = z @ value + np.where(coins[:, None], present, absent)
    return _observation(released, canaries, seen, present, absent)
  # Least squares, after all that other rows can add is taken off.
  basis, _ = np.linalg.qr(_others(canaries, at["map"]).T)
  z = z - z @ basis @ basis.T
  inverse = np.linalg.inv(z @ z.T)
  spread = np.sqrt(np.diag(inverse))[:, None]
  seen = inverse @ (z @ value)
  return _observation(
    released, canaries, seen / spread, present / spread, -absent / spread
  )


_LOOKS = {
  "clipped sum": _clipped_sum,
  "mean": _row_sum(lambda released: 1 / (released.grid_step * GRID_RADIUS)),
  "second moment": _moment,
  "class sums": _class_sums,
  "total": _row_sum(lambda released: 1.0),
  "class counts": _class_counts,
  GRADIENT_SUM: _gradient_sum,
}
"""A NEW STATISTIC GOES HERE, by the name of its `Released`."""


def _observation(
  released: Released,
  canaries: Canaries,
  seen: Float[np.ndarray, "m q"],
  present: Float[np.ndarray, "m q"],
  absent: Float[np.ndarray, "m q"],
) -> Observation:
  """In units of the noise, of statistics in which a row counts for 1."""
  unit = released.noise_multiplier * (2 if canaries.replaced else 1)
  return Observation(
    seen=(seen - absent) / unit, response=(present - absent) / unit
  )


def _mapped(
  u: Float[np.ndarray, "m d"], released_map: ReleasedMap | None
) -> np.ndarray:
  """z = (u − c)·A at norm 1, of rows of norm 1."""
  if released_map is None:
    return u
  if released_map.centre is not None:
    u = u - released_map.centre / GRID_RADIUS
  if released_map.matrix is not None:
    u = u @ released_map.matrix
  return u / np.linalg.norm(u, axis=1, keepdims=True)


def _others(
  canaries: Canaries, released_map: ReleasedMap
) -> Float[np.ndarray, "o d"]:
  """Directions between which all mapped rows are that are no canaries."""
  rows = np.eye(canaries.feature_dim, canaries.width)
  if released_map.centre is not None:
    rows = np.concatenate([rows, released_map.centre[None]])
  if released_map.matrix is not None:
    rows = rows @ released_map.matrix
  return rows


def _residual(loss: Loss, logits: np.ndarray, label: np.ndarray) -> np.ndarray:
  if loss.name == "softmax":
    probability = special.softmax(logits, axis=1)
  else:
    probability = special.expit(logits + loss.bias)
  return probability - _one_hot(label, logits.shape[1])


def _one_hot(label: np.ndarray, num_classes: int) -> np.ndarray:
  return np.eye(num_classes)[label]
