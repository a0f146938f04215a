import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.extract_config import NO_OWNER
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache import keys
from oneshot_dp.extract.cache.keys import (
  direction_keys,
  embedding_keys,
  keys_of,
)
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.extract.cache.write import write_cache
from oneshot_dp.extract.images import image_key
from tests.extract.cache.caches import (
  columns,
  imported,
  make_info,
  make_rows,
  run_job,
)
from tests.sample_caches import clusters, write_rows


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
@pytest.mark.slow
@pytest.mark.parametrize(
  ("d", "kind"),
  [
    (d, kind)
    for d in (8, 64, 1280)
    for kind in ("normal", "relu", "cone", "outliers")
    if d > 8 or kind != "relu"
  ],
)
def test_a_row_is_known_when_it_is_scaled_and_others_are_not(d, kind):
  x = rows(d=d, kind=kind)
  known = direction_keys(x)
  assert (direction_keys(2 * x) == known).all()
  assert (direction_keys(x.astype(np.float64)) == known).all()
  assert (direction_keys(np.float32(0.3) * x) == known).mean() > 0.98
  assert (direction_keys(unit_norm(x, np.float32)) == known).mean() > 0.98
  half = x.astype(np.float16)
  again = direction_keys(unit_norm(half, np.float16))
  assert (again == direction_keys(half)).mean() > 0.4
  assert (direction_keys(half) == known).mean() > 0.4
  others = direction_keys(rows(d=d, seed=1, kind=kind))
  assert len(np.unique([known, others])) == 2 * len(x)
  assert (direction_keys(-x) != known).all()
  assert (direction_keys(np.roll(x, 1, axis=1)) != known).all()


def test_what_is_changed_otherwise_is_not_known():
  x = rows()
  known = direction_keys(x)
  assert not np.isin(direction_keys(x - x.mean(axis=0)), known).any()
  assert not np.isin(direction_keys(x[:, :64]), known).any()
  # A key is of its row alone.
  np.testing.assert_array_equal(direction_keys(x[17:20]), known[17:20])
  np.testing.assert_array_equal(direction_keys(np.asfortranarray(x)), known)


def test_what_points_nowhere_has_no_key():
  x = rows(5, 20)
  x[1] = 0
  x[2, 3] = np.nan
  x[3, 4] = np.inf
  known = direction_keys(x)
  assert (known != 0).tolist() == [True, False, False, False, True]
  assert not direction_keys(rows(5, 7)).any()
  assert direction_keys(rows(0, 20)).shape == (0,)
  for scale in (1e-30, 1e30):
    assert (direction_keys(rows(50) * np.float32(scale)) != 0).all()


def test_equal_embeddings_have_one_key_and_zeros_none():
  half = rows(50).astype(np.float16)
  known = embedding_keys(half)
  for dtype in (np.float32, np.float64):
    np.testing.assert_array_equal(embedding_keys(half.astype(dtype)), known)
  brain = half.astype(ml_dtypes.bfloat16)
  assert not (embedding_keys(brain) == known).all(axis=1).any()
  x = np.zeros((2, 3), np.float32)
  x[1] = -0.0
  assert not embedding_keys(x).any()


def test_image_keys_are_of_the_bytes_alone():
  assert image_key(b"x").tolist() != image_key(b"y").tolist()
  image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
  assert image_key(image).tolist() == image_key(image.tobytes()).tolist()


def shared(one, other):
  """How many keys of each kind rows of both caches have."""
  ours = keys_of(one.blocks())
  theirs = keys_of(other.blocks())
  return {k: np.isin(ours[k], theirs[k]).sum() for k in ours}


def test_rows_are_known_under_any_name_and_zeros_are_nobody(tmp_path):
  info = make_info(100, 20)
  own, fresh = (imported(make_rows(info, seed)) for seed in (0, 1))
  one = write_cache(tmp_path / "one", info, [own])
  half = {n: np.concatenate([own[n][:30], fresh[n][30:]]) for n in own}
  half |= {"embedding": half["embedding"] * 2, "example_id": np.arange(100)}
  other = make_info(100, 20, dataset="cats", split="test", shard_rows=50)
  two = write_cache(tmp_path / "two", other, [half])
  # Scaled; the direction is read off the embedding, so no image key hides it.
  assert shared(one, two) == {"image": 0, "direction": 30}
  zeros = [own | {"embedding": np.zeros((100, 20))}]
  cache = write_cache(tmp_path / "zeros", info, zeros)
  assert keys_of(cache.blocks()) == {}


def test_images_are_known_through_another_backbone_and_units_by_number(
  tmp_path,
):
  one = run_job(tmp_path / "one", make_info(60, 20, unit="user"))
  units = len(np.unique(make_rows(one.info)["unit_id"]))
  for d, seed, *wanted in (
    (20, 0, 60, 60, units),
    (30, 0, 60, 0, 0),  # whose numbers are others, too
    (20, 1, 0, 0, 0),
  ):
    info = make_info(60, d, unit="patient")
    two = run_job(tmp_path / f"{d}-{seed}", info, seed=seed)
    assert [*shared(one, two).values()] == wanted


@pytest.mark.slow
def test_of_very_many_rows_all_caches_keep_the_same_sample(
  tmp_path, monkeypatch
):
  """The smallest keys; few more than twice as many are held at once."""
  cache = run_job(tmp_path, make_info(1000, 20, unit="user"))
  held = []
  every = keys_of(cache.blocks())
  images = make_rows(cache.info)["image_key"][:, 0]
  np.testing.assert_array_equal(every["image"], np.unique(images))

  def smallest(parts, smallest=keys._smallest):
    held.append(sum(map(len, parts)))
    return smallest(parts)

  monkeypatch.setattr(keys, "MOST_KEYS", 64)
  monkeypatch.setattr(keys, "_smallest", smallest)
  found = keys_of(cache.blocks())
  assert found.keys() == {"image", "direction", "unit"}
  for kind, words in found.items():
    np.testing.assert_array_equal(words, every[kind][:64])
  assert max(held) <= 2 * 64 + 8


def test_all_owners_of_rows_are_known_by_number(tmp_path):
  embedding, label = clusters()
  owners = np.full((len(label), 2), NO_OWNER)
  owners[:, 0] = np.arange(len(label)) // 2
  owners[::3, 1] = 1000
  cache = write_rows(tmp_path / "cache", embedding, label, unit_id=owners)
  alone = write_rows(
    tmp_path / "alone", embedding[:1], label[:1], unit_id=np.array([1000])
  )

  units = keys_of(cache.blocks())["unit"]

  assert len(units) == len(label) // 2 + 1
  assert keys_of(alone.blocks())["unit"][0] in units


def test_rows_of_several_owners_are_in_a_part_by_their_own_bytes(tmp_path):
  embedding, label = clusters()
  owners = np.zeros((len(label), 2), int)
  owners[:, 1] = 1 + np.arange(len(label)) % 2
  rows = {"unit_id": owners}
  shared = write_rows(tmp_path / "shared", embedding, label, **rows)
  plain = write_rows(tmp_path / "plain", embedding, label)
  ids = []
  for cache in (shared, plain):
    part = open_cache(cache.path, Part(0, 80))
    ids.append(columns(part)["example_id"].tolist())
  assert ids[0] == ids[1]
  assert 100 < len(ids[0]) < len(label)
