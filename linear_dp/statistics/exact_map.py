"""Released maps of rows, applied to integers without an error."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.integers import row_radius

STEP_RADIUS = 2**14
"""The norm of the longest row that a step reads, of a released centre, and of
the longest column of a released map. Two limbs of 8 bits hold such integers,
and products of two such vectors fit in int32. An embedding in float16 is no
finer."""
WEIGHTS_RADIUS = 2**24 // STEP_RADIUS
"""The norm of the longest column of the weights, whose products with rows are
exact in float32, in half of float64's time. To round weights so moves the logit
of a row by about 2⁻¹¹ of the longest column."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedMap:
  """z → (z − c)·A, with A and c released: noisy, or of nothing private.

  Attributes:
    matrix: A, [d, p] float64 of integers; its columns' norms are at most
      `STEP_RADIUS`. Its scale does not matter: rows are brought to unit norm
      behind it. None is the identity.
    centre: c, [d] float64 of integers, in steps of a row's grid, no longer than
      `STEP_RADIUS`. None is 0.
  """

  matrix: Float64[np.ndarray, "d p"] | None = None
  centre: Float64[np.ndarray, " d"] | None = None

  def __post_init__(self):
    for part in (self.matrix, self.centre):
      if part is not None:
        check_integers(part, STEP_RADIUS)

  @classmethod
  def of(
    cls,
    matrix: Float64[np.ndarray, "d p"] | None,
    centre: Float64[np.ndarray, " d"] | None = None,
  ) -> "ReleasedMap":
    """The map nearest to A, up to scale, and to c (of norm 1 at most)."""
    if matrix is not None:
      longest = np.linalg.norm(matrix, axis=0).max()
      if not 0 < longest < math.inf:
        raise InputError(f"a map whose longest column has norm {longest}.")
      room = row_radius(len(matrix), STEP_RADIUS)
      matrix = np.rint(matrix * (room / longest))
    if centre is not None:
      longest = max(1.0, np.linalg.norm(centre))
      room = row_radius(len(centre), STEP_RADIUS)
      centre = np.rint(centre * (room / longest))
    return cls(matrix=matrix, centre=centre)

  @property
  def real_centre(self) -> Float64[np.ndarray, " d"] | None:
    """c, in rows of norm 1."""
    if self.centre is None:
      return None
    return self.centre / row_radius(len(self.centre), STEP_RADIUS)

  @property
  def image_of_centre(self) -> Float64[np.ndarray, " p"] | None:
    """c·A, of integers, exactly."""
    if self.centre is None or self.matrix is None:
      return self.centre
    return self.centre @ self.matrix


def integer_kernel(
  kernel: Float64[np.ndarray, "p K"],
) -> tuple[Float64[np.ndarray, "p K"], int]:
  """W = 2^(−power)·integers, the nearest with columns in `WEIGHTS_RADIUS`."""
  longest = float(np.linalg.norm(kernel, axis=0).max())
  if not math.isfinite(longest):
    raise InputError(f"weights whose longest column has norm {longest}.")
  power = 0
  if longest > 0:
    room = row_radius(len(kernel), WEIGHTS_RADIUS)
    power = math.floor(math.log2(room / longest))
  integers = np.rint(np.ldexp(kernel, power))
  check_integers(integers, WEIGHTS_RADIUS)
  return integers, power


def check_integers(columns: Float64[np.ndarray, "d *p"], longest: int) -> None:
  """Refuses a column that is longer, or has a number that is no integer."""
  norm = np.linalg.norm(columns, axis=0).max()
  if not norm <= longest or (columns % 1).any():
    raise InputError(
      f"an exact map must be of integers with columns no longer than {longest}:"
      " see its `of`."
    )
