"""What `inspect` reports of images is what an extraction would meet."""

import os
import pathlib
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.sources.describe import ImagesReport, describe_images
from tests.extract.images.bit_depth_test import encode_png16, samples_of
from tests.extract.images.decode_test import encode
from tests.extract.images.jpeg_test import PHOTOGRAPH
from tests.extract.sources.fixtures import (
  encode_png,
  make_arrays,
  open_dataset,
  write_files,
  write_table,
)


def describe(*paths: Any, **flags: Any) -> ImagesReport:
  location = tuple(str(path) for path in paths)
  return describe_images(SourceConfig(location=location, **flags))


@pytest.fixture
def spoiled(tmp_path) -> pathlib.Path:
  """A folder of classes with all that can be wrong in one."""
  pets = tmp_path / "pets"
  write_files(pets, "a/1.png", "a/2.png", data=encode_png())
  write_files(pets, "b/x/3.png", "b/4.png", data=encode_png(1))
  write_files(pets, "b/cut.png", data=encode_png(7)[:-30])
  write_files(pets, "stray.png", data=encode_png(9))
  write_files(pets, "a/n\x1b.jxl")
  (pets / "empty").mkdir()
  (pets / "b/gone.png").symlink_to("nowhere")
  (pets / "b/up").symlink_to(pets)
  os.mkfifo(pets / "b/pipe.jpg")
  return pets


def test_every_fault_of_a_folder_is_named(spoiled):
  faults = "\n".join(describe(spoiled).faults)
  for fault in (
    "'b/gone.png': leads nowhere",
    "'b/up': leads",
    "'b/pipe.jpg': leads",
    "'stray.png': in no class",
    "without an image: 'empty'",
    f"{spoiled}/b/cut.png: its decoder says",
  ):
    assert fault in faults
  with pytest.raises(InputError):
    open_dataset(spoiled)


def test_a_folder_with_faults_is_described_all_the_same(spoiled):
  report = describe(spoiled)
  assert report.num_images == 6
  assert report.sizes == ["5 x 4"] * 3
  assert report.passed_over == [r"a/n\x1b.jxl"]
  assert report.duplicates == [
    f"{spoiled}/a/1.png = {spoiled}/a/2.png",
    f"{spoiled}/b/4.png = {spoiled}/b/x/3.png",
  ]
  assert report.text.replace("\n", "").isprintable()


def test_one_photograph_in_two_classes_is_named_with_its_classes(tmp_path):
  write_files(tmp_path, "train/cat/1.png", "test/dog/2.png", data=encode_png())
  write_files(tmp_path, "train/cat/3.png", "train/dog/4.png", data=b"none")
  write_files(tmp_path, "test/cat/5.png", "test/cat/6.png", data=encode_png(1))
  report = describe(tmp_path)
  assert report.label_conflicts == [
    f"{tmp_path}/test/dog/2.png (dog) = {tmp_path}/train/cat/1.png (cat)"
  ]
  assert len(report.duplicates) == 2
  assert report.label_conflicts[0] in report.text
  assert "--units same-image" in report.text


def test_label_conflicts_of_an_npz_are_told_by_split_and_row(tmp_path):
  train = make_arrays(4)
  test = make_arrays(5)
  test["image"][1] = train["image"][0]
  arrays: dict[str, Any] = {"class_names": train["class_names"]}
  for name in "image", "label":
    arrays[f"train_{name}"] = train[name]
    arrays[f"test_{name}"] = test[name]
  path = tmp_path / "x.npz"
  np.savez(path, **arrays)
  (conflict,) = describe(path).label_conflicts
  assert set(conflict.split(" = ")) == {f"{path}[0] (cat)", f"{path}[1] (dog)"}


def test_conflicts_are_not_denied_where_classes_are_not_known(tmp_path):
  arrays = make_arrays(4)
  arrays["image"][1] = arrays["image"][0]
  path = tmp_path / "x.npz"
  np.savez(path, image=arrays["image"], label=arrays["label"])

  report = describe(path)

  assert len(report.notes) == 1  # --class-names
  assert "in several classes), among images whose class is known" in report.text


def test_the_same_image_as_a_unit_is_no_pattern_of_owners(tmp_path):
  write_files(tmp_path, "cat/1.png", "dog/2.png", data=encode_png())
  report = describe(tmp_path, units="same-image")
  assert (report.faults, report.notes) == ([], [])


def test_a_sound_folder_has_counts_and_sizes_of_each_split(tmp_path):
  for i, path in enumerate(("train/a/1.png", "train/b/2.png", "test/a/3.png")):
    write_files(tmp_path, path, data=encode_png(i))
  tall = encode_png(np.zeros((9, 2, 3), np.uint8))
  write_files(tmp_path, "test/b/4.png", data=tall)
  report = describe(tmp_path)
  assert not report.faults
  assert not report.owners
  counts = {"a": 1, "b": 1}
  assert report.classes == {"test": counts, "train": counts}
  assert report.sizes == ["2 x 4", "5 x 4", "5 x 9"]
  lines = "2 images in classes\n  a  1\n  b  1\n"
  assert f"split test: {lines}split train: {lines}" in report.text


@pytest.fixture(params=["parquet", "tar"])
def table(request, tmp_path) -> pathlib.Path:
  """Three images, of which one is broken and two are equal."""
  path = tmp_path / f"x-train.{request.param}"
  images = [encode_png(1), b"no image", encode_png(1)]
  write_table(path, images, ["cat", "dog"], label=[0, 1, 1])
  write_files(tmp_path, "readme.txt")
  return path


def test_broken_and_equal_images_of_a_table_are_named(table):
  report = describe(table.parent)
  assert (report.num_images, len(report.duplicates)) == (3, 1)
  assert report.passed_over == ["readme.txt"]
  (broken,) = report.faults
  assert "8 bytes that are not a readable" in broken


def test_a_table_without_class_names_needs_a_flag_and_is_not_broken(table):
  report = describe(table.parent)
  if table.suffix == ".tar":
    assert "names no classes" in report.notes[0]
  else:
    lines = "split train: 3 images in classes\n  cat  1\n  dog  2"
    assert lines in report.text


def test_a_broken_table_beside_a_sound_one_is_named(table):
  write_files(table.parent, f"y-train{table.suffix}")
  report = describe(table.parent)
  assert report.num_images == 3
  assert any("y-train" in fault for fault in report.faults)


def test_the_splits_in_an_npz_are_described(tmp_path):
  values: dict[str, Any] = {}
  for key, value in make_arrays(4).items():
    values[f"test_{key}"] = value
  values["test_image"][2] = values["test_image"][0]
  path = tmp_path / "x.npz"
  np.savez(path, **values, class_names=values["test_class_names"])
  report = describe(path)
  assert "split test: 4 images in classes\n  cat  2\n  dog  1" in report.text
  assert report.duplicates == [f"{path}[0] = {path}[2]"]
  assert not report.faults


def test_a_path_that_does_not_exist_is_refused(tmp_path):
  with pytest.raises(InputError, match="does not exist"):
    describe(tmp_path / "gone")


@pytest.mark.parametrize(
  ("place", "fault"),
  [("a", "give a folder that has a folder"), ("x.npz", "npz")],
)
def test_a_place_without_images_is_a_fault(tmp_path, place, fault):
  write_files(tmp_path, "a/notes.txt", "x.npz")
  assert fault in describe(tmp_path / place).faults[0]


OWNERS = ["ann", "bo", "ann", "ann"]
PATTERN = "/(?P<patient>[^/_]+)_"


@pytest.fixture(params=["folder", "parquet", "tar"])
def owned(request, tmp_path) -> dict[str, Any]:
  """Writes images of two patients; returns the flags that name them."""
  if request.param == "folder":
    for i, owner in enumerate(OWNERS):
      path = f"train/{'ab'[i % 2]}/{owner}_{i}.png"
      write_files(tmp_path, path, data=encode_png(i))
    return {"units": PATTERN}
  path = tmp_path / f"train.{request.param}"
  images = [encode_png(i) for i in range(4)]
  labels = [0, 1, 0, 1]
  write_table(path, images, ["a", "b"], label=labels, patient=OWNERS)
  return {"units": "patient", "class_names": ("a", "b")}


def test_owners_are_counted_as_an_extraction_would(owned, tmp_path):
  report = describe(tmp_path, **owned)
  assert not report.faults
  assert not report.notes
  assert report.classes == {"train": {"a": 2, "b": 2}}
  owners = {"unit": "patient", "number": 2, "most": 3}
  assert report.owners == {"train": owners}
  assert "owners (patient): 2, each with at most 3 images" in report.text


def test_units_that_fit_no_image_are_a_fault(owned, tmp_path):
  report = describe(tmp_path, **owned | {"units": "(?P<a>q)"})
  assert "(?P<a>q)" in report.faults[0]


def test_photographs_of_other_formats_are_warned_of(spoiled):
  assert r"WARNING: 1 photograph" in describe(spoiled).text


def test_files_that_may_be_photographs_are_warned_of(tmp_path):
  write_files(tmp_path, "a/1.png", "b/2.png", "b/3")

  assert "LEFT OUT: 'b/3'" in describe(tmp_path).text


def test_a_folder_of_unreadable_photographs_only_is_a_fault(tmp_path):
  write_files(tmp_path, "a/1.tif", "b/2.jxl")
  report = describe(tmp_path)
  assert "LEFT OUT: 'a/1.tif', 'b/2.jxl'" in report.faults[0]
  assert report.warnings == []  # it is said once


def test_damaged_jpegs_are_faults_and_one_without_its_end_mark_is_a_warning(
  tmp_path,
):
  jpeg = encode(PHOTOGRAPH, "JPEG")
  write_files(tmp_path, "a/whole.jpg", data=jpeg)
  write_files(tmp_path, "a/half.jpg", data=jpeg[:5000] + jpeg[-2:])
  write_files(tmp_path, "b/cut.jpg", data=jpeg[:-2])
  report = describe(tmp_path)
  (fault,) = report.faults
  assert "a/half.jpg: its decoder says: Corrupt JPEG data" in fault
  (warning,) = report.warnings
  assert "b/cut.jpg: the JPEG has no end mark" in warning
  assert warning in report.text


def test_the_flags_for_depth_and_size_make_files_readable(tmp_path):
  write_files(tmp_path, "a/1.png", data=encode_png16(samples_of(12), 0))
  write_files(tmp_path, "b/2.png", data=encode_png())
  unread = describe(tmp_path)
  assert "--bit-depth" in "\n".join(unread.faults)
  assert unread.notes == ["16-bit images are nearly black: give --bit-depth."]
  location = (str(tmp_path),)
  config = SourceConfig(location=location)
  assert describe_images(config, bit_depth=12).faults == []
  report = describe_images(config, bit_depth=12, max_pixels=100)
  assert "--max-pixels 600" in report.faults[0]


def test_photographs_beside_tables_are_left_out_by_name(tmp_path, capsys):
  images = [encode_png()] * 2
  write_table(tmp_path / "x.parquet", images, ["a", "b"], label=[0, 1])
  write_files(tmp_path, "y.tif")
  open_dataset(tmp_path)
  message = capsys.readouterr().err
  assert "WARNING: " in message
  assert "LEFT OUT: 'y.tif'" in message
