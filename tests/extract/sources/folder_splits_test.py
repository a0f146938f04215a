"""Folders that are called fold=0 or is_test=1: what they say of splits."""

import numpy as np
import pytest

from oneshot_dp.pipeline.import_table import import_table
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import open_dataset, write_table
from tests.pipeline.vector_tables import K, npz, write_parquet_split

CLASSES = ("cat", "dog", "owl")
WARNING = "the column 'fold' has several values, and is not used: all rows"


def test_folders_that_flag_test_rows_are_refused(tmp_path):
  for name in ("is_test=0", "is_test=1"):
    write_table(tmp_path / name / "a.parquet", [b"image"], label=[0])

  with refused("several splits in its column 'is_test'"):
    open_dataset(tmp_path, class_names=CLASSES)


@pytest.mark.parametrize("numbers", ["01", "12", "789"])
def test_folders_of_folds_are_warned_of(tmp_path, capsys, numbers):
  for number in numbers:
    path = tmp_path / f"fold={number}" / "a.parquet"
    write_table(path, [number.encode()], label=[0])

  open_dataset(tmp_path, class_names=CLASSES)

  assert WARNING in capsys.readouterr().err


def test_one_folder_of_a_fold_is_not_warned_of(tmp_path, capsys):
  write_table(tmp_path / "fold=0" / "a.parquet", [b"image"], label=[0])

  open_dataset(tmp_path / "fold=0", class_names=CLASSES)

  assert "fold" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["npz", "parquet"])
@pytest.mark.parametrize("numbers", ["01", "12", "789"])
def test_import_of_folders_of_folds_is_warned_of(
  tmp_path, capsys, numbers, kind
):
  for number in numbers:
    folder = tmp_path / "v" / f"fold={number}"
    if kind == "parquet":
      write_parquet_split(folder, "a.parquet", [0, 1])
    else:
      folder.mkdir(parents=True)
      npz(folder / "a.npz")

  import_table(tmp_path / "v", tmp_path / "c", num_classes=K)

  assert capsys.readouterr().err.count(WARNING) == 1


@pytest.mark.filterwarnings("ignore:.*not used")
def test_import_of_folders_that_flag_test_rows_is_refused(tmp_path):
  for name in ("is_test=0", "is_test=1"):
    write_parquet_split(tmp_path / "v" / name, "a.parquet", [0, 1])

  with refused("several splits in its column 'is_test'"):
    import_table(tmp_path / "v", tmp_path / "c", num_classes=K)


@pytest.mark.filterwarnings("ignore:.*not used")
def test_import_of_labels_in_folders_says_nothing_of_splits(tmp_path, capsys):
  for number in "01":
    folder = tmp_path / "v" / f"set={number}"
    folder.mkdir(parents=True)
    embedding = np.random.default_rng(0).normal(size=(2, 3))
    np.savez(folder / "a.npz", embedding=embedding, label=[0, 1], set=[0, 1])

  import_table(
    tmp_path / "v",
    tmp_path / "c",
    num_classes=2,
    label="label",
    unit_name="set",
  )

  assert "all rows are read as one split" not in capsys.readouterr().err
