"""Private rows as they are read, and how they become integers.

    z = rint(x·s),   s = min((R − √d/2 − 1)/‖x‖, R·most),   ‖z‖ ≤ R = 2¹⁴

What is made of a row is a function of it and of public numbers alone, with the
same bits wherever it is: products and sums of integers are exact, and all else
is one IEEE operation on a number of the row's own, never a product that
something is added to.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Float64, Int16, Int64, Shaped

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.hosts import ALONE, Hosts

R = 2**14
"""Norm of the longest row: it fits int16, and a float16 is no finer."""
WEIGHT = 2**20
"""W: what a privacy unit weighs, where n leaves room for it in int64."""
_MOST_ROWS = 10**10
_STORED = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)

Block = Mapping[str, np.ndarray]
"""Columns embedding [r, d], embedding_norm, label, example_id [r] and, where a
privacy unit may have many rows, unit_id [r]."""
Numbers = Shaped[np.ndarray | jax.Array, "..."]  # still to be looked at


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Data:
  """Private rows, and what is public of them.

  Attributes:
    blocks: starts a pass over this host's rows, in any order, any block size.
    n: the public number of rows; of a part, its mean.
    feature_dim: d.
    num_classes: K.
    unit: what the privacy unit is; where not "example", rows have a unit_id.
    hosts: that have a part of the rows each.
    name: what errors call them.
  """

  blocks: Callable[[], Iterable[Block]]
  n: int
  feature_dim: int
  num_classes: int
  unit: str = "example"
  hosts: Hosts = ALONE
  name: str = "the rows"

  def __post_init__(self):
    if not 1 <= self.n <= _MOST_ROWS:
      raise InputError(f"n={self.n} rows: sums are of 1 to {_MOST_ROWS:.0e}.")

  @property
  def has_units(self) -> bool:
    return self.unit != "example"

  @property
  def weight(self) -> int:
    """W: a power of two, so small that n·W·R is at most 2⁶¹."""
    return min(WEIGHT, 2**47 >> (self.n - 1).bit_length())

  def checked_blocks(self) -> Iterator[Block]:
    """The blocks of a pass, and whether a row came twice in it.

    InputError: a label outside [0, K), an example_id that comes twice.
    """
    seen = [np.empty(0, np.int64)]
    for block in self.blocks():
      ids, label = block["example_id"], block["label"]
      if self.has_units != ("unit_id" in block):
        has = "no" if self.has_units else "a"
        unit = f"the privacy unit is {self.unit!r}"
        raise InputError(f"The rows have {has} unit_id, but {unit}.")
      bad = (label < 0) | (label >= self.num_classes)
      if bad.any():
        self.refuse(ids, bad, f"its label is outside [0, {self.num_classes})")
      seen.append(np.array(ids, np.int64))
      yield block
    ids = np.sort(np.concatenate(seen))
    twice = np.append(ids[1:] == ids[:-1], False)
    if twice.any():
      self.refuse(ids, twice, "it comes more than once")
    if len(ids) > 2 * self.n + WEIGHT:  # or sums might leave int64
      raise InputError(f"{self.name}: many more than {self.n} are there.")

  def refuse(
    self, ids: np.ndarray, bad: Bool[np.ndarray, " r"], why: str
  ) -> NoReturn:
    """Raises an InputError for the first bad row, by its id alone."""
    raise InputError(
      f"{self.name}: example_id={ids[bad.argmax()]}: {why}. Run `oneshot-dp"
      " verify` on the cache, then make it again."
    )


def array_data(
  embeddings: Numbers,
  labels: Numbers,
  *,
  num_classes: int,
  unit_ids: Numbers | None = None,
) -> Data:
  """Labelled embeddings in memory as private rows, all checked.

  See `private_head.train_heads`; float64 is rounded to float32, other floats
  are used uncopied.

  InputError: a wrong dtype or shape, no rows, an embedding that is not finite
  in float32, a label outside [0, K); by the row, never its label or numbers.
  """
  array = np.asarray(embeddings)
  if array.dtype not in _STORED or array.ndim != 2 or not array.size:
    raise InputError(
      f"embeddings are {array.dtype} {array.shape}: give [n, d], at least one"
      " row, of floats of 16, 32 or 64 bits."
    )
  n, dim = array.shape
  label = _integers("labels", labels, n)
  outside = (label < 0) | (label >= num_classes)
  if outside.any():
    raise InputError(
      f"labels[{outside.argmax()}] is not one of the num_classes={num_classes}"
      f" classes: labels run from 0 to {num_classes - 1}."
    )
  norm = np.empty(n, np.float32)
  with np.errstate(over="ignore"):  # what leaves float32 is refused by its row
    embedding = array.astype(np.float32) if array.dtype == float else array
    for some in (slice(i, i + 4096) for i in range(0, n, 4096)):
      norm[some] = np.linalg.norm(embedding[some].astype(np.float64), axis=1)
  if not np.isfinite(norm).all():
    raise InputError(
      f"embeddings[{np.isfinite(norm).argmin()}] is not finite, or too long"
      " for float32: mend the row, or leave it out."
    )
  columns = {"embedding": embedding, "embedding_norm": norm}
  columns |= {"label": label.astype(np.int32), "example_id": np.arange(n)}
  if unit_ids is not None:
    columns["unit_id"] = _integers("unit_ids", unit_ids, n)
  return Data(
    blocks=lambda: [columns],
    n=n,
    feature_dim=dim,
    num_classes=num_classes,
    unit="example" if unit_ids is None else "unit",
  )


def _integers(name: str, values: Numbers, rows: int) -> Int64[np.ndarray, " n"]:
  array = np.asarray(values)
  if array.dtype.kind not in "iu" or array.shape != (rows,):
    what = f"{array.dtype} {array.shape}"
    raise InputError(f"{name} are {what}: give {rows} integers, one a row.")
  return array.astype(np.int64)


def room_in_ball(dim: int) -> float:
  """R·√(1 − (d + 2)·2⁻²⁴) − √d/2 − 1, the norm of a row before rounding.

  That is what `within_ball` is sure of, less √d/2 for rounding to integers and
  1 for float32 products: every honest row is within.
  """
  sure = R * math.sqrt(1 - (dim + 2) * 2.0**-24)
  return sure - math.sqrt(dim) / 2 - 1


def row_scale(
  norm: Float[np.ndarray, " r"], dim: int, most: float
) -> Float32[np.ndarray, " r"]:
  """s: 0 for a row of zeros, or one so short that s would leave float32."""
  wide, room = norm.astype(np.float64), room_in_ball(dim)
  floor = room / float(np.finfo(np.float32).max)
  scale = np.divide(room, wide, out=np.zeros_like(wide), where=wide > floor)
  return np.minimum(scale, R * most).astype(np.float32)


@jax.jit
def integer_rows(
  embedding: Float[Array, "c d"],
  scale: Float32[Array, " c"],
  weight: int | Array,
) -> tuple[Array, Array, Array]:
  """z int16 [c, d], w int32 [c], and whether each row is to be refused.

  w is 0 of a row of zeros. A row is refused that is not finite or may leave the
  ball: none that `within_ball` is not sure of has an honest scale.
  """
  z = jnp.rint(embedding.astype(jnp.float32) * scale[:, None])
  fine, is_row = within_ball(z)
  z = jnp.where(fine[:, None], z, 0).astype(jnp.int16)
  return z, jnp.where(is_row, weight, 0).astype(jnp.int32), ~fine


def within_ball(
  z: Float32[Array, "c d"],
) -> tuple[Bool[Array, " c"], Bool[Array, " c"]]:
  """Whether ‖z‖ ≤ R of rows of integers for certain, and whether one is not 0.

  A sum of d squares in float32, in any order, is below the true one by at most
  d·2⁻²⁴ of it (Higham, "Accuracy and Stability of Numerical Algorithms", 2002,
  section 4.2), which is what the bound leaves. NaN compares as False.
  """
  squares = jnp.square(z).sum(axis=1)
  return squares <= R * R * (1 - (z.shape[1] + 2) * 2.0**-24), squares > 0


@jax.jit
def mapped_rows(
  row: Int16[Array, "c d"], centre: Float64[Array, " d"], matrix: Array
) -> Int16[Array, "c p"]:
  """(z − c)·A at norm R again; without numbers in A, z − c. 0 stays 0."""
  y = row.astype(jnp.float64) - centre
  if matrix.size:
    y = y @ matrix  # of integers below 2⁵³: exact
  p = y.shape[1]
  # To as many bits as squares add up exactly with, by a power of two.
  bits = (52 - (p - 1).bit_length()) // 2
  _, exponent = jnp.frexp(jnp.abs(y).max(1, keepdims=True))
  part = jnp.rint(jnp.ldexp(y, bits - exponent))
  norm = jnp.sqrt(jnp.square(part).sum(1, keepdims=True))
  z = jnp.rint(part * (room_in_ball(p) / jnp.maximum(norm, 1)))
  fine = jnp.square(z).sum(1) <= R * R
  fine &= (row != 0).any(axis=1)
  return jnp.where(fine[:, None], z, 0).astype(jnp.int16)
