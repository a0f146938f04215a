r"""All pairs of rows with a large cosine, exactly, without all the products.

Unit rows u, v are turned to coordinates in which a few directions hold most of
their length: p = Vᵀu for k orthonormal columns V, and the length of the rest,
r = √(1 − ‖p‖²). By Cauchy-Schwarz

    u·v ≤ p_u·p_v + r_u·r_v,        |p_u − p_v| ≤ ‖u − v‖ = √(2 − 2·u·v)

so a pair whose short product of k + 1 numbers is under the threshold is not a
near duplicate, and neither is one that is far apart in a single coordinate:
rows are sorted by one, and only a window of them is compared. What is left is
decided on whole rows in float64. V, taken from a sample, decides the time
(n²·(k + 1) flop at most where the short products decide, instead of n²·d) and
never the answer.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Float64, Int64

DIRECTIONS = 64
"""k; more rule out more pairs and cost more each."""
_TILE_ROWS = 2048
_CHUNK_ROWS = 4096
_SAMPLE_ROWS = 4096
_COORDINATE_ERROR = 1e-6
"""More than the distance of two coordinates can be off by in float32."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClosePairs:
  """Pairs of rows, by their positions.

  `row` is in the index, `query` in the queries (in the index for pairs within
  it); `cosine` is of the stored embeddings, in float64.
  """

  row: Int64[np.ndarray, " pairs"]
  query: Int64[np.ndarray, " pairs"]
  cosine: Float64[np.ndarray, " pairs"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Sorted:
  """Rows in the order of one coordinate.

  `order` is of positions in `rows`; `sketch` is [p, r] of each, in that order.
  """

  rows: Float[np.ndarray, "n d"]
  order: Int64[np.ndarray, " n"]
  sketch: Float32[np.ndarray, "n k1"]

  def tile(self, number: int) -> slice:
    return slice(number * _TILE_ROWS, (number + 1) * _TILE_ROWS)

  @property
  def num_tiles(self) -> int:
    return -(-len(self.order) // _TILE_ROWS)

  def padded(self, number: int) -> Float32[Array, "tile k1"]:
    """One shape for all tiles; the zeros at the end are no rows."""
    sketch = self.sketch[self.tile(number)]
    return jnp.pad(sketch, [(0, _TILE_ROWS - len(sketch)), (0, 0)])


class CosineIndex:
  """Rows to find near duplicates of.

  Formal guarantees: no pair whose cosine (the product of the stored rows over
  their norms, in float64) is at least `min_cosine` is left out, and none below
  it is reported: the threshold of the short products is lowered by more than
  the rounding of float32. Rows of zeros have no direction and are in no pair.

  Memory: the rows as they are (finite, of any floating dtype; not copied) and
  2·4·(k + 2) bytes more for each.
  """

  def __init__(self, rows: Float[np.ndarray, "n d"], min_cosine: float):
    self._min_cosine = min_cosine
    self._basis = _main_directions(rows)
    width = self._basis.shape[1] + 1
    # Rounding of the numbers (2⁻²⁴ each) and of a sum of `width` products of
    # unit vectors (width·2⁻²⁴), twice.
    self._threshold = min_cosine - (width + 2) * 2.0**-23
    self._window = math.sqrt(2 - 2 * min_cosine) + _COORDINATE_ERROR
    sketch = _sketch(rows, self._basis)
    self._axis = int(np.argmax(sketch.std(axis=0)))
    self._held = self._sort(rows, sketch)

  def within(
    self, on_tile: Callable[[int, int], object] = lambda done, total: None
  ) -> Iterator[ClosePairs]:
    """Pairs of different rows of the index, each once, row < query."""
    held = self._held
    tiles = [
      (a, b)
      for a in range(held.num_tiles)
      for b in self._reach(held, a)
      if b >= a
    ]
    for done, (a, b) in enumerate(tiles):
      on_tile(done, len(tiles))
      for pairs in self._compare(b, held, a):
        yield ClosePairs(
          row=np.minimum(pairs.row, pairs.query),
          query=np.maximum(pairs.row, pairs.query),
          cosine=pairs.cosine,
        )
    on_tile(len(tiles), len(tiles))

  def against(self, rows: Float[np.ndarray, "m d"]) -> Iterator[ClosePairs]:
    """Pairs of a row of the index and one of `rows`, each once."""
    queries = self._sort(rows, _sketch(rows, self._basis))
    for a in range(queries.num_tiles):
      for b in self._reach(queries, a):
        yield from self._compare(b, queries, a)

  def _sort(
    self, rows: Float[np.ndarray, "n d"], sketch: Float32[np.ndarray, "n k1"]
  ) -> _Sorted:
    order = np.argsort(sketch[:, self._axis], kind="stable")
    return _Sorted(rows=rows, order=order, sketch=sketch[order])

  def _reach(self, queries: _Sorted, tile: int) -> range:
    """Tiles of the index that may hold a duplicate of a tile of queries."""
    keys = queries.sketch[queries.tile(tile), self._axis].astype(np.float64)
    held = self._held.sketch[:, self._axis]
    start = np.searchsorted(held, keys[0] - self._window, side="left")
    stop = np.searchsorted(held, keys[-1] + self._window, side="right")
    return range(int(start) // _TILE_ROWS, -(-int(stop) // _TILE_ROWS))

  def _compare(
    self, tile: int, queries: _Sorted, query_tile: int
  ) -> Iterator[ClosePairs]:
    held = self._held
    with_itself = queries is held and tile == query_tile
    close, any_close = _close(
      held.padded(tile),
      queries.padded(query_tile),
      self._threshold,
      with_itself,
    )
    if not any_close:
      return
    of_tile, of_queries = held.tile(tile), queries.tile(query_tile)
    # Padding counts as close where rounding takes the threshold below zero.
    close = np.asarray(close)[
      : len(held.order[of_tile]), : len(queries.order[of_queries])
    ]
    row, query = np.nonzero(close)
    row, query = held.order[of_tile][row], queries.order[of_queries][query]
    cosine = _cosines(held.rows, row, queries.rows, query)
    keep = cosine >= self._min_cosine
    yield ClosePairs(row=row[keep], query=query[keep], cosine=cosine[keep])


def cost(
  n: int, queries: int | None, feature_dim: int, itemsize: int
) -> tuple[float, float]:
  """Flop and bytes of a search at most, as long as the short products decide.

  `n` rows of the index, of numbers of `itemsize` bytes, are compared with
  `queries` rows, or with one another where that is None.
  """
  width = min(DIRECTIONS, feature_dim) + 1
  pairs = n * n / 2 if queries is None else n * queries
  row_bytes = feature_dim * itemsize + 8 * (width + 1)
  return 2.0 * pairs * width, float(n * row_bytes)


@jax.jit
def _close(
  a: Float32[Array, "tile k1"],
  b: Float32[Array, "tile k1"],
  threshold: float | Float[Array, ""],
  with_itself: bool | Bool[Array, ""],
) -> tuple[Bool[Array, "tile tile"], Bool[Array, ""]]:
  """Which pairs may be close, and if any are; in one tile, each pair once."""
  close = jnp.matmul(a, b.T, precision="highest") >= threshold
  row, query = jnp.arange(len(a)), jnp.arange(len(b))
  close &= ~jnp.asarray(with_itself) | (row[:, None] < query)
  return close, close.any()


def _units(rows: Float[np.ndarray, "n d"]) -> Float64[np.ndarray, "n d"]:
  wide = rows.astype(np.float64)
  norm = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
  return np.divide(wide, norm, out=np.zeros_like(wide), where=norm > 0)


def _main_directions(
  rows: Float[np.ndarray, "n d"],
) -> Float64[np.ndarray, "d k"]:
  """Orthonormal columns that hold most of the length of a sample."""
  sample = _units(rows[:: max(1, len(rows) // _SAMPLE_ROWS)])
  _, vectors = np.linalg.eigh(sample.T @ sample)
  return vectors[:, ::-1][:, :DIRECTIONS]


def _sketch(
  rows: Float[np.ndarray, "n d"], basis: Float64[np.ndarray, "d k"]
) -> Float32[np.ndarray, "n k1"]:
  """[p, r] of each row."""
  sketch = np.empty((len(rows), basis.shape[1] + 1), np.float32)
  for start in range(0, len(rows), _CHUNK_ROWS):
    units = _units(rows[start : start + _CHUNK_ROWS])
    p = units @ basis
    squares = (units * units).sum(axis=1) - (p * p).sum(axis=1)
    part = sketch[start : start + _CHUNK_ROWS]
    part[:, :-1] = p
    part[:, -1] = np.sqrt(squares.clip(0))
  return sketch


def _cosines(
  rows: Float[np.ndarray, "n d"],
  row: Int64[np.ndarray, " pairs"],
  queries: Float[np.ndarray, "m d"],
  query: Int64[np.ndarray, " pairs"],
) -> Float64[np.ndarray, " pairs"]:
  """Cosines of pairs, by one product of all the rows that are in any."""
  used_row, i = np.unique(row, return_inverse=True)
  used_query, j = np.unique(query, return_inverse=True)
  products = _units(rows[used_row]) @ _units(queries[used_query]).T
  return products[i, j]
