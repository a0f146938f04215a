"""Columns, arrays and folders that say of which split each row is."""

import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  images_of,
  open_dataset,
  write_npz,
  write_table,
  write_tar,
)

KINDS = ("parquet", "tar")
CLASSES = ("cat", "dog", "owl")
IMAGES = [b"image %d" % i for i in range(3)]

SPLIT_COLUMNS = ("split", "Split", "subset", "partition")
FLAGS = [
  ("is_test", [False, True, False]),
  ("is_training_image", [1, 0, 1]),
  ("in_train", ["true", "false", "True"]),
  ("test_mask", [True, False, False]),
  ("data_split", ["train", "test", "train"]),
  ("phase", ["Train", "val", "val"]),
  ("mode", ["train", "test", "train"]),
  ("is_test", [0.0, 1.0, 0.0]),
]
NO_FLAGS = [
  ("is_test", [True, True, True]),
  ("covid_test", [1, 0, 1]),
  ("is_covid_test", [1, 0, 1]),
  ("is_blurred", [True, False, True]),
  ("phase", ["train", "bus", "bus"]),
  ("dataset", ["coco", "voc", "voc"]),
  ("test_score", [3, 4, 5]),
  ("test_set", [0.0, 0.5, 1.0]),
  ("caption", ["train", "test", "a cat"]),
  ("file", ["train/1.jpg", "train/2.jpg", "train/3.jpg"]),
]
DOUBTFUL = [
  ("split", [0, 1, 1]),
  ("fold", [0, 1, 1]),
  ("valid", [0, 1, 1]),
  ("split", [0.0, 1.0, 1.0]),
  ("split_id", [0, 1, 1]),
  ("kfold", [0, 1, 2]),
  ("data_split", ["tr", "te", "tr"]),
  ("file", ["train/1.jpg", "test/1.jpg", "test/2.jpg"]),
  ("key", ["train_0001", "test_0001", "test_0002"]),
]


@pytest.mark.parametrize("column", SPLIT_COLUMNS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_says_several_splits_is_refused(tmp_path, kind, column):
  columns: dict[str, Any] = {
    "label": [0, 1, 0],
    column: ["train", "train", "test"],
  }
  path = tmp_path / f"pets.{kind}"
  write_table(path, IMAGES[:3], **columns)
  with refused(f"several splits in its column '{column}' .'test', 'train'"):
    open_dataset(path, class_names=CLASSES)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_several_splits_are_refused_beside_another_column(
  tmp_path, kind, order
):
  """`fold` may be numbers of folds, which say nothing of test rows."""
  columns: dict[str, Any] = {"split": ["train", "test"], "fold": ["0", "1"]}
  named = dict(list(columns.items())[::order])
  path = tmp_path / f"pets.{kind}"
  write_table(path, IMAGES[:2], label=[0, 1], **named)
  with refused("several splits in its column 'split'"):
    open_dataset(path, class_names=CLASSES)


def test_a_member_of_samples_that_says_several_splits_is_refused(tmp_path):
  members: dict[str, bytes | None] = {}
  for name, split in (("a", b"train"), ("b", b"val")):
    members |= {f"{name}.png": b"", f"{name}.cls": b"0", f"{name}.split": split}
  write_tar(tmp_path / "pets.tar", members)
  with refused("several splits in its column 'split' .'train', 'val'"):
    open_dataset(tmp_path / "pets.tar", class_names=CLASSES)


def test_paths_of_images_that_say_several_splits_are_warned_of(
  tmp_path, capsys
):
  """As `datasets` keeps them beside the bytes."""
  images = [{"bytes": IMAGES[0], "path": "train/1.jpg"}]
  images.append({"bytes": IMAGES[1], "path": "test/1.jpg"})
  table = pa.table({"image": images, "label": [0, 1]})
  parquet.write_table(table, tmp_path / "pets.parquet")

  open_dataset(tmp_path / "pets.parquet", class_names=CLASSES)

  assert "the column 'image.path' has several" in capsys.readouterr().err


@pytest.mark.parametrize(
  "names", [("train_1", "test_1"), ("train2017/1", "val2017/1")]
)
def test_keys_and_folders_of_samples_that_say_splits_are_seen(
  tmp_path, capsys, names
):
  members: dict[str, bytes | None] = {}
  for name in names:
    members |= {f"{name}.png": name.encode(), f"{name}.cls": b"0"}
  write_tar(tmp_path / "pets.tar", members)

  if "/" in names[0]:
    with refused("several splits in its column 'names of folders'"):
      open_dataset(tmp_path / "pets.tar", class_names=CLASSES)
    return
  open_dataset(tmp_path / "pets.tar", class_names=CLASSES)
  assert "'names of samples' has several values" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_say_a_split_each_are_refused(tmp_path, kind):
  for number, split in enumerate(("train", "test")):
    path = tmp_path / f"{number}.{kind}"
    write_table(path, [IMAGES[number]], label=[0], split=[split])
  with refused("several splits in its column 'split' .'test', 'train'"):
    open_dataset(tmp_path, class_names=CLASSES)


def test_a_column_that_says_one_split_is_passed_over(tmp_path):
  columns = {"label": [0, 1, 0], "split": ["train"] * 3}
  write_table(tmp_path / "pets.parquet", IMAGES[:3], **columns)

  source = open_dataset(tmp_path / "pets.parquet", class_names=CLASSES)

  assert images_of(source) == IMAGES[:3]


@pytest.mark.parametrize(("column", "values"), FLAGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_flags_test_rows_is_refused(
  tmp_path, kind, column, values
):
  path = tmp_path / f"pets.{kind}"
  write_table(path, IMAGES[:3], label=[0, 1, 0], **{column: values})

  with refused(f"several splits in its column '{column}'"):
    open_dataset(path, class_names=CLASSES)


@pytest.mark.parametrize(("column", "values"), NO_FLAGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_something_else_is_passed_over(
  tmp_path, capsys, kind, column, values
):
  path = tmp_path / f"pets.{kind}"
  write_table(path, IMAGES[:3], label=[0, 1, 0], **{column: values})

  assert len(open_dataset(path, class_names=CLASSES)) == 3

  assert column not in capsys.readouterr().err


@pytest.mark.parametrize(("column", "values"), DOUBTFUL)
@pytest.mark.parametrize("kind", KINDS)
def test_values_that_may_be_splits_are_warned_of(
  tmp_path, capsys, kind, column, values
):
  path = tmp_path / f"pets.{kind}"
  columns: dict[str, Any] = {column: values}
  write_table(path, IMAGES[:3], label=[0, 1, 0], **columns)

  open_dataset(path, class_names=CLASSES)

  warning = f"the column '{column}' has several values, and is not used"
  assert warning in capsys.readouterr().err


def test_a_class_label_of_splits_is_read_by_its_names(tmp_path):
  path = tmp_path / "pets.parquet"
  write_table(path, IMAGES[:3], label=[0, 1, 0], split=[0, 1, 0])
  classes = {"split": {"names": ["train", "test"], "_type": "ClassLabel"}}
  noted = json.dumps({"info": {"features": classes}})
  table = parquet.read_table(path)
  parquet.write_table(
    table.replace_schema_metadata({"huggingface": noted}), path
  )

  with refused("several splits in its column 'split' .'test', 'train'"):
    open_dataset(path, class_names=CLASSES, label="label")


def test_a_split_that_only_later_samples_state_is_found(tmp_path):
  """The json of the first sample lacks the field."""
  members: dict[str, bytes | None] = {"0.png": b"", "0.json": b'{"label": 0}'}
  for number, split in enumerate(("train", "test"), 1):
    text = f'{{"label": 0, "split": "{split}", "patient": "a"}}'
    members |= {f"{number}.png": b"", f"{number}.json": text.encode()}
  write_tar(tmp_path / "pets.tar", members)

  with refused("several splits in its column 'split'"):
    open_dataset(tmp_path / "pets.tar", class_names=CLASSES)


def test_rows_of_another_split_than_their_file_are_warned_of(tmp_path, capsys):
  path = tmp_path / "train.parquet"
  write_table(path, IMAGES[:2], label=[0, 1], split=["test", "test"])

  open_dataset(path, class_names=CLASSES)

  message = capsys.readouterr().err
  assert "all rows are of the split 'test', and they are read as 't" in message


@pytest.mark.parametrize(
  ("name", "values"),
  [
    ("is_test", np.array([True, False, False, True])),
    ("test_mask", np.array([1, 0, 0, 1])),
    ("split", np.array([b"train", b"train", b"test", b"test"])),
    ("split", np.array([["train"], ["train"], ["test"], ["test"]])),
    ("mode", np.array(["train", "train", "test", "test"])),
    ("is_test", np.array([0.0, 1.0, np.nan, 1.0])),
  ],
)
def test_an_array_that_flags_test_rows_is_refused(tmp_path, name, values):
  path = write_npz(tmp_path / "pets.npz", **{name: values})

  with refused(f"several splits in its column '{name}'"):
    open_dataset(path, class_names=CLASSES)


def test_arrays_that_choose_rows_are_warned_of(tmp_path, capsys):
  rows = {"train_idx": np.arange(3), "test_idx": np.arange(3, 4)}
  path = write_npz(tmp_path / "pets.npz", **rows)

  open_dataset(path, class_names=CLASSES)

  message = capsys.readouterr().err
  assert "'train_idx', 'test_idx' not used: all rows are read" in message


def test_an_array_of_another_length_says_nothing_of_rows(tmp_path, capsys):
  path = write_npz(tmp_path / "pets.npz", fold=np.arange(9))

  open_dataset(path, class_names=CLASSES)

  assert "fold" not in capsys.readouterr().err


def test_large_arrays_of_another_split_are_not_read(tmp_path):
  """They are known by their headers: these bytes are no numbers."""
  others = {"test_pixels": np.array([{}, {}, {}, {}], object)}
  path = write_npz(tmp_path / "pets.npz", **others)

  assert len(open_dataset(path, class_names=CLASSES)) == 4


def test_images_and_labels_of_different_splits_are_refused(tmp_path):
  arrays = {"x_train": np.full((4, 2, 2, 3), 99, np.uint8), "y_test": [0] * 4}
  np.savez(tmp_path / "pets.npz", **arrays)

  with refused("'x_train', 'y_test', .* are of different splits"):
    open_dataset(
      tmp_path / "pets.npz", image="x_train", label="y_test", num_classes=2
    )


def write_two_splits(path: pathlib.Path) -> None:
  """An npz of a train and a test set whose arrays are not called as usual."""
  images = np.full((4, 2, 2, 3), 99, np.uint8)
  labels = np.array([0, 1, 0, 1])
  np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)


def test_arrays_that_a_flag_names_tell_their_split(tmp_path):
  write_two_splits(tmp_path / "pets.npz")

  source = open_dataset(
    tmp_path / "pets.npz", image="x_test", label="y_test", num_classes=2
  )

  assert source.split == "test"


def test_arrays_of_another_split_than_its_flag_are_refused(tmp_path):
  write_two_splits(tmp_path / "pets.npz")

  with refused("'x_train', 'y_train', '--split test' are of different splits"):
    open_dataset(
      tmp_path / "pets.npz",
      split="test",
      image="x_train",
      label="y_train",
      num_classes=2,
    )
