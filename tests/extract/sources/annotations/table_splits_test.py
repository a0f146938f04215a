"""Which files of a location are one source, and which split they are of."""

import pathlib

import pytest

from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  images_of,
  open_dataset,
  write_named_files,
  write_npz,
  write_table,
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


def test_files_of_no_split_beside_others_are_named(tmp_path):
  for name in ("pets-train.parquet", "more.parquet"):
    write_table(tmp_path / name, [IMAGES[0]], label=[0])

  with refused("'more.parquet' tells no split, .* one of 'train', or put"):
    open_dataset(tmp_path, num_classes=1)
  assert images_of(open_dataset(tmp_path, num_classes=1, split="train")) == [
    IMAGES[0]
  ]


def test_a_folder_that_has_a_part_only_is_warned_of(tmp_path, capsys):
  """As the Hub calls its copies in Parquet of large data sets."""
  write_named_files(tmp_path, "partial-train/0000.parquet")

  assert len(open_dataset(tmp_path, class_names=CLASSES)) == 1

  assert "first part of a data set only" in capsys.readouterr().err


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
