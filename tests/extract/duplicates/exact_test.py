import itertools
import pathlib
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.identity import BackboneIdentity
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.duplicates import exact as duplicates
from oneshot_dp.extract.duplicates import near as near_duplicates
from oneshot_dp.extract.duplicates.exact import find_duplicates
from oneshot_dp.extract.duplicates.near import ClosePairs, CosineIndex
from tests.extract.image_jobs import columns
from tests.extract.refusals import refused
from tests.pipeline.sample_caches import write_rows

DTYPES = {
  "float16": np.float16,
  "float32": np.float32,
  "bfloat16": ml_dtypes.bfloat16,
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
  """Small data has many tiles, chunks and batches."""
  monkeypatch.setattr(near_duplicates, "_TILE_ROWS", 32)
  monkeypatch.setattr(near_duplicates, "_CHUNK_ROWS", 48)
  monkeypatch.setattr(near_duplicates, "_SAMPLE_ROWS", 40)
  monkeypatch.setattr(duplicates, "_QUERY_BLOCKS", 1)


def clumped(n: int, d: int, seed: int = 0) -> np.ndarray:
  """Rows with cosines of all sizes, as those of a few classes have."""
  rng = np.random.default_rng(seed)
  centres = rng.standard_normal((6, d))
  spread = np.exp(rng.uniform(-7, 1, (n, 1)))
  length = np.exp(rng.standard_normal((n, 1)))
  rows = centres[rng.integers(0, 6, n)] + spread * rng.standard_normal((n, d))
  return rows * length


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  a, b = a.astype(np.float64), b.astype(np.float64)
  norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
  return (a @ b.T) / norms


def write(out: pathlib.Path, embedding: np.ndarray, **changes: Any):
  n = len(embedding)
  rows = Rows(
    embedding=embedding.astype(np.float32),
    label=np.zeros(n, int),
    example_id=np.arange(n) * 7 + 1_000,
  )
  return write_rows(out, rows, **changes)


def stored(cache: FeatureCache) -> tuple[np.ndarray, list[int]]:
  found = columns(cache)
  return found["embedding"], found["example_id"].tolist()


def found(cache: FeatureCache, **options: Any) -> set[tuple[int, int]]:
  pairs = list(find_duplicates(cache, **options))
  names = [(p.example_id, p.other_id) for p in pairs]
  assert len(set(names)) == len(names), "a pair twice"
  return set(names)


# The search, against all products.


def names_of(parts: Iterable[ClosePairs]) -> list[tuple[int, int]]:
  return [
    name
    for p in parts
    for name in zip(p.row.tolist(), p.query.tolist(), strict=True)
  ]


@pytest.mark.parametrize(
  ("n", "d", "min_cosine"),
  [
    (1, 3, 0.9),
    (31, 8, 0.9999),
    (200, 5, 0.3),
    (200, 5, 0.98),
    (333, 150, 0.3),
    (333, 150, 0.9),
    (333, 150, 0.99999),
  ],
)
def test_all_close_pairs_and_no_others(n, d, min_cosine):
  rows = clumped(n, d, seed=n).astype(np.float32)
  pairs = list(CosineIndex(rows, min_cosine).within())
  names = names_of(pairs)
  exact = cosines(rows, rows)
  expected = set(zip(*np.nonzero(np.triu(exact >= min_cosine, 1)), strict=True))
  assert len(names) == len(expected)
  assert set(names) == expected
  for p in pairs:
    np.testing.assert_allclose(p.cosine, exact[p.row, p.query], rtol=1e-12)
  if n > 300:
    assert 0 < len(expected) < n * n / 4


def test_a_threshold_below_what_float32_can_tell():
  """Tiles are filled up with zeros: no rows, though nothing rules them out."""
  rows = clumped(150, 64).astype(np.float32)
  rows[3] = 0
  held, queries = rows[:70], rows[70:]
  index = CosineIndex(held, 1e-6)
  assert index._threshold < 0
  with np.errstate(invalid="ignore"):
    exact = cosines(rows, rows) >= 1e-6
  within = set(names_of(index.within()))
  expected = np.triu(exact[:70, :70], 1)
  assert within == set(zip(*np.nonzero(expected), strict=True))
  between = set(names_of(index.against(queries)))
  assert between == set(zip(*np.nonzero(exact[:70, 70:]), strict=True))


@pytest.mark.parametrize(
  ("dtype", "min_cosine"),
  [("float16", 0.99), ("float32", 0.99999), ("bfloat16", 0.5)],
)
def test_between_two_sets(dtype, min_cosine):
  both = clumped(350, 90).astype(DTYPES[dtype])
  held, queries = both[:200], both[200:]
  names = names_of(CosineIndex(held, min_cosine).against(queries))
  exact = cosines(held, queries) >= min_cosine
  assert sorted(names) == sorted(zip(*np.nonzero(exact), strict=True))
  assert names


@pytest.mark.slow
def test_a_pair_at_the_threshold_itself():
  """Where the short products round to a little less than the truth."""
  rng = np.random.default_rng(1)
  rows = rng.standard_normal((60, 150))
  twin = rows + 0.01 * rng.standard_normal(rows.shape)
  both = np.concatenate([rows, twin])
  exact = cosines(both, both)
  for i in range(8, 20):
    index = CosineIndex(both, exact[i, 60 + i] * (1 - 1e-12))
    pairs = [(p.row, p.query) for p in index.within()]
    assert any(((row == i) & (query == 60 + i)).any() for row, query in pairs)


def test_most_products_are_never_made():
  rows = np.random.default_rng(0).standard_normal((1000, 100))
  tiles = []
  index = CosineIndex(rows, 0.99999)
  assert not list(index.within(lambda done, total: tiles.append(total)))
  every = 32 * 33 / 2
  assert tiles[0] < every / 7


# Caches: planted copies, across blocks (256 rows) and shards.


@pytest.fixture
def plain() -> np.ndarray:
  return np.random.default_rng(3).standard_normal((700, 24))


@pytest.mark.parametrize(
  ("dtype", "shard_rows"),
  [("float16", 64), ("float32", 300), ("bfloat16", 1000)],
)
def test_equal_rows_are_found_anywhere(tmp_path, plain, dtype, shard_rows):
  for copy, original in ((699, 2), (257, 255), (40, 39), (650, 2)):
    plain[copy] = plain[original]
  plain[100] = plain[101] * (1 + 1e-2)  # the same direction, other bits
  cache = write(
    tmp_path / "c", plain, shard_rows=shard_rows, embedding_dtype=dtype
  )
  _, ids = stored(cache)
  pairs = [(39, 40), (255, 257), (2, 650), (2, 699)]
  assert found(cache) == {(ids[a], ids[b]) for a, b in pairs}
  everything = list(find_duplicates(cache, min_cosine=0.999))
  assert {p.equal_bits for p in everything} == {True, False}
  assert found(cache, min_cosine=0.999) == {
    (ids[a], ids[b]) for a, b in [*pairs, (100, 101)]
  }


def test_near_duplicates_across_shards_and_their_cosines(tmp_path, plain):
  rng = np.random.default_rng(4)
  near = [(5, 690), (64, 63), (255, 256), (300, 301)]
  for copy, original in near:
    plain[copy] = plain[original] + 1e-3 * rng.standard_normal(24)
  cache = write(tmp_path / "c", plain)
  rows, ids = stored(cache)
  expected = {tuple(sorted((ids[a], ids[b]))) for a, b in near}
  assert found(cache) == set()
  assert found(cache, min_cosine=0.9999) == expected
  place = {example_id: i for i, example_id in enumerate(ids)}
  for pair in find_duplicates(cache, min_cosine=0.9999):
    i, j = place[pair.example_id], place[pair.other_id]
    assert pair.cosine == pytest.approx(
      cosines(rows[i : i + 1], rows[j : j + 1])[0, 0], rel=1e-12
    )


def test_a_thousand_copies_are_not_half_a_million_pairs(tmp_path, plain):
  rows = np.repeat(plain[:3], 1000, axis=0)
  cache = write(tmp_path / "c", rows, shard_rows=2048)
  pairs = list(find_duplicates(cache, min_cosine=0.99))
  assert len(pairs) == 3 * 999
  assert all(pair.equal_bits for pair in pairs)


def test_against_another_cache(tmp_path, plain):
  private, public = plain[:400], np.roll(plain, 1, axis=1)[300:]
  public[10] = public[399] = private[299]
  public[20::30] = private[20:400:30]
  public[201] = private[0] * 1.001 + 1e-4
  cache = write(tmp_path / "private", private)
  other = write(tmp_path / "public", public, dataset="imagenet")
  ids, others = stored(cache)[1], stored(other)[1]
  equal = {(ids[299], others[10]), (ids[299], others[399])}
  equal |= {(ids[i], others[i]) for i in range(20, 400, 30)}
  assert found(cache, against=other) == equal
  near = {(ids[0], others[201])}
  assert found(cache, against=other, min_cosine=0.9999) == equal | near


def test_duplicates_within_are_not_duplicates_between(tmp_path, plain):
  plain[1] = plain[0]
  plain[401] = plain[400]
  cache = write(tmp_path / "private", plain[:300])
  other = write(tmp_path / "public", plain[300:], dataset="imagenet")
  assert found(cache, against=other, min_cosine=0.9999) == set()


@pytest.mark.parametrize("min_cosine", [None, 0.999])
def test_progress_ends_at_the_end(tmp_path, plain, min_cosine):
  cache = write(tmp_path / "c", plain)
  calls: list[tuple[str, int, int]] = []

  def on_progress(what: str, done: int, total: int) -> None:
    calls.append((what, done, total))

  list(find_duplicates(cache, min_cosine=min_cosine, progress=on_progress))
  for _, steps in itertools.groupby(calls, key=lambda call: call[0]):
    *_, (_, done, total) = steps
    assert done == total


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"backbone": BackboneIdentity(name="other")}, "has backbone"),
    ({"preprocess": {"image_size": 99}}, "has backbone"),
    ({"embedding_dtype": "float32"}, "has embedding_dtype float16"),
    ({"views": {"count": 16}}, "has views None"),
  ],
)
def test_caches_that_cannot_be_compared(tmp_path, plain, changes, said):
  cache = write(tmp_path / "private", plain[:20])
  other = write(tmp_path / "public", plain[:20], **changes)
  with refused(said):
    found(cache, against=other)
  with refused("is the cache itself"):
    found(cache, against=cache)


@pytest.mark.parametrize("value", [0.0, -0.5, 1.0001, float("nan")])
def test_a_cosine_that_is_none(tmp_path, plain, value):
  cache = write(tmp_path / "private", plain[:20])
  with refused(f"min_cosine={value} must be in"):
    found(cache, min_cosine=value)
