"""Maps of rows of integers that float64 applies without an error.

No partial sum of a product u·A of integers reaches 2⁵³ where ‖u‖ is at most 2^a
and each column of A at most 2^b long, a + b = 52: by Cauchy and Schwarz all are
exact, in any order of the additions.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS

_COLUMN_BITS = 31


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedMap:
  """u → (u − c)·A, with A and c released: noisy, or of nothing private.

  Exact, as ‖u‖ and ‖c‖ are at most 2²⁰.

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
      check_integers(self.matrix, 2**_COLUMN_BITS)
    if self.centre is not None:
      check_integers(self.centre, GRID_RADIUS)

  @classmethod
  def of(
    cls,
    matrix: Float64[np.ndarray, "d p"] | None,
    centre: Float64[np.ndarray, " d"] | None = None,
  ) -> "ReleasedMap":
    """The map nearest to a matrix, up to scale, and to a centre.

    Args:
      matrix: A; None is the identity.
      centre: c, in rows of norm 1; brought to norm 1 if it is longer.
    """
    if matrix is not None:
      longest = np.linalg.norm(matrix, axis=0).max()
      if not 0 < longest < math.inf:
        raise InputError(f"a map whose longest column has norm {longest}.")
      # Rounding lengthens a column by at most √d/2.
      room = 2**_COLUMN_BITS - math.sqrt(len(matrix))
      matrix = np.rint(matrix * (room / longest))
    if centre is not None:
      room = GRID_RADIUS - math.sqrt(len(centre))
      centre = np.rint(centre * (room / max(1.0, np.linalg.norm(centre))))
    return cls(matrix=matrix, centre=centre)


def check_integers(columns: Float64[np.ndarray, "d *p"], longest: int) -> None:
  """Refuses a column that is longer, or has a number that is no integer."""
  norm = np.linalg.norm(columns, axis=0).max()
  if not norm <= longest or (columns % 1).any():
    raise InputError(
      f"an exact map must be of integers with columns no longer than {longest}:"
      " see its `of`."
    )
