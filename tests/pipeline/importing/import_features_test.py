import re
import warnings
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.pipeline.importing.import_features import import_features
from tests.extract.caches import digest


def _arrays(n: int = 50, d: int = 6, **changes: Any) -> dict[str, Any]:
  rng = np.random.default_rng(n)
  arrays = {
    "embedding": rng.standard_normal((n, d)).astype(np.float32),
    "label": rng.integers(0, 3, n),
    "class_names": np.array(["cat", "dog", "eel"]),
  }
  arrays |= changes
  return {name: a for name, a in arrays.items() if a is not None}


def _save(path, **changes):
  np.savez(path, **_arrays(**changes))
  return path


def _with(array, index, value):
  array = np.array(array)
  array[index] = value
  return array


@pytest.mark.parametrize(
  ("given", "asked", "stored"),
  [
    ("float16", None, "float16"),
    ("float32", None, "float32"),
    ("float64", None, "float32"),
    ("float32", "float16", "float16"),
    ("float64", "bfloat16", "bfloat16"),
  ],
)
def test_rows_and_precision_are_kept(tmp_path, given, asked, stored):
  embedding = _arrays()["embedding"].astype(given)
  ids = np.arange(50)[::-1] * 10
  npz = _save(tmp_path / "pets.npz", embedding=embedding, example_id=ids)
  cache = import_features(
    npz, tmp_path / "c", embedding_dtype=asked, shard_rows=20
  )
  assert cache.info.embedding_dtype == stored
  assert cache.info.dataset == "pets"
  assert cache.info.class_names == ("cat", "dog", "eel")
  assert cache.info.num_classes_source == "class_names"
  blocks = list(cache.blocks())
  read = np.concatenate([b.embedding for b in blocks])
  np.testing.assert_array_equal(read, embedding.astype(read.dtype))
  read_ids = np.concatenate([b.example_id for b in blocks])
  np.testing.assert_array_equal(read_ids, ids)
  label = np.concatenate([b.label for b in blocks])
  np.testing.assert_array_equal(label, _arrays()["label"])
  assert verify_cache(tmp_path / "c").ok


def test_a_train_and_a_test_cache_of_one_file_match(tmp_path):
  arrays = {
    f"{split}_{name}": value
    for split, n in (("train", 50), ("test", 20))
    for name, value in _arrays(n=n, class_names=None).items()
  }
  np.savez(tmp_path / "pets.npz", **arrays)
  train, test = (
    import_features(
      tmp_path / "pets.npz", tmp_path / split, split=split, num_classes=3
    )
    for split in ("train", "test")
  )
  assert (len(train), len(test)) == (50, 20)
  assert train.info.backbone_fingerprint == test.info.backbone_fingerprint
  assert train.fingerprint != test.fingerprint
  other = import_features(
    tmp_path / "pets.npz",
    tmp_path / "x",
    split="test",
    num_classes=3,
    backbone_name="vit_ti16",
  )
  assert other.info.backbone_fingerprint != test.info.backbone_fingerprint


def test_an_array_that_may_say_whose_rows_are(tmp_path):
  """The first charge settles what is protected: who forgets it hears of it."""
  owner = np.arange(50) % 9
  npz = _save(tmp_path / "f.npz", patient=owner)
  with pytest.warns(UserWarning, match="patient not used; .* --unit-name"):
    import_features(npz, tmp_path / "a")
  assert import_features(
    npz, tmp_path / "b", unit_name="patient"
  ).info.has_units


def test_classes_from_the_flag_or_the_labels(tmp_path):
  npz = _save(tmp_path / "f.npz", class_names=None)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    cache = import_features(npz, tmp_path / "a", num_classes=5)
  assert cache.info.class_names == ("0", "1", "2", "3", "4")
  assert cache.info.num_classes_source == "flag"
  with pytest.warns(UserWarning, match="K = 3 is taken from the labels"):
    cache = import_features(npz, tmp_path / "b")
  assert cache.info.num_classes_source == "labels (treated as public)"
  npz = _save(tmp_path / "g.npz")
  with pytest.raises(InputError, match="num_classes=4 but class_names has 3"):
    import_features(npz, tmp_path / "c", num_classes=4)
  assert import_features(npz, tmp_path / "c", num_classes=3)


GOOD = _arrays()


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"unit_id": np.arange(50)}, "unit_id says that a privacy unit may have"),
    ({"train_unit_id": np.arange(50)}, "train_unit_id does not go with"),
    ({"label": None}, "no array label (or train_label); present: class_nam"),
    ({"embedding": None}, "no array embedding or label (or train_embedding"),
    ({"embedding": GOOD["embedding"].astype(int)}, "embedding has dtype int64"),
    ({"embedding": GOOD["embedding"].astype(object)}, "holds Python objects"),
    ({"embedding": GOOD["embedding"][0]}, "embedding has shape (6,)"),
    ({"embedding": GOOD["embedding"][:0]}, "embedding has shape (0, 6)"),
    ({"embedding": GOOD["embedding"][:, :0]}, "embedding has shape (50, 0)"),
    (
      {"embedding": _with(GOOD["embedding"], (9, 0), np.nan)},
      "example_id 9 has an embedding that is not finite",
    ),
    (
      {"label": GOOD["label"].astype(float)},
      "label is float64 [50]: it must be",
    ),
    ({"label": GOOD["label"][:49]}, "label is int64 [49]: it must be"),
    (
      {"label": _with(GOOD["label"], 9, -1)},
      "example_id 9 has a label outside [0, 3)",
    ),
    ({"label": _with(GOOD["label"], 9, 3)}, "9 has a label outside [0, 3)"),
    ({"example_id": np.zeros(50, int)}, "example_id has 0 more than once"),
    ({"example_id": np.arange(50.0)}, "example_id is float64 [50]"),
    ({"example_id": np.arange(51)}, "example_id is int64 [51]"),
    (
      {"example_id": np.arange(50, dtype=np.uint64) + 2**63},
      "example_id has a number that is more than an int64",
    ),
    ({"class_names": np.arange(3)}, "class_names has dtype int64"),
    ({"class_names": np.array(["a", "a", "b"])}, "holds a name twice"),
  ],
)
def test_what_is_malformed_is_named_and_nothing_is_written(
  tmp_path, changes, message
):
  npz = _save(tmp_path / "f.npz", **changes)
  with pytest.raises(InputError, match=re.escape(message)) as caught:
    import_features(npz, tmp_path / "c")
  assert "\n" not in str(caught.value)
  assert str(caught.value).startswith(f"{npz}: ")
  assert not (tmp_path / "c").exists()


def test_what_is_not_an_npz_is_said_to_be(tmp_path):
  with pytest.raises(InputError, match="no such file"):
    import_features(tmp_path / "none.npz", tmp_path / "c")
  np.save(tmp_path / "one.npy", np.zeros(3))
  with pytest.raises(InputError, match="one array, not an npz"):
    import_features(tmp_path / "one.npy", tmp_path / "c")
  with pytest.raises(InputError, match="not a readable npz"):
    import_features("/dev/full", tmp_path / "c")  # which has no end
  whole = _save(tmp_path / "f.npz").read_bytes()
  for name, data in (("junk", b"junk"), ("empty", b""), ("cut", whole[:700])):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match="not a readable npz"):
      import_features(tmp_path / name, tmp_path / "c")


def test_again_is_the_same_and_other_rows_are_refused(tmp_path):
  npz = _save(tmp_path / "f.npz")
  cache = import_features(npz, tmp_path / "c", shard_rows=20)
  before = {p: p.stat().st_mtime_ns for p in cache.path.iterdir()}
  again = import_features(npz, tmp_path / "c", shard_rows=20)
  assert {p: p.stat().st_mtime_ns for p in again.path.iterdir()} == before
  other = "holds other rows than the file"
  for changes, said in (
    ({"label": _with(GOOD["label"], 45, (GOOD["label"][45] + 1) % 3)}, other),
    ({"embedding": _with(GOOD["embedding"], (45, 0), 0)}, other),
    ({"example_id": np.arange(50)[::-1]}, 'id_source is "position" there'),
  ):
    _save(tmp_path / "f.npz", **changes)
    with pytest.raises(InputError, match=said):
      import_features(npz, tmp_path / "c", shard_rows=20)
  assert {p: p.stat().st_mtime_ns for p in again.path.iterdir()} == before


def test_an_interrupted_import_of_another_file_leaves_no_row(
  tmp_path, monkeypatch
):
  def stop(*_):
    raise KeyboardInterrupt

  other = _with(GOOD["embedding"], (0, 0), 9)
  npz = _save(tmp_path / "f.npz", embedding=other)
  with monkeypatch.context() as patch:
    patch.setattr("oneshot_dp.extract.cache.write_arrays.finish", stop)
    with pytest.raises(KeyboardInterrupt):
      import_features(npz, tmp_path / "c")
  _save(tmp_path / "f.npz")
  import_features(npz, tmp_path / "c")
  import_features(npz, tmp_path / "whole")
  assert digest(tmp_path / "c") == digest(tmp_path / "whole")


def test_real_features(shared_data, tmp_path):
  npz = shared_data / "eurosat_vit_ti16_features.npz"
  cache = import_features(npz, tmp_path / "c", split="test", num_classes=10)
  assert len(cache) == 5400
  assert cache.info.feature_dim == 192
  assert verify_cache(tmp_path / "c").ok
  with np.load(npz) as file:
    label = np.concatenate([b.label for b in open_cache(cache.path).blocks()])
    np.testing.assert_array_equal(label, file["test_label"])
