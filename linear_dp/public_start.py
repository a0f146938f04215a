"""Public weights that training starts from, at no cost in privacy."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Self

import numpy as np
from jaxtyping import Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.arrays import Numbers

SETTING = "start_sha256"
"""Its name among the settings of a head."""
ASSUMPTION = (
  "The start, of which the SHA-256 is given, is public: no function of the"
  " private rows or their labels."
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicStart:
  """A vector for each class, by whose products with rows they are ranked.

  Attributes:
    kernel: [d, K], without the mean of the classes, which ranks none.
    sha256: of the file that it was read from, or of the array in float64.
  """

  kernel: Float64[np.ndarray, "d K"]
  sha256: str

  @classmethod
  def of(
    cls,
    vectors: Numbers,
    *,
    num_classes: int,
    feature_dim: int,
    names: Sequence[str] = (),
    sha256: str = "",
  ) -> Self:
    """Checks vectors of nothing private.

    They are [K, d], in the order of the classes; `sha256` is of the file, or
    else of the array. InputError: another shape or type; a vector of zeros, or
    with a number that is not finite; or the same vector for all classes.
    """
    array = np.asarray(vectors)
    if array.dtype.kind not in "fiu" or array.shape != (
      num_classes,
      feature_dim,
    ):
      raise InputError(
        f"start is {array.dtype} {array.shape}: give numbers of shape"
        f" ({num_classes}, {feature_dim}), a vector for each class."
      )
    array = array.astype(np.float64)
    for i, vector in enumerate(array):
      if not np.isfinite(vector).all() or not vector.any():
        what = "zeros only" if np.isfinite(vector).all() else "not finite"
        raise InputError(
          f"start of class {names[i] if names else i!r} is {what}: give a"
          " vector that tells the class from others."
        )
    kernel = array.T / np.abs(array).max()
    kernel = kernel - kernel.mean(axis=1, keepdims=True)
    if np.abs(kernel).max() < 2**-40:
      raise InputError("start is one vector for all classes: it ranks none.")
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return cls(kernel=kernel, sha256=sha256 or digest)
