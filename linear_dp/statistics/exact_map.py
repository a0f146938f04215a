"""A public affine map of private rows that can be applied exactly."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS

_COLUMN_NORM = 2.0**31


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicMap:
  """u → (u − c)·A, all integers.

  With ‖u‖ and ‖c‖ at most 2²⁰ and columns of A no longer than 2³¹, no partial
  sum of the product reaches 2⁵³: float64 makes no error, in any order.

  Attributes:
    matrix: A, [d, p] float64 of integers; its columns' norms are at most 2³¹.
      Its scale does not matter: rows are brought to unit norm behind it. None
      is the identity.
    centre: c, [d] float64 of integers, in steps of a row's grid, of norm 2²⁰ at
      most. None is 0.
  """

  matrix: Float64[np.ndarray, "d p"] | None
  centre: Float64[np.ndarray, " d"] | None = None

  def __post_init__(self):
    if self.matrix is not None:
      norm = np.linalg.norm(self.matrix, axis=0).max()
      if not norm <= _COLUMN_NORM or (self.matrix % 1).any():
        raise InputError(
          "A map must be of integers with columns no longer than 2^31: see"
          " PublicMap.of."
        )
    if self.centre is not None:
      norm = np.linalg.norm(self.centre)
      if not norm <= GRID_RADIUS or (self.centre % 1).any():
        raise InputError(
          "A centre must be of integers, no longer than 2^20: see PublicMap.of."
        )

  @classmethod
  def of(
    cls,
    matrix: Float64[np.ndarray, "d p"] | None,
    centre: Float64[np.ndarray, " d"] | None = None,
  ) -> "PublicMap":
    """The map nearest to a matrix, up to scale, and to a centre.

    Args:
      matrix: A; None is the identity.
      centre: c, in rows of norm 1; brought to norm 1 if it is longer.

    Raises:
      InputError: a matrix of zeros, or one that is not finite.
    """
    if matrix is not None:
      longest = np.linalg.norm(matrix, axis=0).max()
      if not 0 < longest < math.inf:
        raise InputError(f"a map whose longest column has norm {longest}.")
      # Rounding lengthens a column by at most √d/2.
      room = _COLUMN_NORM - math.sqrt(len(matrix))
      matrix = np.rint(matrix * (room / longest))
    if centre is not None:
      room = GRID_RADIUS - math.sqrt(len(centre))
      centre = np.rint(centre * (room / max(1.0, np.linalg.norm(centre))))
    return cls(matrix=matrix, centre=centre)
