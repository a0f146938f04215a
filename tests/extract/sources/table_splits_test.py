"""Which files of a location are one source, and which split they are of."""

import pathlib
from typing import Any

import pytest

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
]
NO_SPLITS = [
  ("x_train.parquet x_test.parquet", None, "give --split, one of 'test', 'tr"),
  (
    "x_train.tar b.tar",
    None,
    "'b.tar' tells no split, .* give --split, one of 'train'",
  ),
  ("0.tar", "train", "--split 'train' is none of 'all'"),
  ("a/train.tar b/train.tar", "train", r"one of 'a/\*.tar', 'b/\*.tar'"),
  ("a.tar.gz b.tar", "all", "'a.tar.gz': give .*not compressed"),
  ("a.txt", "all", r"'a.txt': give a folder of a folder"),
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
