r"""Canaries: rows that are in the data by the toss of a fair coin.

Canaries lie in features of their own, along directions that are orthogonal to
one another. A few canaries share a direction, and have different classes. So
what canaries i and j add to a sum, a_i and a_j, is nearly orthogonal, and a
release has room for many of them that hardly hide one another.

Nearly is not enough for an interval of right guesses: with noise along a_i and
a_j that is a little correlated, guesses are right or wrong together. So every
canary has a probe b_i, and the probes of a release are exactly orthonormal:

    b_i = l_i ⊗ v_g,   ⟨b_i, b_j⟩ = ⟨l_i, l_j⟩·⟨v_g, v_h⟩ = 0

where the v_g are the rows of the directions, orthonormalized, and the l_i are
the left factors of the canaries of one direction, orthonormalized.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.dataset import Block, PrivateDataset
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import Chunk, Rows
from oneshot_dp.linear_dp.statistics import RowStatistic, class_sums
from oneshot_dp.linear_dp.sum_kernels import left_factors_of_chunk

_LENGTH = 100.0
"""Norm of a canary's embedding: far above the norm that rows are clipped to."""
_FIRST_ID = np.iinfo(np.int64).min
"""Ids count up from here: no real row or unit has one of these."""

Coins = Bool[np.ndarray, " m"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
  """The canaries of an audit, and the real rows that they are hidden among.

  Attributes:
    count: m.
    dim: features of the canaries' own, which is how many directions there are.
    num_classes: K; canary i is of class i mod K.
    rows_each: rows of one canary, all alike, which are one unit if several.
    real: real rows. Their features come first and are zero in canaries.
  """

  count: int
  dim: int
  num_classes: int
  rows_each: int = 1
  real: PrivateDataset | None = None

  def __post_init__(self):
    if self.per_direction > self.num_classes:
      raise InputError(
        f"{self.count} canaries in {self.dim} directions need"
        f" {self.per_direction} classes, and there are {self.num_classes}: give"
        " fewer canaries."
      )

  @property
  def per_direction(self) -> int:
    """How many canaries share a direction; the last one may have fewer."""
    return -(-self.count // self.dim)

  @property
  def direction(self) -> np.ndarray:
    """The direction of each canary, [m]."""
    return np.arange(self.count) // self.per_direction

  @property
  def num_directions(self) -> int:
    """How many directions have a canary."""
    return -(-self.count // self.per_direction)

  @property
  def unit(self) -> str:
    """The privacy unit of the rows."""
    if self.real is not None:
      return self.real.unit
    return "example" if self.rows_each == 1 else "unit"

  def with_coins(self, coins: Coins) -> PrivateDataset:
    """Real rows, then canaries; those whose coin says no are rows of zeros.

    A row of zeros weighs nothing and adds nothing, as if nothing were there,
    which is what the neighboring relation compares with. n does not depend on
    the coins.
    """
    return self._dataset(coins, self.real)

  def alone(self) -> PrivateDataset:
    """All canaries, and no real rows."""
    return self._dataset(np.ones(self.count, bool), None)

  def _dataset(
    self, coins: Coins, real: PrivateDataset | None
  ) -> PrivateDataset:
    columns = self._columns(coins)

    def blocks() -> Iterator[Block]:
      if real is not None:
        for block in real.blocks():
          embedding = np.asarray(block["embedding"], np.float32)
          wide = np.pad(embedding, [(0, 0), (0, self.dim)])
          yield {**block, "embedding": wide}
      yield columns

    # n is the same with and without the real rows, as `auto` decides by it.
    num_real = 0 if self.real is None else self.real.n
    return PrivateDataset(
      blocks=blocks,
      n=num_real + len(columns["label"]),
      feature_dim=columns["embedding"].shape[1],
      num_classes=self.num_classes,
      unit=self.unit,
    )

  def _columns(self, coins: Coins) -> dict[str, np.ndarray]:
    """The canaries as a block of a data set."""
    # Longer than any row may be, so that clipping makes each canary as long as
    # it can be: an audit with short canaries would find less.
    rows = _LENGTH * self.directions()[self.direction]
    rows = np.where(coins[:, None], rows, 0).astype(np.float32)
    if self.real is not None:
      rows = np.pad(rows, [(0, 0), (self.real.feature_dim, 0)])
    canary = np.repeat(np.arange(self.count), self.rows_each)
    embedding = rows[canary]
    columns = {
      "embedding": embedding,
      "embedding_norm": np.linalg.norm(embedding, axis=1),
      "label": (canary % self.num_classes).astype(np.int32),
      "example_id": _FIRST_ID + np.arange(len(canary)),
    }
    if self.unit != "example":
      columns["unit_id"] = _FIRST_ID + canary
    if self.real is not None and self.real.has_several_owners:
      columns["unit_id"] = columns["unit_id"][:, None]
      columns["weight_divisor"] = np.full(len(canary), self.rows_each)
    return columns

  def directions(self) -> np.ndarray:
    """Orthonormal rows, turned at random; the same in every audit.

    Along the axes they would not tell a bound on the norm of a row from a bound
    on its largest entry.
    """
    normal = np.random.default_rng(0).standard_normal(
      (self.dim, self.num_directions)
    )
    return np.linalg.qr(normal)[0].T


class Contribution(NamedTuple):
  """What each canary adds to a sum if it is there, a_i = left_i ⊗ row_g.

  Attributes:
    left: left factors, in units of a row's weight, [m, q].
    row: the row of each direction, in units of norm 1, [G, p].
    direction: the direction g of each canary, [m].
  """

  left: Float64[np.ndarray, "m q"]
  row: Float64[np.ndarray, "G p"]
  direction: np.ndarray

  def total(self, shares: Float64[np.ndarray, " m"]) -> np.ndarray:
    """Σ_i shares_i·a_i, [q, p]."""
    # Canaries of one direction share its row, so their left factors are added
    # up first: one product for each direction, and not for each canary.
    weighed = _by_direction(self.left * shares[:, None], len(self.row))
    return weighed.sum(axis=1).T @ self.row


class Probes(NamedTuple):
  """Orthonormal probes of a release, one for each canary.

  Attributes:
    left: l_i, [m, q].
    row: v_g, [G, p].
    direction: the direction g of each canary, [m].
    strength: ⟨a_i, b_i⟩ ≥ 0, of at most ‖a_i‖ ≤ 1, [m].
  """

  left: Float64[np.ndarray, "m q"]
  row: Float64[np.ndarray, "G p"]
  direction: np.ndarray
  strength: Float64[np.ndarray, " m"]

  def coordinates(self, value: Float64[np.ndarray, "q p"]) -> np.ndarray:
    """⟨value, b_i⟩ of each canary, [m]."""
    # ⟨V, l ⊗ v⟩ = l·(V·v): no b_i is written out, each as large as the release.
    along_rows = value @ self.row.T
    return (self.left * along_rows.T[self.direction]).sum(axis=1)


class Basis(NamedTuple):
  """Orthonormal rows, one for each direction.

  Attributes:
    row: v_g, [G, p].
    strength: ⟨row of direction g, v_g⟩ ≥ 0, [G].
  """

  row: Float64[np.ndarray, "G p"]
  strength: Float64[np.ndarray, " G"]


def orthonormal_basis(row: Float64[np.ndarray, "G p"]) -> Basis | None:
  """Orthonormalizes the rows of directions; None if there is no room."""
  if row.shape[1] < row.shape[0]:
    return None
  vectors, strength = _orthonormalized(row[None])
  return Basis(vectors[0], strength[0])


def make_probes(added: Contribution, basis: Basis | None) -> Probes | None:
  """Makes the probes of a release; None if it has too few numbers for them.

  Gram–Schmidt, by QR: of the rows of the directions, which `basis` is, and then
  of the left factors of the canaries of each direction. Probes depend on what
  canaries add, and so on earlier releases, but not on the noise of this one.

  Args:
    added: what each of the m canaries adds to the release.
    basis: of the rows of the directions; None if they have no room.

  Returns:
    Probes of the shape of the release; None without a basis, or where left
    factors have fewer numbers than there are canaries of one direction.
  """
  # Orthogonal twice over: canaries of different directions by their rows, those
  # of one direction by their left factors.
  grouped = _by_direction(added.left, len(added.row))
  _, per_direction, q = grouped.shape
  if basis is None or q < per_direction:
    return None
  left, left_strength = _orthonormalized(grouped)
  m = len(added.left)
  return Probes(
    left=left.reshape(-1, q)[:m],
    row=basis.row,
    direction=added.direction,
    strength=basis.strength[added.direction] * left_strength.ravel()[:m],
  )


def _by_direction(
  left: Float64[np.ndarray, "m q"], num_directions: int
) -> Float64[np.ndarray, "G c q"]:
  """Left factors of the canaries of each direction.

  The last direction may lack some canaries: these add nothing.
  """
  m, q = left.shape
  per_direction = -(-m // num_directions)
  padded = np.zeros((num_directions * per_direction, q))
  padded[:m] = left
  return padded.reshape(num_directions, per_direction, q)


def _orthonormalized(
  vectors: Float64[np.ndarray, "groups count dim"],
) -> tuple[np.ndarray, np.ndarray]:
  """Orthonormal vectors of each group, and how much of each was kept.

  The part of vector i that is orthogonal to those before it is as long as the
  i-th entry of R's diagonal.
  """
  # QR leaves signs open. They are chosen so that each vector points along its
  # own probe: a canary that is there makes its score larger.
  q, r = np.linalg.qr(vectors.swapaxes(1, 2))
  diagonal = np.diagonal(r, axis1=1, axis2=2)
  sign = np.where(diagonal < 0, -1.0, 1.0)
  return (q * sign[:, None, :]).swapaxes(1, 2), np.abs(diagonal)


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class CanaryRows(Rows):
  """The rows that a head is trained on, and beside them all canaries alone.

  A head treats them like any rows. Whatever it maps, is mapped for the canaries
  alone as well, so that what each adds to a sum is known exactly.

  Attributes:
    canaries: which these are.
    alone: the rows of all canaries, mapped as the head's rows are.
    real_space: an orthonormal basis of where real rows may lie, [p, b]; None
      without real rows.
  """

  canaries: Canaries
  alone: Rows
  real_space: Float64[np.ndarray, "p b"] | None

  @classmethod
  def of(
    cls,
    rows: Rows,
    *,
    canaries: Canaries,
    alone: Rows,
    real_space: Float64[np.ndarray, "p b"] | None,
  ) -> "CanaryRows":
    """The chunks of `rows`, with what is known of the canaries among them."""
    return cls(
      data=rows.data,
      iter_chunks=rows.chunks,
      identity=rows.identity,
      feature_dim=rows.feature_dim,
      weight_norm_order=rows.weight_norm_order,
      mesh=rows.mesh,
      note=rows.note,
      canaries=canaries,
      alone=alone,
      real_space=real_space,
    )

  def mapped(
    self,
    center: Float64[np.ndarray, " d"],
    matrix: Float64[np.ndarray, "d p"] | None,
  ) -> "CanaryRows":
    """Maps the rows, the canaries alone, and the space of real rows."""
    space = self.real_space
    if space is not None:
      # Where rows z may lie, (z − c)·A lies in the span of the mapped basis and
      # of c·A.
      factor = np.eye(len(center)) if matrix is None else matrix
      spanned = np.concatenate([space.T @ factor, (center @ factor)[None]])
      space = np.linalg.qr(spanned.T)[0]
    return CanaryRows.of(
      super().mapped(center, matrix),
      canaries=self.canaries,
      alone=self.alone.mapped(center, matrix),
      real_space=space,
    )

  @functools.cached_property
  def directions(self) -> Float64[np.ndarray, "G p"]:
    """The row of each direction at norm 1, but for where real rows may lie.

    Nobody knows the real rows, so scores look only where these are zero. They
    are post-processing of what was released for that reason, too.
    """
    rows = self._of_canaries(lambda chunk: chunk.row)
    # All rows of a canary are alike, and so are the canaries of a direction.
    row = rows[:: self.canaries.per_direction, 0] / ROW_NORM
    if self.real_space is None:
      return row
    return row - (row @ self.real_space) @ self.real_space.T

  @functools.cached_property
  def basis(self) -> Basis | None:
    """The basis of the directions, the same in all releases of these rows."""
    return orthonormal_basis(self.directions)

  def probes(
    self, statistic: RowStatistic, added: Contribution
  ) -> Probes | None:
    """The probes of a release, if it has numbers enough for them."""
    if statistic.one_column:
      return None
    return make_probes(added, self.basis)

  def contribution(
    self, statistic: RowStatistic, public: tuple[Any, ...]
  ) -> Contribution:
    """What each canary adds to a sum, by the code that adds it up."""
    if statistic is class_sums:  # whose classes its own kernel knows
      public = (np.arange(self.data.num_classes),)

    def left_factors(chunk: Chunk) -> np.ndarray:
      return left_factors_of_chunk(self.alone, statistic, chunk, public)

    left = self._of_canaries(left_factors).sum(axis=1) / self.data.weight
    row = self.directions
    if statistic.one_column:
      # Real rows, whose left factors nobody knows, are in the same number.
      row = np.full((len(row), 1), float(self.real_space is None))
    return Contribution(left, row, self.canaries.direction)

  def _of_canaries(
    self, function: Callable[[Chunk], Any]
  ) -> Float64[np.ndarray, "m rows width"]:
    """A function of chunks, for each row of each canary."""
    parts = []
    for chunk in self.alone.chunks():
      values = np.asarray(function(chunk), np.float64)
      is_row = np.asarray(chunk.weight) > 0  # else it fills up a chunk
      parts.append(values[is_row])
    values = np.concatenate(parts)
    return values.reshape(self.canaries.count, -1, values.shape[1])
