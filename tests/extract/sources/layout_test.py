"""Folders that are no classes, and images that are not their own."""

import pathlib

import pytest

from oneshot_dp.extract.sources import layout
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  labels_of,
  open_dataset,
  write_files,
)


@pytest.mark.parametrize("test", ["cat/test/2.png", "dog/test/2.png"])
def test_a_folder_with_splits_in_its_classes_is_refused(tmp_path, test):
  write_files(tmp_path, "cat/train/1.png", test, "dog/3.png")

  with refused("splits in its classes: 'test', 'train'; put .* test/cat"):
    open_dataset(tmp_path)


def test_trains_are_a_kind_of_vehicle(tmp_path):
  write_files(tmp_path, "vehicle/train/1.png", "vehicle/car/2.png", "dog/3.png")

  assert open_dataset(tmp_path).class_names == ("dog", "vehicle")


@pytest.fixture
def folds(tmp_path) -> pathlib.Path:
  """Two folds, and both classes in each."""
  for fold in ("fold_0", "fold_1"):
    write_files(tmp_path, f"{fold}/cat/1.png", f"{fold}/dog/2.png")
  return tmp_path


def test_folds_that_have_all_classes_are_refused_as_classes(folds):
  with refused("'fold_0', 'fold_1' all have the folders 'cat', 'dog'"):
    open_dataset(folds)


def test_classes_with_equal_folders_are_read_where_a_flag_names_them(folds):
  source = open_dataset(folds, class_names=("fold_0", "fold_1"))

  assert labels_of(source) == [0, 0, 1, 1]


@pytest.mark.parametrize(
  "name", ["1_mask", "1_mask_2", "1-32x32", "1.Thumb", "1_gt1"]
)
def test_a_mask_or_small_copy_beside_its_image_is_refused(tmp_path, name):
  write_files(tmp_path, "cat/1.jpg", f"cat/{name}.png")

  with refused(f"beside their images: 'cat/{name}.png'; move them out"):
    open_dataset(tmp_path)


def test_a_name_of_a_mask_without_its_image_is_an_image(tmp_path):
  write_files(tmp_path, "cat/1.jpg", "cat/with_mask.png", "cat/2_mask.png")

  assert len(open_dataset(tmp_path)) == 3


@pytest.mark.parametrize(
  ("one", "other"),
  [
    ("seg_train/seg_train", "seg_test/seg_test"),
    ("training_set", "test_set"),
    ("train2017", "val2017"),
    ("TrainImages", "TestImages"),
  ],
)
def test_folders_that_are_called_after_splits_are_no_classes(
  tmp_path, one, other
):
  write_files(tmp_path, f"{one}/cat/1.png", f"{one}/dog/2.png")
  write_files(tmp_path, f"{other}/cat/3.png", f"{other}/dog/4.png")

  with refused("called after splits, not classes: .*; give one of them"):
    open_dataset(tmp_path)


@pytest.mark.parametrize(
  ("one", "other"),
  [("bullet_train", "test_tube"), ("train_1", "train_2"), ("cat", "dev")],
)
def test_classes_that_have_words_of_splits_are_classes(tmp_path, one, other):
  write_files(tmp_path, f"{one}/1.png", f"{other}/2.png")

  assert open_dataset(tmp_path).class_names == (one, other)


def test_folders_of_splits_are_classes_where_a_flag_names_them(tmp_path):
  write_files(tmp_path, "train_set/1.png", "test_set/2.png")

  source = open_dataset(tmp_path, class_names=("test_set", "train_set"))

  assert labels_of(source) == [0, 1]


@pytest.mark.parametrize("inner", ["cat dog", "photos"])
def test_a_folder_in_a_folder_of_its_name_is_no_class(tmp_path, inner):
  for name in inner.split():
    write_files(tmp_path, f"photos/{name}/1.png")

  with refused(f"one class, 'photos', .* give '{tmp_path}/photos'; if not"):
    open_dataset(tmp_path)


def test_splits_in_the_only_folder_are_looked_for_there(tmp_path):
  write_files(tmp_path, "images/train/cat/1.png", "images/test/cat/2.png")

  with refused(f"splits in its classes: .*; give '{tmp_path}/images'"):
    open_dataset(tmp_path)


@pytest.mark.parametrize(
  ("image", "derived"),
  [
    ("cat/1.jpg", "cat/thumbs/1.jpg"),
    ("cat/1.jpg", "cat/Thumbnails/1.png"),
    ("cat/images/1.jpg", "cat/masks/1.png"),
    ("cat/1.jpg", "masks/cat/1.png"),
    ("cat/a/1.jpg", "cat/a/ground_truth/1.png"),
    ("Images/1.jpg", "Masks/1.png"),
    ("images/1.jpg", "annotations/trimaps/1.png"),
    ("JPEGImages/1.jpg", "SegmentationClass/1.png"),
    ("rgb/1.png", "depth/1.png"),
  ],
)
def test_a_folder_of_masks_or_small_copies_of_images_is_refused(
  tmp_path, image, derived
):
  write_files(tmp_path, image, derived, "dog/2.jpg")

  with refused(f"beside their images: '{derived}'; move them out"):
    open_dataset(tmp_path)


@pytest.mark.parametrize(
  "paths", ["mask/1.jpg hat/1.jpg", "cat/masks/1.jpg cat/2.jpg"]
)
def test_a_folder_of_masks_without_their_images_is_read(tmp_path, paths):
  write_files(tmp_path, *paths.split())

  assert len(open_dataset(tmp_path)) == 2


COPIES = [
  ("1.jpg", "1.webp"),
  ("1.jpg", "1 (1).jpg"),
  ("1.jpg", "1 - Copy.jpg"),
  ("1.jpg", "1_flip.png"),
  ("1.jpg", "1_aug_12.jpg"),
  ("1_jpg.rf.0a1b.jpg", "1_jpg.rf.ffee.jpg"),
  ("1.jpg", "1 - Kopie.jpg"),
  ("1.jpg", "1~2.jpg"),
  ("1.jpg", "Copy of 1.jpg"),
  ("IMG_1.JPG", "IMG_E1.JPG"),
]


@pytest.mark.parametrize(("one", "other"), COPIES)
def test_images_that_are_named_as_copies_are_warned_of(
  tmp_path, capsys, one, other
):
  write_files(tmp_path, f"cat/{one}", f"cat/{other}", "dog/2.jpg")

  assert len(open_dataset(tmp_path)) == 3

  message = capsys.readouterr().err
  assert f"named as copies of others: 1, such as 'cat/{one}' and" in message


@pytest.mark.parametrize(
  "name", ["2_flip.jpg", "carrot.jpg", "copy.jpg", "1(1)/1.jpg", "12.webp"]
)
def test_images_without_an_original_are_not_warned_of(tmp_path, capsys, name):
  write_files(tmp_path, "cat/1.jpg", f"cat/{name}", "dog/1.png")

  open_dataset(tmp_path)

  assert "copies" not in capsys.readouterr().err


def test_images_that_were_numbered_all_at_once_are_not_warned_of(
  tmp_path, capsys
):
  write_files(tmp_path, "cat/cat (1).jpg", "cat/cat (2).jpg", "dog/dog(1).jpg")

  open_dataset(tmp_path)

  assert "copies" not in capsys.readouterr().err


def test_copies_that_a_unit_has_together_are_not_warned_of(tmp_path, capsys):
  write_files(tmp_path, "cat/1.jpg", "cat/1.webp", "dog/2.jpg")

  open_dataset(tmp_path, units=r"/(?P<photo>[^.]+)")

  assert "copies" not in capsys.readouterr().err


def test_names_are_looked_at_beyond_the_first_batch(
  tmp_path, monkeypatch, capsys
):
  """They come in batches, and only those with a hint are looked at closely."""
  monkeypatch.setattr(layout, "_NAMES_AT_ONCE", 40)
  plain = [f"cat/{i:05d}.jpg" for i in range(50)]
  write_files(tmp_path, *plain, "cat/00049_flip.jpg", data=b"")

  open_dataset(tmp_path)

  assert "'cat/00049_flip.jpg'" in capsys.readouterr().err


VIEWS = [
  ("10_left", "10_right"),
  ("cat_1_crop", "cat_1_depthcrop"),
  ("1a", "1b"),
  ("1", "1@2x"),
]


@pytest.mark.parametrize(("one", "other"), VIEWS)
def test_images_that_differ_in_the_last_word_alone_are_warned_of(
  tmp_path, capsys, one, other
):
  for folder in ("cat", "dog"):
    write_files(tmp_path, f"{folder}/{one}.jpg", f"{folder}/{other}.jpg")

  open_dataset(tmp_path)

  message = capsys.readouterr().err
  assert f"such as 'cat/{one}.jpg' and 'cat/{other}.jpg': if these" in message


@pytest.mark.parametrize(
  "names",
  [
    "1_left 2_right 3_left 4_right",
    "red_cat red_dog blue_cat blue_dog",
    "1_left 1_right 2 3 4",
  ],
)
def test_other_names_that_end_in_words_are_not_warned_of(
  tmp_path, capsys, names
):
  paths = [f"001.cat/{name}.jpg" for name in names.split()]
  write_files(tmp_path, *paths, "dog/7.jpg")

  open_dataset(tmp_path)

  assert not capsys.readouterr().err


SPLITS_IN_NAMES = [
  ("cat/train_1.jpg cat/test_1.jpg", True),
  ("cat/Places365_train_0001.jpg dog/Places365_val_0001.jpg", True),
  ("cat/train_1.jpg dog/train_2.jpg", False),
  ("bullet_train/1.jpg test_tube/2.jpg", False),
  ("cat/strain_1.jpg dog/test_2.jpg", False),
]


@pytest.mark.parametrize(("paths", "is_warned"), SPLITS_IN_NAMES)
def test_images_that_are_named_after_several_splits_are_warned_of(
  tmp_path, capsys, paths, is_warned
):
  write_files(tmp_path, *paths.split())

  open_dataset(tmp_path)

  assert ("say the splits" in capsys.readouterr().err) == is_warned


@pytest.mark.parametrize("other", ["cat", "dog"])
def test_folds_of_few_classes_are_refused_as_classes(tmp_path, other):
  write_files(tmp_path, "fold1/cat/1.png", f"fold2/{other}/2.png")

  with refused("called after folds, not classes: 'fold1', 'fold2'; give one"):
    open_dataset(tmp_path)


def test_folders_in_classes_are_noted_to_be_none(tmp_path, capsys):
  write_files(tmp_path, "a/abbey/1.png", "b/bar/2.png", "b/boat/3.png")

  assert open_dataset(tmp_path).class_names == ("a", "b")

  message = capsys.readouterr().err
  assert "the classes are 'a', 'b', and not the folders in them" in message
