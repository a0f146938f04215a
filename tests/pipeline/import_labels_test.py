"""Of which class each row of a table is, and whose."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.pipeline.import_table import import_table
from tests.pipeline.command_line import succeeds
from tests.pipeline.vector_tables import (
  K,
  N,
  npz,
  parquet,
  rows_of,
  vectors,
  with_class_label,
  write_parquet_split,
)

NAMES = ("cat", "dog", "rat")

# Labels and classes.


def test_names_of_a_class_label_are_the_classes(tmp_path):
  embedding, label = vectors()
  table = pa.table({"embedding": embedding.tolist(), "label": label})
  pq.write_table(with_class_label(table, NAMES), tmp_path / "a.parquet")

  cache = import_table(tmp_path / "a.parquet", tmp_path / "c")

  assert cache.info.class_names == NAMES


@pytest.fixture
def labeled_by_name(tmp_path):
  """A file whose labels are the names of the classes."""
  embedding, label = vectors()
  words = [NAMES[number] for number in label]
  return parquet(tmp_path / "a.parquet", embedding.tolist(), words)


def test_labels_that_are_names_are_looked_up(tmp_path, labeled_by_name):
  import_table(labeled_by_name, tmp_path / "c", class_names=NAMES)

  _, label = vectors()
  np.testing.assert_array_equal(rows_of(tmp_path / "c")["label"], label)


def test_labels_that_are_names_are_not_collected(tmp_path, labeled_by_name):
  """Which classes there are would follow from private rows."""
  with pytest.raises(InputError, match="label is of strings: name all classes"):
    import_table(labeled_by_name, tmp_path / "c")


def test_integer_labels_among_decimal_class_names_are_those_names(tmp_path):
  """The label 1 is the class "1", and not the second of them."""
  embedding, _ = vectors()
  label = np.arange(N) % 2 + 1
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


def test_folders_of_partitions_are_columns_of_their_files(tmp_path):
  embedding, label = vectors()
  pq.write_to_dataset(
    pa.table({"embedding": [*embedding], "label": label}),
    tmp_path / "t",
    partition_cols=["label"],
  )

  import_table(tmp_path / "t", tmp_path / "c", num_classes=K)

  np.testing.assert_array_equal(rows_of(tmp_path / "c")["label"], sorted(label))


# Units.


@pytest.fixture(params=["npz", "parquet"])
def suffix(request):
  return request.param


@pytest.fixture(params=["numbers", "strings"])
def table_of_patients(request, suffix, tmp_path):
  """A file whose column `patient` names the same one for ten rows each."""
  embedding, label = vectors()
  column = np.arange(N) // 10
  if request.param == "strings":
    column = np.array([f"p{number}" for number in column])
  file = tmp_path / f"a.{suffix}"
  if suffix == "npz":
    return npz(file, patient=column)
  return parquet(file, embedding.tolist(), label, patient=column)


def test_units_are_by_a_column_of_their_name(tmp_path, table_of_patients):
  cache = import_table(
    table_of_patients, tmp_path / "c", num_classes=K, unit_name="patient"
  )

  assert cache.info.unit == "patient"
  # The same rows together, whatever the numbers of the units are.
  unit_id = rows_of(tmp_path / "c")["unit_id"].reshape(N // 10, 10)
  np.testing.assert_array_equal(unit_id, unit_id[:, :1].repeat(10, axis=1))
  assert len(np.unique(unit_id)) == N // 10


@pytest.fixture
def table_of_equal_rows(tmp_path):
  """A file in which two rows are of one image."""
  embedding, label = vectors()
  embedding[1] = embedding[0]
  label[1] = label[0]
  return npz(tmp_path / "a.npz", embedding=embedding, label=label)


def test_equal_embeddings_are_counted(tmp_path, capsys, table_of_equal_rows):
  out, _ = succeeds(
    capsys,
    *("import", table_of_equal_rows, "--num-classes", K),
    *("--out", tmp_path / "c"),
  )

  assert "2 rows share their embedding" in out
  assert "--units same-image" in out


def test_equal_embeddings_can_be_one_unit(
  tmp_path, capsys, table_of_equal_rows
):
  out, _ = succeeds(
    capsys,
    *("import", table_of_equal_rows, "--num-classes", K),
    *("--out", tmp_path / "c", "--units", "same-image"),
  )

  assert "all rows of a distinct image" in out
  unit_id = rows_of(tmp_path / "c")["unit_id"]
  assert len(np.unique(unit_id)) == N - 1
  inspected, _ = succeeds(capsys, "inspect", tmp_path / "c")
  assert "protected together" in inspected


def test_owners_that_are_passed_over_and_k_of_the_labels_are_told_of(
  tmp_path, capsys
):
  file = npz(tmp_path / "a.npz", patient=np.zeros(N, int))

  with (
    pytest.warns(UserWarning, match="'patient' not used.*--unit-name"),
    pytest.warns(UserWarning, match="K = 3 is taken from the labels"),
  ):
    succeeds(capsys, "import", file, "--out", tmp_path / "c")

  source = open_cache(str(tmp_path / "c")).info.num_classes_source
  assert source == "labels (treated as public)"


# Labels that may count from 1.


@pytest.mark.filterwarnings("ignore:.* so K = 3 is taken from the labels")
@pytest.mark.parametrize("kind", ["num_classes", "class_names", "nothing"])
def test_labels_from_1_to_one_less_than_the_classes_are_warned_of(
  tmp_path, capsys, kind
):
  embedding, label = vectors()
  flags: dict[str, dict[str, Any]] = {
    "num_classes": {"num_classes": K},
    "class_names": {"class_names": tuple("abcdefgh"[:K])},
    "nothing": {},
  }
  file = npz(tmp_path / "a.npz", embedding=embedding, label=label % (K - 1) + 1)

  import_table(file, tmp_path / "c", **flags[kind])

  warning = capsys.readouterr().err
  assert "no row has the label 0, and all others to" in warning


def test_a_first_class_without_rows_is_not_warned_of_where_names_are_labels(
  tmp_path, capsys
):
  embedding, label = vectors()
  words = [NAMES[1 + number % 2] for number in label]
  file = parquet(tmp_path / "a.parquet", embedding.tolist(), words)

  import_table(file, tmp_path / "c", class_names=NAMES)

  assert "label 0" not in capsys.readouterr().err
