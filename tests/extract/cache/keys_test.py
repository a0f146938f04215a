import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.extract.cache.format import image_key
from oneshot_dp.extract.cache.keys import (
  direction_keys,
  embedding_keys,
  row_keys,
)
from oneshot_dp.extract.cache.write import write_cache
from tests.extract.cache import caches
from tests.extract.cache.caches import imported, make_info, make_rows, run_job


def rows(n=1000, d=192, seed=0, kind="normal"):
  """Embeddings of several kinds of network."""
  rng = np.random.default_rng(seed)
  x = rng.standard_normal((n, d))
  if kind == "relu":
    x = np.maximum(x - 0.5, 0)
  if kind == "cone":  # all images have a cosine of 0.999
    x = np.random.default_rng(99).standard_normal(d) + 0.03 * x
  if kind == "outliers":  # as DINOv2's and CLIP's
    x[:, [3, 7]] *= 300
  return x.astype(np.float32)


def unit_norm(x, dtype):
  x = x.astype(np.float64)
  return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)


# Of few values that went through a ReLU most rows are zeros.
KINDS = pytest.mark.parametrize(
  ("d", "kind"),
  [
    (d, kind)
    for d in (8, 64, 1280)
    for kind in ("normal", "relu", "cone", "outliers")
    if d > 8 or kind != "relu"
  ],
)


class TestDirections:
  @KINDS
  def test_a_row_is_known_when_it_is_scaled(self, d, kind):
    x = rows(d=d, kind=kind)
    keys = direction_keys(x)
    assert (direction_keys(2 * x) == keys).all()
    assert (direction_keys(x.astype(np.float64)) == keys).all()
    assert (direction_keys(np.float32(0.3) * x) == keys).mean() > 0.98
    assert (direction_keys(unit_norm(x, np.float32)) == keys).mean() > 0.98
    half = x.astype(np.float16)
    again = direction_keys(unit_norm(half, np.float16))
    assert (again == direction_keys(half)).mean() > 0.4
    assert (direction_keys(half) == keys).mean() > 0.4

  @KINDS
  def test_other_rows_are_others(self, d, kind):
    x = np.concatenate([rows(1000, d, seed, kind) for seed in (0, 1)])
    keys = direction_keys(x)
    assert len(np.unique(keys)) == len(x)
    assert (direction_keys(-x) != keys).all()
    assert (direction_keys(np.roll(x, 1, axis=1)) != keys).all()

  def test_what_is_changed_otherwise_is_not_known(self):
    x = rows()
    keys = direction_keys(x)
    assert not np.isin(direction_keys(x - x.mean(axis=0)), keys).any()
    assert not np.isin(direction_keys(x[:, :64]), keys).any()
    # A key is of its row alone.
    np.testing.assert_array_equal(direction_keys(x[17:20]), keys[17:20])
    np.testing.assert_array_equal(direction_keys(np.asfortranarray(x)), keys)

  def test_what_points_nowhere_has_no_key(self):
    x = rows(5, 20)
    x[1], x[2, 3], x[3, 4] = 0, np.nan, np.inf
    keys = direction_keys(x)
    assert (keys != 0).tolist() == [True, False, False, False, True]
    assert not direction_keys(rows(5, 7)).any()
    assert direction_keys(rows(0, 20)).shape == (0,)
    for scale in (1e-30, 1e30):
      assert (direction_keys(rows(50) * np.float32(scale)) != 0).all()


def test_equal_embeddings_have_one_key_and_zeros_none():
  half = rows(50).astype(np.float16)
  keys = embedding_keys(half)
  for dtype in (np.float32, np.float64):
    np.testing.assert_array_equal(embedding_keys(half.astype(dtype)), keys)
  brain = half.astype(ml_dtypes.bfloat16)
  assert not (embedding_keys(brain) == keys).all(axis=1).any()
  x = np.zeros((2, 3), np.float32)
  x[1] = -0.0
  assert not embedding_keys(x).any()


def test_image_keys_are_of_the_bytes_alone():
  assert image_key(b"x").tolist() != image_key(b"y").tolist()
  image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
  assert image_key(image).tolist() == image_key(image.tobytes()).tolist()


def shared(a, b):
  """How many keys of each kind rows of both caches have."""
  kinds = zip(row_keys(a), row_keys(b), strict=True)
  return [len(np.intersect1d(one, other)) for one, other in kinds]


def test_rows_are_known_under_any_name(tmp_path):
  info = make_info(100, 20)
  rows_ = imported(make_rows(info))
  one = write_cache(tmp_path / "one", info, [rows_])
  other = make_info(100, 20, dataset="cats", split="test", shard_rows=50)
  fresh = imported(make_rows(info, seed=1))
  half = {n: np.concatenate([rows_[n][:30], fresh[n][30:]]) for n in rows_}
  half |= {"embedding": half["embedding"] * 2, "example_id": np.arange(100)}
  two = write_cache(tmp_path / "two", other, [half])
  assert shared(one, two) == [0, 30, 0]  # scaled: the direction is known
  assert shared(one, one) == [100, 100, 0]
  assert all((np.diff(words) > 0).all() for words in row_keys(one))


def test_images_are_known_through_another_backbone(tmp_path):
  one = run_job(tmp_path / "one", make_info(40, 20))
  two = run_job(tmp_path / "two", make_info(40, 30))
  assert shared(one, two)[0] == 40
  other = run_job(tmp_path / "three", make_info(40, 30), seed=1)
  assert shared(one, other)[0] == 0


def test_random_image_keys_do_not_hide_rows(tmp_path, monkeypatch):
  """Even with fitted hashes: the direction is read off the embedding."""
  one = run_job(tmp_path / "one", make_info(40, 20))
  seen = caches.make_rows

  def forged(info, seed=0):
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 2**64, (40, 2), np.uint64)
    return seen(info, seed) | {"image_key": keys}

  monkeypatch.setattr(caches, "make_rows", forged)
  two = run_job(tmp_path / "two", make_info(40, 20, dataset="others"))
  assert shared(one, two) == [0, 40, 0]


def test_units_are_known(tmp_path):
  info = make_info(60, 20, unit="user")
  one = run_job(tmp_path / "one", info)
  two = run_job(tmp_path / "two", make_info(60, 20, unit="patient"))
  units = len(np.unique(make_rows(info)["unit_id"]))
  assert shared(one, two) == [60, 60, units]
