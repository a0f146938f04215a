r"""What noisy releases say of each canary, and what it would add to them.

Whoever sees a release takes from it the numbers x_i that canary i alone can
have moved, in units of the noise that the release claims: with the canary they
are a_i + noise, without it noise. a_i follows from what was public before.
"""

import dataclasses
from collections.abc import Callable, Sequence

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
  """What the releases of a run say of each canary, one after the other.

  Attributes:
    seen: x, less what stands in the place of a canary that is not there.
    response: a; both are zero where a release says nothing of a canary.
    parts: of how many numbers of F each release is.
  """

  seen: Float[np.ndarray, "m F"]
  response: Float[np.ndarray, "m F"]
  parts: tuple[int, ...]


def faults_of_rounding(released: Sequence[Released]) -> frozenset[str]:
  """Releases with a value that is no integer of its grid.

  The low bits of floating-point noise say what it was added to (Mironov, CCS
  2012): no bound on ε is left then.
  """
  found = set()
  for each in released:
    steps = each.value / each.grid_step
    if (np.abs(steps - np.rint(steps)) > _OFF_GRID).any():
      found.add(f"{each.name}: noise was not rounded")
  return frozenset(found)


def observe(
  released: Sequence[Released],
  canaries: Canaries,
  coins: Bool[np.ndarray, " m"] | None,
) -> Observation:
  """What releases say of each canary; statistics of no one's own say nothing.

  `coins` say which canaries are there, to an adversary who knows all but one of
  them, and all other rows; None is one who knows of neither.
  """
  looks = (_LOOKS[each.name](each, canaries, coins) for each in released)
  seen, response = zip(*filter(None, looks), strict=True)
  return Observation(
    seen=np.concatenate(seen, axis=1),
    response=np.concatenate(response, axis=1),
    parts=tuple(each.shape[1] for each in seen),
  )


_Seen = tuple[Float[np.ndarray, "m q"], Float[np.ndarray, "m q"]]
_Coins = Bool[np.ndarray, " m"] | None


def _in_noise(
  released: Released,
  canaries: Canaries,
  seen: Float[np.ndarray, "m q"],
  present: Float[np.ndarray, "m q"],
  absent: Float[np.ndarray, "m q"],
) -> _Seen:
  """In units of the noise, of statistics in which a row counts for 1."""
  unit = released.noise_multiplier * (2 if canaries.replaced else 1)
  return (seen - absent) / unit, (present - absent) / unit


def _clipped_sum(released: Released, canaries: Canaries, _: _Coins) -> _Seen:
  grid = released.at["grid"]
  column = canaries.feature.copy()
  direction = -1.0 * canaries.replaced * np.ones(canaries.number)
  if canaries.has_bias:
    column[-1] = canaries.width
    direction[-1] *= -1
  rows = min(canaries.rows_per_unit, grid.rows_per_unit)
  p0 = grid.initial_probability
  present = rows * (p0 - _one_hot(canaries.label, grid.num_classes))
  absent = p0 - _one_hot(canaries.absent_label, grid.num_classes)
  absent *= rows * direction[:, None]
  unit = grid.rows_per_unit * grid.residual_norm
  seen = released.value[:, column].T / GRID_RADIUS / unit
  return _in_noise(released, canaries, seen, present / unit, absent / unit)


def _sum_of_rows(released: Released, canaries: Canaries, _: _Coins) -> _Seen:
  """Statistics in which a canary has numbers to itself."""
  value, feature = released.value, canaries.feature
  own, opposite = np.ones((canaries.number, 1)), -1.0
  match released.name:
    case "mean":
      seen = value[feature, None] / (released.grid_step * GRID_RADIUS)
    case "second moment":
      seen, opposite = np.diag(value)[feature, None], 1.0
    case "class sums":
      seen = value[:, feature].T
      own = _one_hot(canaries.label, canaries.num_classes)
    case _:
      seen = value[feature, None]
  absent = opposite * canaries.replaced * own
  return _in_noise(released, canaries, seen, own, absent)


def _class_counts(
  released: Released, canaries: Canaries, coins: _Coins
) -> _Seen | None:
  """They speak of the first canary of each class: others say it again."""
  if coins is None or canaries.replaced:
    return None
  others = coins @ _one_hot(canaries.label, canaries.num_classes)
  others = others[canaries.label] - coins
  seen = (released.value[canaries.label] - others)[:, None]
  is_of = np.arange(canaries.number) < canaries.num_classes
  one = is_of[:, None].astype(np.float64)
  return _in_noise(released, canaries, seen * one, one, 0 * one)


def _units(
  released: Released, canaries: Canaries, coins: _Coins
) -> _Seen | None:
  """Their number speaks of the first canary: others say it again."""
  if coins is None or canaries.replaced:
    return None
  first = (np.arange(canaries.number) == 0)[:, None].astype(np.float64)
  seen = first * (released.value - coins[1:].sum())
  return _in_noise(released, canaries, seen, first, 0 * first)


def _gradient_sum(
  released: Released, canaries: Canaries, coins: _Coins
) -> _Seen:
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
    return _in_noise(released, canaries, z @ value, present, -absent)
  # Mapped rows are not at right angles to each other.
  if coins is not None:
    value = value - z.T @ (coins[:, None] * present)
    value = value - opposite.T @ (~coins[:, None] * absent)
    absent = (z * opposite).sum(axis=1, keepdims=True) * absent
    seen = z @ value + np.where(coins[:, None], present, absent)
    return _in_noise(released, canaries, seen, present, absent)
  # Least squares, after all that other rows can add is taken off.
  basis, _ = np.linalg.qr(_others(canaries, at["map"]).T)
  z = z - z @ basis @ basis.T
  inverse = np.linalg.inv(z @ z.T)
  spread = np.sqrt(np.diag(inverse))[:, None]
  seen = inverse @ (z @ value)
  return _in_noise(
    released, canaries, seen / spread, present / spread, -absent / spread
  )


_LOOKS: dict[str, Callable[[Released, Canaries, _Coins], _Seen | None]] = {
  "clipped sum": _clipped_sum,
  "mean": _sum_of_rows,
  "second moment": _sum_of_rows,
  "class sums": _sum_of_rows,
  "total": _sum_of_rows,
  "class counts": _class_counts,
  "units": _units,
  GRADIENT_SUM: _gradient_sum,
}
"""A NEW STATISTIC GOES HERE, by the name of its `Released`."""


def _mapped(
  u: Float[np.ndarray, "m d"], released_map: ReleasedMap | None
) -> np.ndarray:
  """z = (u − c)·A at norm 1, of rows of norm 1."""
  if released_map is None:
    return u
  if released_map.real_centre is not None:
    u = u - released_map.real_centre
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
