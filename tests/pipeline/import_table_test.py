"""Embeddings and ids of tables, as each program writes them."""

import os
import resource
import shutil

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.import_table import import_table
from tests.pipeline.command_line import succeeds
from tests.pipeline.vector_tables import (
  D,
  K,
  N,
  npz,
  parquet,
  rows_of,
  vectors,
)

NAMES = ("cat", "dog", "rat")

# bfloat16 is not NumPy's own: rows are compared as float32, which holds it.
DTYPES = pytest.mark.parametrize(
  ("dtype", "stored"),
  [
    ("f2", "float16"),
    ("f4", "float32"),
    ("f8", "float32"),
    (ml_dtypes.bfloat16, "bfloat16"),
  ],
)


@DTYPES
def test_npz_becomes_a_cache_of_the_same_rows(tmp_path, dtype, stored):
  embedding, label = vectors(dtype)
  ids = np.arange(N)[::-1] * 7
  file = npz(tmp_path / "pets.npz", embedding=embedding, example_id=ids)

  import_table(file, tmp_path / "cache", num_classes=K)

  rows = rows_of(tmp_path / "cache")
  wide = rows["embedding"].astype("f4")
  np.testing.assert_array_equal(wide, embedding.astype("f4"))
  np.testing.assert_array_equal(rows["label"], label)
  np.testing.assert_array_equal(rows["example_id"], ids)


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
def test_npz_of_the_other_byte_order_has_the_same_rows(tmp_path, dtype):
  embedding, label = vectors(dtype)
  file = npz(tmp_path / "pets.npz", embedding=embedding, label=label)

  import_table(file, tmp_path / "cache", num_classes=K)

  rows = rows_of(tmp_path / "cache")
  np.testing.assert_array_equal(rows["embedding"], embedding.astype("f4"))
  np.testing.assert_array_equal(rows["label"], label)


@DTYPES
def test_npz_says_what_the_cache_is_of(tmp_path, dtype, stored):
  embedding, _ = vectors(dtype)
  file = npz(
    tmp_path / "pets.npz",
    embedding=embedding,
    example_id=np.arange(N),
    class_names=np.array(NAMES),
  )

  info = import_table(file, tmp_path / "cache").info

  assert (info.dataset, info.split, info.unit) == ("pets", "train", "example")
  assert info.class_names == NAMES
  assert info.num_classes_source == "class_names"
  assert info.embedding_dtype == stored
  assert (info.id_source, info.keys) == ("example_id", "embedding")


@DTYPES
def test_arrays_of_a_split_are_found_by_its_name(tmp_path, dtype, stored):
  embedding, label = vectors(dtype)
  file = tmp_path / "pets.npz"
  np.savez(
    file,
    train_embedding=embedding + 1,
    test_embedding=embedding,
    train_label=0 * label,
    test_label=label,
  )

  import_table(file, tmp_path / "test", split="test", num_classes=K)

  rows = rows_of(tmp_path / "test")
  wide = rows["embedding"].astype("f4")
  np.testing.assert_array_equal(wide, embedding.astype("f4"))
  np.testing.assert_array_equal(rows["label"], label)


def list_of_doubles(x):
  return pa.array(x.astype("f8").tolist())


def large_list(x):
  return pa.array(x.tolist(), pa.large_list(pa.float32()))


def fixed_size_list(x):
  return pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), D)


def tensor(x):
  kind = pa.fixed_shape_tensor(pa.float32(), [D])
  return pa.ExtensionArray.from_storage(kind, fixed_size_list(x))


VECTOR_COLUMNS = {
  "list of doubles, as Spark writes": list_of_doubles,
  "large list": large_list,
  "fixed size list, as Daft and datasets write": fixed_size_list,
  "tensor, as Ray writes": tensor,
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


@pytest.fixture
def folder_of_three_files(tmp_path):
  """The usual rows in three files, and one that Spark left in its own folder.

  Spark would have renamed it when its task ended: rows in it are not to be
  counted twice.
  """
  embedding, label = vectors()
  folder = tmp_path / "written"
  (folder / "_temporary").mkdir(parents=True)
  for part in range(3):
    rows = slice(100 * part, 100 * part + 100)
    name = f"part-{part}.parquet"
    parquet(folder / name, embedding[rows].tolist(), label[rows])
  shutil.copy(folder / "part-0.parquet", folder / "_temporary")
  return folder


def test_folder_of_files_is_read_in_the_order_of_names(
  tmp_path, folder_of_three_files
):
  import_table(folder_of_three_files, tmp_path / "c", num_classes=K)

  embedding, _ = vectors()
  np.testing.assert_array_equal(rows_of(tmp_path / "c")["embedding"], embedding)


def test_folder_with_a_pipe_among_its_files_is_refused(
  tmp_path, folder_of_three_files
):
  """To open it would wait for ever."""
  os.mkfifo(folder_of_three_files / "part-3.parquet")

  with pytest.raises(InputError, match="what is not a file"):
    import_table(folder_of_three_files, tmp_path / "c", num_classes=K)


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


def test_same_rows_imported_again_are_the_cache_that_is_there(tmp_path):
  file = npz(tmp_path / "a.npz")
  first = import_table(file, tmp_path / "c", num_classes=K)

  again = import_table(file, tmp_path / "c", num_classes=K)

  assert again.info == first.info


def test_other_rows_are_refused_into_the_cache_that_is_there(tmp_path):
  embedding, _ = vectors()
  file = npz(tmp_path / "a.npz")
  import_table(file, tmp_path / "c", num_classes=K)
  npz(file, embedding=embedding + 1)

  with pytest.raises(InputError):
    import_table(file, tmp_path / "c", num_classes=K)

  np.testing.assert_array_equal(rows_of(tmp_path / "c")["embedding"], embedding)


@pytest.mark.long
def test_memory_is_bounded(tmp_path):
  # 240 MB in a small file; a shard takes 8 MB.
  rows = np.broadcast_to(np.zeros(1, "f4"), (60_000, 1000))
  label = np.zeros(len(rows), int)
  np.savez_compressed(tmp_path / "a.npz", embedding=rows, label=label)
  digits = np.random.default_rng(0).integers(0, 4, (1000, 1000)).astype("f4")
  column = pa.array(list(digits), pa.list_(pa.float32()))
  some = pa.table({"embedding": column, "label": label[:1000]})
  with pq.ParquetWriter(tmp_path / "a.parquet", some.schema) as writer:
    for _ in range(60):
      writer.write_table(some)
  # Small files first, so that the libraries are loaded before it is measured.
  pq.write_table(some, tmp_path / "b.parquet")
  np.savez(tmp_path / "b.npz", embedding=np.eye(2), label=np.arange(2))
  for name in "b.npz", "b.parquet":
    import_table(tmp_path / name, tmp_path / f"{name}.cache", num_classes=K)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

  for name in "a.npz", "a.parquet":
    import_table(tmp_path / name, tmp_path / f"{name}.cache", num_classes=K)

  more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
  assert more < 220_000  # KB
