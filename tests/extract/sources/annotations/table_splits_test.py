"""Which files of a location are one source, and which split they are of."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  images_of,
  open_dataset,
  write_table,
  write_tar,
)

KINDS = ("parquet", "tar")
CLASSES = ("cat", "dog", "owl")
IMAGES = [b"image %d" % i for i in range(12)]


@pytest.fixture(params=KINDS)
def twelve(request, tmp_path) -> list[pathlib.Path]:
  """Twelve files of one image each, in the folder `pets`."""
  paths: list[pathlib.Path] = []
  for i in range(12):
    paths.append(tmp_path / "pets" / f"x{i:02d}.{request.param}")
    write_table(paths[i], [IMAGES[i]], label=[0])
  return paths


@pytest.mark.parametrize("words", ["braces", "stars", "files", "folder"])
def test_several_files_are_one_source_however_they_are_named(twelve, words):
  # Each way of a command line to name the same files.
  folder = twelve[0].parent
  suffix = twelve[0].suffix
  location = {
    "braces": [f"{folder}/x{{00..11}}{suffix}"],
    "stars": [f"{folder}/*{suffix}"],
    "files": twelve,
    "folder": [folder],
  }[words]

  source = open_dataset(*location, num_classes=1)

  assert source.name == "pets"
  assert images_of(source) == IMAGES


def test_a_single_file_names_its_data_set(twelve):
  assert open_dataset(twelve[0], num_classes=1).name == "x00"


def test_a_file_that_is_given_twice_is_refused(twelve):
  with refused("give a folder .* each once"):
    open_dataset(twelve[0], twelve[0], num_classes=1)


@pytest.mark.parametrize("numbers", ["{9..1}", "{00..12}"])
def test_braces_of_missing_files_are_refused(twelve, numbers):
  with refused("does not exist"):
    open_dataset(twelve[0].parent / f"x{numbers}{twelve[0].suffix}")


# Names of files, the split asked for, and which files are then read.
SPLITS = [
  ("data/test-0-of-1-ab12.parquet data/train-0-of-1.parquet", "train", [1]),
  ("a-train_extra-000-of-001.tar a-train-000-of-001.tar", "train", [1]),
  ("default/train/0001.parquet default/train/0000.parquet", None, [1, 0]),
  ("split=train/0.parquet split=test/0.parquet", "test", [1]),
  ("Subset=train/0.parquet Subset=test/0.parquet", "test", [1]),
  ("subset=cat/0.parquet subset=dog/0.parquet", None, [0, 1]),
  ("1.tar 0.tar .2.tar", None, [1, 0]),
  ("x.parquet/part-0.snappy.parquet", "all", [0]),  # as Spark has it
  ("x_train.tar b.tar", "train", [0]),
  ("TrainSet.tar TestSet.tar", "Test", [1]),
  ("traindata1.tar traindata2.tar testdata.tar", "train", [0, 1]),
  ("train.tar dev.tar", "dev", [1]),
  ("dev/a_train.tar dev/b_eval.tar", "train", [0]),
  ("contest.tar strain.tar", None, [0, 1]),
  ("dev/1.tar dev/0.tar", "all", [1, 0]),  # a place of work
]
NO_SPLITS = [
  ("x_train.parquet x_test.parquet", None, "give --split, one of 'test', 'tr"),
  (
    "x_train.tar b.tar",
    None,
    "'b.tar' tells no split, .* give --split, one of 'train'",
  ),
  ("0.tar", "train", "--split 'train' is none of 'all'"),
  ("a_train.tar a_eval.tar", None, "give --split, one of 'eval', 'train'"),
  ("a/train.tar b/train.tar", "train", r"one of 'a/\*.tar', 'b/\*.tar'"),
  ("a.tar.gz b.tar", "all", "'a.tar.gz': give .*not compressed"),
  ("a.txt", "all", r"'a.txt': give a folder that has a folder"),
]


def write_named_files(folder: pathlib.Path, names: str) -> list[str]:
  """Tables of one image each, whose bytes are the name of the file."""
  paths = names.split()
  for path in paths:
    write_table(folder / path, [path.encode()], label=[0])
  return paths


@pytest.mark.parametrize(("names", "split", "read"), SPLITS)
def test_names_of_files_and_folders_say_the_split(tmp_path, names, split, read):
  paths = write_named_files(tmp_path, names)

  source = open_dataset(tmp_path, class_names=CLASSES, split=split)

  expected = [paths[i].encode() for i in read]
  assert images_of(source) == expected


@pytest.mark.parametrize(("names", "split", "message"), NO_SPLITS)
def test_a_split_that_is_not_plain_is_refused(tmp_path, names, split, message):
  write_named_files(tmp_path, names)
  with refused(message):
    open_dataset(tmp_path, class_names=CLASSES, split=split)


SPLIT_COLUMNS = ("split", "Split", "subset", "partition")


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


def test_files_of_no_split_beside_others_are_named(tmp_path):
  for name in ("pets-train.parquet", "more.parquet"):
    write_table(tmp_path / name, [IMAGES[0]], label=[0])

  with refused("'more.parquet' tells no split, .* one of 'train', or put"):
    open_dataset(tmp_path, num_classes=1)
  assert images_of(open_dataset(tmp_path, num_classes=1, split="train")) == [
    IMAGES[0]
  ]


FLAGS = [
  ("is_test", [False, True, False]),
  ("is_training_image", [1, 0, 1]),
  ("in_train", ["true", "false", "True"]),
  ("test_mask", [True, False, False]),
  ("data_split", ["train", "test", "train"]),
  ("phase", ["Train", "val", "val"]),
]


@pytest.mark.parametrize(("column", "values"), FLAGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_flags_test_rows_is_refused(
  tmp_path, kind, column, values
):
  path = tmp_path / f"pets.{kind}"
  write_table(path, IMAGES[:3], label=[0, 1, 0], **{column: values})

  with refused(f"several splits in its column '{column}'"):
    open_dataset(path, class_names=CLASSES)


NO_FLAGS = [
  ("is_test", [True, True, True]),
  ("covid_test", [1, 0, 1]),
  ("is_covid_test", [1, 0, 1]),
  ("is_blurred", [True, False, True]),
  ("phase", ["train", "bus", "bus"]),
  ("dataset", ["coco", "voc", "voc"]),
  ("test_score", [3, 4, 5]),
]


@pytest.mark.parametrize(("column", "values"), NO_FLAGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_something_else_is_passed_over(
  tmp_path, capsys, kind, column, values
):
  path = tmp_path / f"pets.{kind}"
  write_table(path, IMAGES[:3], label=[0, 1, 0], **{column: values})

  assert len(open_dataset(path, class_names=CLASSES)) == 3

  assert column not in capsys.readouterr().err


@pytest.mark.parametrize("column", ["split", "fold", "valid"])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_may_be_splits_are_warned_of(
  tmp_path, capsys, kind, column
):
  path = tmp_path / f"pets.{kind}"
  columns: dict[str, Any] = {column: [0, 1, 1]}
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
  ("names", "missing"),
  [
    ("train-00000-of-00003.tar train-00002-of-00003.tar", "1 of 3"),
    ("x-000000.tar x-000001.tar x-000003.tar", "1 of 4"),
  ],
)
def test_files_that_are_missing_by_their_numbers_are_warned_of(
  tmp_path, capsys, names, missing
):
  write_named_files(tmp_path, names)

  open_dataset(tmp_path, class_names=CLASSES)

  assert f"{missing} files are missing" in capsys.readouterr().err


@pytest.mark.parametrize(
  "names",
  [
    "train-0-of-2-ab.tar train-1-of-2-cd.tar",
    "cat-train-0-of-1.tar dog-train-0-of-2.tar dog-train-1-of-2.tar",
    "2019.tar 2021.tar",
    "000.tar 777.tar",
  ],
)
def test_files_that_are_whole_are_not_warned_of(tmp_path, capsys, names):
  write_named_files(tmp_path, names)

  open_dataset(tmp_path, class_names=CLASSES)

  assert "missing" not in capsys.readouterr().err


def test_one_file_of_several_is_read_where_it_is_named(tmp_path, capsys):
  write_named_files(tmp_path, "train-00000-of-00002.tar")

  open_dataset(tmp_path / "train-00000-of-00002.tar", class_names=CLASSES)

  assert "missing" not in capsys.readouterr().err


@pytest.mark.parametrize(
  "names",
  [
    "train-0-of-1.tar train-0-of-2.tar train-1-of-2.tar",
    "train-0-of-1-old.tar train-0-of-1-new.tar",
  ],
)
def test_files_of_two_writings_are_refused(tmp_path, names):
  write_named_files(tmp_path, names)

  with refused("files 'train' of several writings, .* the older ones"):
    open_dataset(tmp_path, class_names=CLASSES)


def write_npz(path: pathlib.Path, **others: Any) -> pathlib.Path:
  images = np.full((4, 2, 2, 3), 99, np.uint8)
  np.savez(path, image=images, label=np.array([0, 1, 0, 1]), **others)
  return path


@pytest.mark.parametrize(
  ("name", "values"),
  [
    ("is_test", np.array([True, False, False, True])),
    ("test_mask", np.array([1, 0, 0, 1])),
    ("split", np.array([b"train", b"train", b"test", b"test"])),
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


@pytest.mark.parametrize(
  ("name", "split", "expected"),
  [
    ("pets.npz", None, "all"),
    ("pets.npz", "val", "val"),
    ("pets_test.npz", None, "test"),
    ("pets_val.npz", "validation", "validation"),
    ("train_and_test.npz", "train", "train"),
  ],
)
def test_an_npz_is_of_the_split_of_its_flag_or_name(
  tmp_path, name, split, expected
):
  path = write_npz(tmp_path / name)

  source = open_dataset(path, class_names=CLASSES, split=split)

  assert source.split == expected


def test_an_npz_that_is_called_after_another_split_is_refused(tmp_path):
  path = write_npz(tmp_path / "pets_test.npz")

  with refused("'pets_test.npz', '--split train' are of different splits"):
    open_dataset(path, class_names=CLASSES, split="train")


@pytest.mark.parametrize("kind", KINDS)
def test_owners_of_two_kinds_in_two_files_are_refused(tmp_path, kind):
  """Else 7 and "7" would be two, and each be protected in half of the rows."""
  for name, owners in (("a", [7, 8]), ("b", ["7", "8"])):
    columns: dict[str, Any] = {"label": [0, 1], "user": owners}
    write_table(tmp_path / f"{name}.{kind}", IMAGES[:2], **columns)

  with refused("--units 'user' must be all integers .* in all files"):
    open_dataset(tmp_path, class_names=CLASSES, units="user")


def test_one_class_is_warned_of(tmp_path, capsys):
  write_table(tmp_path / "pets.parquet", IMAGES[:2], label=[0, 0])

  open_dataset(tmp_path / "pets.parquet", class_names=("cat",))

  warning = "has one class, 'cat', and no head can be trained on one"
  assert warning in capsys.readouterr().err
