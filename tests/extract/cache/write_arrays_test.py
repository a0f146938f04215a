import stat
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.extract.cache.write_arrays import write_cache
from oneshot_dp.pipeline.importing.import_features import import_features
from tests.extract.image_jobs import columns
from tests.extract.refusals import refused

N, D, K = 600, 5, 3


def embeddings(dtype=np.float32):
  rng = np.random.default_rng(1)
  return rng.standard_normal((N, D)).astype(dtype)


def labels():
  return np.arange(N) % K


def write(out, **changes):
  given: dict[str, Any] = {
    "embeddings": embeddings(),
    "labels": labels(),
    "dataset": "pets",
    "num_classes": K,
  }
  return write_cache(out, **given | changes)


@pytest.mark.parametrize(
  ("dtype", "stored"),
  [
    (np.float16, "float16"),
    (ml_dtypes.bfloat16, "bfloat16"),
    (np.float32, "float32"),
    (np.float64, "float32"),
  ],
)
def test_holds_the_rows_in_their_order_and_precision(tmp_path, dtype, stored):
  cache = write(tmp_path / "cache", embeddings=embeddings(dtype))
  assert verify_cache(tmp_path / "cache").ok
  assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
  assert cache.info.embedding_dtype == stored
  found = columns(cache)
  expected = embeddings(dtype).astype(found["embedding"].dtype)
  np.testing.assert_array_equal(found["embedding"], expected)
  np.testing.assert_array_equal(found["label"], labels())
  np.testing.assert_array_equal(found["example_id"], np.arange(N))


@pytest.mark.parametrize("units", [False, True])
def test_has_the_bytes_of_an_import(tmp_path, units):
  unit_ids = np.arange(N) // 2
  names = np.array(["cat", "dog", "owl"])
  arrays: dict[str, Any] = {"embedding": embeddings(), "label": labels()}
  if units:
    arrays["unit_id"] = unit_ids
  np.savez(tmp_path / "pets.npz", **arrays, class_names=names)
  unit_name = "owner" if units else None
  imported = import_features(
    tmp_path / "pets.npz", tmp_path / "imported", unit_name=unit_name
  )
  written = write(
    tmp_path / "written",
    embeddings=jnp.asarray(embeddings()),
    class_names=names.tolist(),
    unit_ids=unit_ids if units else None,
    unit_name=unit_name,
  )
  assert written.info == imported.info
  assert written.private_digest == imported.private_digest


def test_names_of_classes_backbone_and_split_are_kept(tmp_path):
  info = write(tmp_path / "cache", split="test", backbone="vit_b16").info
  assert (info.split, info.backbone.name) == ("test", "vit_b16")
  assert info.class_names == ("0", "1", "2")
  assert info.num_classes_is_public


def test_a_finished_cache_is_not_written_again(tmp_path):
  write(tmp_path / "cache")
  with refused("finished cache already"):
    write(tmp_path / "cache", embeddings=embeddings() + 1)


def test_what_an_interrupted_call_left_is_written_again(tmp_path, monkeypatch):
  def killed(*args):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr("oneshot_dp.extract.cache.write_arrays.finish", killed)
    with pytest.raises(KeyboardInterrupt):
      write(tmp_path / "cache", embeddings=embeddings() + 1)
  cache = write(tmp_path / "cache")
  assert verify_cache(tmp_path / "cache").ok
  first = next(cache.blocks()).embedding
  np.testing.assert_array_equal(first, embeddings()[: len(first)])


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"embeddings": embeddings()[0]}, r"embeddings have shape \(5,\)"),
    ({"embeddings": embeddings()[:0]}, r"embeddings have shape \(0, 5\)"),
    ({"embeddings": np.ones((N, D), int)}, r"embeddings are int64"),
    ({"embeddings": embeddings() * np.nan}, r"example_id 0 .*not finite"),
    ({"embeddings": embeddings(float) * 1e300}, r"example_id 0 .*overflows"),
    ({"labels": labels()[1:]}, r"labels are int64 \[599\]: .*of the 600"),
    ({"labels": labels() / 1}, r"labels are float64 \[600\]"),
    ({"labels": labels() + 5_432}, r"example_id 0 has a label outside \[0, 3"),
    ({"num_classes": 2}, r"example_id 2 has a label outside"),
    ({"num_classes": 0}, r"num_classes=0 must be at least 1"),
    ({"class_names": ["cat", "dog"]}, r"num_classes=3 but class_names has 2"),
    ({"class_names": "abc"}, r"class_names='abc' is one name"),
    ({"class_names": ["a", " ", "b"]}, r"class_names\[1\]=' ' must be a name"),
    ({"dataset": ""}, r"dataset='' must be a name, and not blank"),
    ({"dataset": " \n"}, r"dataset=' \\n' must be a name"),
    ({"split": ""}, r"split='' must be a name"),
    ({"backbone": " "}, r"backbone=' ' must be a name"),
    ({"class_names": ["cat", "cat", "a"]}, r"class_names has 'cat' twice"),
    ({"unit_name": "user"}, r"unit_name='user' and unit_ids go together"),
    ({"unit_ids": labels()}, r"unit_name=None and unit_ids go together"),
    ({"unit_ids": labels()[1:], "unit_name": "user"}, r"unit_ids are int64 \["),
    ({"unit_ids": labels(), "unit_name": "example"}, r"unit name 'example' mu"),
  ],
)
def test_refuses_by_row_and_never_by_value(tmp_path, changes, message):
  with refused(message) as error:
    write(tmp_path / "cache", **changes)
  assert "5432" not in str(error.value).replace(str(tmp_path), "")
  assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"embeddings": np.nan}, "example_id 4100 .*not finite"),
    ({"labels": K}, "example_id 4100 has a label outside"),
  ],
)
def test_a_bad_row_of_the_last_shard_leaves_none(tmp_path, changes, message):
  n = 4200
  given = {
    "embeddings": np.ones((n, 2), np.float32),
    "labels": np.zeros(n, int),
  }
  for name, value in changes.items():
    given[name][4100] = value
  with refused(message):
    write(tmp_path / "cache", **given)
  assert not (tmp_path / "cache").exists()
