"""The kinds of heads and their options: all that is asked for but privacy."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, Literal, Self

from oneshot_dp.configs.errors import InputError

OneStepName = Literal["lamb", "adam", "momentum"]
HeadName = Literal["auto", OneStepName, "prototypes", "least_squares"]
_MIN_DIFFERENCE = 2**-40
"""Vectors of classes that differ by less of their largest value are equal."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicStart:
  """Public vectors, one per class, that a head may start from at no cost.

  Classes are ranked by the products of their vectors with an embedding.

  Attributes:
    vectors: array [K, d] float64; must not depend on private rows or labels.
    sha256: SHA-256 of the file that they were read from, or of the array.
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
    """Makes a start of vectors, after checking them.

    Args:
      vectors: numbers [K, d].
      num_classes: K.
      feature_dim: d.
      names: names of the classes, for messages (default: their numbers).
      sha256: SHA-256 of the file that they come from (default: the array's).

    Returns:
      The start.

    Raises:
      InputError: these are not [K, d] numbers, or a vector ranks nothing.
    """
    # Imported here, so that `--help` does not wait for NumPy.
    import numpy as np

    array = np.asarray(vectors)
    shape = (num_classes, feature_dim)
    if array.dtype.kind not in "fiu" or array.shape != shape:
      raise InputError(
        f"start is {array.dtype} {array.shape}: give numbers of shape"
        f" {shape}, a vector for each class."
      )
    array = array.astype(np.float64)
    # A vector of zeros gives its class the same score for every image: a slip
    # in the file, which would show in accuracy only.
    for index, vector in enumerate(array):
      if not np.isfinite(vector).all():
        fault = "not finite"
      elif not vector.any():
        fault = "zeros only"
      else:
        continue
      name = repr(names[index]) if names else str(index)
      raise InputError(
        f"start of class {name} is {fault}: give a vector that tells the class"
        " from others."
      )
    if not sha256:
      sha256 = hashlib.sha256(array.tobytes()).hexdigest()
    start = cls(vectors=array, sha256=sha256)
    # `kernel` takes off what all classes have in common; what is left has to
    # tell them apart.
    if num_classes > 1 and abs(start.kernel()).max() < _MIN_DIFFERENCE:
      raise InputError(
        "start is one vector for all classes: it ranks none above another."
      )
    return start

  def kernel(self) -> Any:
    """The vectors as a kernel [d, K], without the mean over classes.

    The mean adds the same to the score of every class, so it ranks none. The
    largest value is brought to 1 first, so that nothing overflows.
    """
    kernel = self.vectors.T / abs(self.vectors).max()
    return kernel - kernel.mean(axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UnlabeledRows:
  """Public embeddings without labels, from which a head may learn as well.

  Attributes:
    embeddings: array [m, d] float32; must not depend on private rows.
    sha256: SHA-256 of the array.
  """

  embeddings: Any  # so that --help does not wait for NumPy
  sha256: str

  @classmethod
  def of(cls, embeddings: Any, *, feature_dim: int) -> Self:
    """Makes unlabeled rows of embeddings, after checking them.

    Args:
      embeddings: [m, d] floats, at least one row.
      feature_dim: d.

    Returns:
      The rows, in float32.

    Raises:
      InputError: these are not [m, d] floats, or one is not finite in float32.
    """
    import numpy as np

    array = np.asarray(embeddings)
    # Of kind "V" are bfloat16 and the like.
    is_rows = array.ndim == 2 and len(array) and array.shape[1] == feature_dim
    if array.dtype.kind not in "fV" or not is_rows:
      raise InputError(
        f"unlabeled is {array.dtype} {array.shape}: give floats of shape"
        f" [m, {feature_dim}], at least one row."
      )
    with np.errstate(over="ignore"):  # what leaves float32 is refused below
      array = np.ascontiguousarray(array, np.float32)
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
      raise InputError(
        f"unlabeled[{finite.argmin()}] is not finite in float32: correct the"
        " row, or leave it out."
      )
    return cls(
      embeddings=array, sha256=hashlib.sha256(array.tobytes()).hexdigest()
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadOptions:
  """Options of the head `auto`; the heads of one step have none.

  Attributes:
    balanced: weight all classes equally, however rare.
    start: public vectors by class, to start from at no cost.
    unlabeled: public rows whose classes the head predicts, and from which a
      second head learns; a noisy number decides between the two.
  """

  balanced: bool = False
  start: PublicStart | None = None
  unlabeled: UnlabeledRows | None = None

  def as_json(self) -> dict[str, Any]:
    """The options as a receipt states them."""
    # Arrays are stated by their digests: a receipt that has them says which
    # public vectors the head depends on, and stays small.
    options: dict[str, Any] = {"balanced": self.balanced}
    if self.start is not None:
      options["start_sha256"] = self.start.sha256
    if self.unlabeled is not None:
      options["unlabeled_sha256"] = self.unlabeled.sha256
    return options
