"""Which head to train, and how, privacy aside."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, Literal, Self

from oneshot_dp.configs.errors import InputError

OneStepName = Literal["lamb", "adam", "momentum"]
HeadName = Literal["auto", OneStepName]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicStart:
  """A vector for each class, by whose products with rows they are ranked.

  Attributes:
    vectors: array [K, d] float64, no function of the private rows or labels.
    sha256: of the file that they were read from, or of the array.
  """

  vectors: Any  # so that --help does not wait for NumPy
  sha256: str

  @classmethod
  def of(
    cls,
    vectors: Any,
    *,
    num_classes: int,
    feature_dim: int,
    names: Sequence[str] = (),
    sha256: str = "",
  ) -> Self:
    """InputError: not [K, d] numbers; a vector that ranks nothing."""
    import numpy as np

    array, wanted = np.asarray(vectors), (num_classes, feature_dim)
    if array.dtype.kind not in "fiu" or array.shape != wanted:
      raise InputError(
        f"start is {array.dtype} {array.shape}: give numbers of shape"
        f" {wanted}, a vector for each class."
      )
    array = array.astype(np.float64)
    for i, vector in enumerate(array):
      if not np.isfinite(vector).all() or not vector.any():
        what = "zeros only" if np.isfinite(vector).all() else "not finite"
        raise InputError(
          f"start of class {names[i] if names else i!r} is {what}: give a"
          " vector that tells the class from others."
        )
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    start = cls(vectors=array, sha256=sha256 or digest)
    if num_classes > 1 and abs(start.kernel()).max() < 2**-40:
      raise InputError("start is one vector for all classes: it ranks none.")
    return start

  def kernel(self) -> Any:
    """[d, K], without the mean of the classes, which ranks none."""
    kernel = self.vectors.T / abs(self.vectors).max()
    return kernel - kernel.mean(axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadOptions:
  """Settings of `auto`; the heads of one step have none.

  Attributes:
    balanced: accuracy as a mean over classes of very different sizes.
    start: public vectors by class, to start from at no cost.
  """

  balanced: bool = False
  start: PublicStart | None = None

  def as_json(self) -> dict[str, Any]:
    """What a receipt says of them."""
    start = {"start_sha256": self.start.sha256} if self.start else {}
    return {"balanced": self.balanced, **start}
