import json
import os
import resource
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.pipeline.import_table import import_table
from tests.pipeline.command_line import fails, succeeds

N, D, K = 300, 12, 3


def vectors(dtype=np.float32):
  rng = np.random.default_rng(0)
  return rng.normal(size=(N, D)).astype(dtype), rng.integers(0, K, N)


def rows_of(path):
  blocks = [*open_cache(str(path)).blocks()]
  return {
    name: np.concatenate([np.asarray(block[name]) for block in blocks])
    for name in blocks[0]
  }


def npz(path, **changes):
  """An npz of the usual vectors, but for what is changed."""
  embedding, label = vectors()
  arrays: dict = {"embedding": embedding, "label": label} | changes
  np.savez(path, **arrays)
  return path


def parquet(path, embedding, label, **others):
  table = pa.table({"embedding": embedding, "label": label, **others})
  pq.write_table(table, path)
  return path


@pytest.mark.parametrize(
  ("dtype", "stored"),
  [
    ("f2", "float16"),
    ("f4", "float32"),
    ("f8", "float32"),
    (ml_dtypes.bfloat16, "bfloat16"),
  ],
)
def test_an_npz_becomes_a_cache_of_the_same_rows(tmp_path, dtype, stored):
  embedding, label = vectors(dtype)
  others = {"example_id": (ids := np.arange(N)[::-1] * 7)}
  others["class_names"] = np.array(["cat", "dog", "rat"])
  file = npz(tmp_path / "pets.npz", embedding=embedding, **others)
  cache = import_table(file, tmp_path / "cache")
  info = cache.info
  assert (info.dataset, info.split, info.unit) == ("pets", "train", "example")
  assert info.class_names == ("cat", "dog", "rat")
  assert info.num_classes_source == "class_names"
  assert info.embedding_dtype == stored
  assert (info.id_source, info.keys) == ("example_id", "embedding")
  rows = rows_of(tmp_path / "cache")
  wide = rows["embedding"].astype("f4")  # bfloat16 is not NumPy's
  np.testing.assert_array_equal(wide, embedding.astype("f4"))
  np.testing.assert_array_equal(rows["label"], label)
  np.testing.assert_array_equal(rows["example_id"], ids)
  # A split's arrays are found by its name.
  np.savez(
    file,
    train_embedding=embedding + 1,
    test_embedding=embedding,
    train_label=0 * label,
    test_label=label,
  )
  import_table(file, tmp_path / "test", split="test", num_classes=K)
  wide = rows_of(tmp_path / "test")["embedding"].astype("f4")
  np.testing.assert_array_equal(wide, embedding.astype("f4"))


def fixed(x):
  return pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), D)


VECTOR_COLUMNS = {
  "list of doubles, as Spark writes": lambda x: pa.array(
    x.astype("f8").tolist()
  ),
  "large list": lambda x: pa.array(x.tolist(), pa.large_list(pa.float32())),
  "fixed size list, as Daft and datasets write": fixed,
  "tensor, as Ray writes": lambda x: pa.ExtensionArray.from_storage(
    pa.fixed_shape_tensor(pa.float32(), [D]), fixed(x)
  ),
}


@pytest.mark.parametrize("kind", VECTOR_COLUMNS)
def test_parquet_of_every_writer_gives_the_rows_of_the_npz(tmp_path, kind):
  embedding, label = vectors()
  file = parquet(tmp_path / "a.parquet", VECTOR_COLUMNS[kind](embedding), label)
  import_table(file, tmp_path / "c", num_classes=K)
  rows = rows_of(tmp_path / "c")
  np.testing.assert_array_equal(rows["embedding"], embedding)
  np.testing.assert_array_equal(rows["label"], label)


def test_files_of_different_precision_keep_all_that_they_say(tmp_path):
  """The first file's float16 would round the second's, or make it infinite."""
  embedding, label = vectors()
  fine = embedding * np.float32(1e5)
  folder = tmp_path / "written"
  folder.mkdir()
  npz(folder / "a.npz", embedding=embedding.astype("f2"), label=label)
  npz(folder / "b.npz", embedding=fine, label=label)

  cache = import_table(folder, tmp_path / "c", num_classes=K)

  assert cache.info.embedding_dtype == "float32"
  stored = rows_of(tmp_path / "c")["embedding"]
  np.testing.assert_array_equal(stored[N:], fine)


def test_a_folder_of_parquet_files_is_read_in_the_order_of_names(tmp_path):
  embedding, label = vectors()
  folder = tmp_path / "written"
  folder.mkdir()
  for part in range(3):
    rows = slice(100 * part, 100 * part + 100)
    name = f"part-{part}.parquet"
    parquet(folder / name, embedding[rows].tolist(), label[rows])
  (folder / "_temporary").mkdir()
  shutil.copy(folder / "part-0.parquet", folder / "_temporary")  # Spark's own
  import_table(folder, tmp_path / "c", num_classes=K)
  found = rows_of(tmp_path / "c")["embedding"]
  np.testing.assert_array_equal(found, embedding)
  os.mkfifo(folder / "part-3.parquet")
  with pytest.raises(InputError, match="what is not a file"):
    import_table(folder, tmp_path / "d", num_classes=K)


def test_names_of_a_class_label_and_labels_that_are_names(tmp_path):
  embedding, label = vectors()
  names = ["cat", "dog", "rat"]
  features = {"label": {"names": names, "_type": "ClassLabel"}}
  metadata = {b"huggingface": json.dumps({"info": {"features": features}})}
  table = pa.table({"embedding": embedding.tolist(), "label": label})
  pq.write_table(
    table.replace_schema_metadata(metadata), tmp_path / "a.parquet"
  )
  cache = import_table(tmp_path / "a.parquet", tmp_path / "a")
  assert cache.info.class_names == ("cat", "dog", "rat")
  words = [names[i] for i in label]
  file = parquet(tmp_path / "b.parquet", embedding.tolist(), words)
  import_table(file, tmp_path / "b", class_names=names)
  np.testing.assert_array_equal(rows_of(tmp_path / "b")["label"], label)
  with pytest.raises(InputError, match="label is of strings: name all classes"):
    import_table(file, tmp_path / "c")


@pytest.mark.parametrize("kind", ["numbers", "strings"])
@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_units_are_by_a_column_of_their_name(tmp_path, kind, suffix):
  embedding, label = vectors()
  whose = np.arange(N) // 10
  column = whose if kind == "numbers" else np.array([f"p{i}" for i in whose])
  file = tmp_path / f"a.{suffix}"
  if suffix == "npz":
    npz(file, patient=column)
  else:
    parquet(file, embedding.tolist(), label, patient=column)
  cache = import_table(file, tmp_path / "c", num_classes=K, unit_name="patient")
  assert cache.info.unit == "patient"
  found = rows_of(tmp_path / "c")["unit_id"]
  _, numbers = np.unique(found, return_inverse=True)
  assert len(set(found)) == N // 10
  for unit in set(numbers):  # the same rows together, whatever the numbers are
    assert len(set(whose[numbers == unit])) == 1


def test_owners_that_are_passed_over_and_k_of_the_labels_are_told_of(
  tmp_path, capsys
):
  file = npz(tmp_path / "a.npz", patient=np.zeros(N, int))
  words = ("import", file, "--out", tmp_path / "c")
  with (
    pytest.warns(UserWarning, match="'patient' not used.*--unit-name"),
    pytest.warns(UserWarning, match="K = 3 is taken from the labels"),
  ):
    succeeds(capsys, *words)
  source = open_cache(str(tmp_path / "c")).info.num_classes_source
  assert source == "labels (treated as public)"


BAD = {
  "structured": {"embedding": np.zeros(N, [("a", "f4")])},
  "whole numbers": {"embedding": np.zeros((N, D), "i4")},
  "no width": {"embedding": np.zeros((N, 0), "f4")},
  "other lengths": {"label": np.zeros(N - 1, int)},
  "two axes of labels": {"label": np.zeros((N, 2), int)},
  "float labels": {"label": np.zeros(N)},
  "huge labels": {"label": np.full(N, 2**64 - 1, np.uint64)},
  "labels outside": {"label": np.full(N, K)},
  "NaN": {"embedding": np.full((N, D), np.nan, "f4")},
  "too large for float32": {"embedding": np.full((N, D), 1e300)},
  "ids twice": {"example_id": np.zeros(N, int)},
  "ids of words": {"example_id": np.array(["a"] * N)},
  "Fortran's order": {"embedding": np.zeros((D, N), "f4").T},
  "class names twice": {"class_names": np.array(["a"] * K)},
  "other names": {"class_names": np.array(["a", "b"])},
  "names of numbers": {"class_names": np.arange(K)},
  "a unit without a name": {"unit_id": np.zeros(N, int)},
}


BAD_COLUMNS = {
  "missing": {"embedding": [[1.0] * D] * 2 + [None] + [[1.0] * D]},
  "uneven, as many values in all": {
    "embedding": [[1.0] * width for width in (D - 1, D + 1, D, D)]
  },
  "holes": {"embedding": [[None, *[1.0] * (D - 1)]] * 4},
  "words": {"embedding": [["a"] * D] * 4},
  "no labels": {"label": [0, None, 1, 1]},
}


@pytest.mark.parametrize("what", [*BAD, *BAD_COLUMNS])
def test_what_is_no_table_of_vectors_is_one_line(tmp_path, capsys, what):
  if what in BAD:
    file = npz(tmp_path / "a.npz", **BAD[what])
  else:
    columns = {"embedding": [[1.0] * D] * 4, "label": [0, 1, 1, 0]}
    file = tmp_path / "a.parquet"
    parquet(file, **(columns | BAD_COLUMNS[what]))
  words = ("import", file, "--out", tmp_path / "c", "--num-classes", K)
  assert ("not of one length" in fails(capsys, *words)) == ("uneven" in what)
  assert not (tmp_path / "c").exists()


def test_pickles_are_never_opened(tmp_path):
  ran = tmp_path / "ran"

  class Trap:
    def __reduce__(self):
      return (ran.touch, ())

  for name in "embedding", "label", "class_names":
    file = npz(tmp_path / "a.npz", **{name: np.array([Trap()] * N, object)})
    with pytest.raises(InputError, match="Python objects"):
      import_table(file, tmp_path / "c", num_classes=K)
    assert not ran.exists()


def test_the_same_rows_again_are_the_cache_and_others_are_refused(tmp_path):
  embedding, _ = vectors()
  file = npz(tmp_path / "a.npz")
  first = import_table(file, tmp_path / "c", num_classes=K)
  again = import_table(file, tmp_path / "c", num_classes=K)
  assert again.info == first.info
  npz(file, embedding=embedding + 1)
  with pytest.raises(InputError):
    import_table(file, tmp_path / "c", num_classes=K)
  np.testing.assert_array_equal(rows_of(tmp_path / "c")["embedding"], embedding)


@pytest.mark.long
def test_memory_is_bounded(tmp_path):
  # 240 MB of zeros in a small file; a shard takes 8 MB.
  rows = np.broadcast_to(np.zeros(1, "f4"), (60_000, 1000))
  label = np.zeros(len(rows), int)
  np.savez_compressed(tmp_path / "a.npz", embedding=rows, label=label)
  zeros = pa.array([[0.0] * 1000] * 1000, pa.list_(pa.float32()))
  some = pa.table({"embedding": zeros, "label": label[:1000]})
  with pq.ParquetWriter(tmp_path / "a.parquet", some.schema) as writer:
    for _ in range(60):
      writer.write_table(some)
  pq.write_table(some, tmp_path / "b.parquet")
  np.savez(tmp_path / "b.npz", embedding=np.eye(2), label=np.arange(2))
  for name in "b.npz", "b.parquet":  # libraries
    import_table(tmp_path / name, tmp_path / f"{name}.cache", num_classes=K)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  for name in "a.npz", "a.parquet":
    import_table(tmp_path / name, tmp_path / f"{name}.cache", num_classes=K)
  more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
  assert more < 220_000  # KB


def write_parquet_split(folder, name, label, class_names=()):
  """A small Parquet file, with a ClassLabel of the class names, if any."""
  folder.mkdir(parents=True, exist_ok=True)
  rows = np.random.default_rng(len(name)).normal(size=(len(label), D))
  table = pa.table({"embedding": rows.tolist(), "label": label})
  if class_names:
    features = {"label": {"names": list(class_names), "_type": "ClassLabel"}}
    noted = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({b"huggingface": noted})
  pq.write_table(table, folder / name)


def test_files_of_another_split_are_not_imported(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write_parquet_split(tmp_path / "vectors", "train-0.parquet", [0, 1, 2])
  write_parquet_split(tmp_path / "vectors", "test-0.parquet", [0, 1])

  cache = import_table(Path("vectors"), Path("c"), split="test", num_classes=K)

  assert cache.info.split == "test"
  assert cache.info.source_num_examples == 2


def test_partitions_of_another_split_are_not_imported(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for split, label in ("train", [0, 1, 2]), ("test", [0, 1]):
    folder = tmp_path / "vectors" / f"split={split}"
    write_parquet_split(folder, "part-0.parquet", label)

  cache = import_table(Path("vectors"), Path("c"), split="train", num_classes=K)

  assert cache.info.source_num_examples == 3


def test_one_of_several_splits_has_to_be_named(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write_parquet_split(tmp_path / "vectors", "train-0.parquet", [0, 1, 2])
  write_parquet_split(tmp_path / "vectors", "test-0.parquet", [0, 1])

  with pytest.raises(InputError, match="--split"):
    import_table(Path("vectors"), Path("c"), num_classes=K)


def test_a_file_that_says_its_split_is_of_no_other(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write_parquet_split(tmp_path, "vectors-test.parquet", [0, 1])

  with pytest.raises(InputError, match="--split 'train' is none of"):
    import_table(
      Path("vectors-test.parquet"), Path("c"), split="train", num_classes=K
    )


def test_files_with_classes_in_another_order_are_refused(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  folder = tmp_path / "vectors"
  write_parquet_split(folder, "a.parquet", [0, 1], ["cat", "dog"])
  write_parquet_split(folder, "b.parquet", [0, 1], ["dog", "cat"])

  with pytest.raises(InputError, match="defines different classes"):
    import_table(Path("vectors"), Path("c"))


def test_columns_of_other_names_are_given_by_flags(tmp_path, capsys):
  embedding, label = vectors()
  file = tmp_path / "a.npz"
  np.savez(file, clip=embedding, species=label)

  succeeds(
    capsys,
    *("import", file, "--out", tmp_path / "c", "--num-classes", K),
    *("--embedding", "clip", "--label", "species"),
  )

  rows = rows_of(tmp_path / "c")
  np.testing.assert_array_equal(rows["embedding"], embedding)
  np.testing.assert_array_equal(rows["label"], label)


def test_a_column_that_a_flag_names_in_vain_is_one_line(tmp_path, capsys):
  file = npz(tmp_path / "a.npz")
  words = ("import", file, "--out", tmp_path / "c", "--num-classes", K)

  message = fails(capsys, *words, "--label", "species")

  assert "has no column species" in message
  assert not (tmp_path / "c").exists()


def test_integer_labels_among_decimal_class_names_are_those_names(tmp_path):
  """The label 1 is the class "1", and not the second of them."""
  embedding, _ = vectors()
  label = np.arange(300) % 2 + 1
  file = parquet(tmp_path / "a.parquet", embedding.tolist(), label)
  import_table(file, tmp_path / "c", class_names=["1", "2", "3"])
  np.testing.assert_array_equal(rows_of(tmp_path / "c")["label"], label - 1)


def test_integers_of_a_class_label_are_indices_whatever_its_names(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  write_parquet_split(tmp_path, "a.parquet", [1, 2, 1], ["1", "2", "3"])
  import_table(Path("a.parquet"), Path("c"))
  np.testing.assert_array_equal(rows_of(tmp_path / "c")["label"], [1, 2, 1])


def test_equal_embeddings_are_counted_and_can_be_one_unit(tmp_path, capsys):
  embedding, label = vectors()
  embedding[1] = embedding[0]
  label[1] = label[0]
  file = npz(tmp_path / "a.npz", embedding=embedding, label=label)
  words = "import", file, "--num-classes", K, "--out"
  out, _ = succeeds(capsys, *words, tmp_path / "each")
  assert "2 rows share their embedding" in out
  assert "--units same-image" in out
  out, _ = succeeds(
    capsys, *words, tmp_path / "together", "--units", "same-image"
  )
  assert "all rows of a distinct image" in out
  out, _ = succeeds(capsys, "inspect", tmp_path / "together")
  assert "protected together" in out
  unit_id = rows_of(tmp_path / "together")["unit_id"]
  assert len(np.unique(unit_id)) == N - 1


def test_two_kinds_of_units_are_refused(tmp_path, capsys):
  file = npz(tmp_path / "a.npz", user=np.arange(N) // 2)
  fault = fails(
    capsys,
    *("import", file, "--num-classes", K, "--out", tmp_path / "cache"),
    *("--unit-name", "user", "--units", "same-image"),
  )
  assert "give one of them" in fault


@pytest.mark.parametrize("size", [-1, D])
def test_a_row_without_a_vector_is_named(tmp_path, size):
  embedding, label = vectors()
  values = [*embedding]
  values[140] = None
  array = pa.array(values, pa.list_(pa.float32(), size))
  pq.write_table(
    pa.table({"embedding": array, "label": label}),
    tmp_path / "a.parquet",
    row_group_size=100,
  )
  with pytest.raises(InputError, match=r"a.parquet\[140\] has no embedding"):
    import_table(tmp_path / "a.parquet", tmp_path / "c", num_classes=K)
  assert not (tmp_path / "c").exists()


def test_folders_of_partitions_are_columns_of_their_files(tmp_path):
  embedding, label = vectors()
  pq.write_to_dataset(
    pa.table({"embedding": [*embedding], "label": label}),
    tmp_path / "t",
    partition_cols=["label"],
  )
  import_table(tmp_path / "t", tmp_path / "c", num_classes=K)
  np.testing.assert_array_equal(rows_of(tmp_path / "c")["label"], sorted(label))
