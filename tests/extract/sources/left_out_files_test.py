"""Files of a folder that are not read, which may be photographs."""

import pytest

from tests.extract.refusals import refused
from tests.extract.sources.fixtures import open_dataset, write_files


def test_one_file_that_is_no_image_is_reported_as_one(tmp_path, capsys):
  write_files(tmp_path, "a/x.png", "a/notes.txt")
  open_dataset(tmp_path)
  assert ": 1 file, .txt" in capsys.readouterr().err


@pytest.mark.parametrize(
  "suffix", ["tif", "TIFF", "jxl", "dng", "dcm", "psd", "rw2"]
)
def test_photographs_of_other_formats_are_warned_of_by_name(
  tmp_path, capsys, suffix
):
  write_files(tmp_path, "a/1.png", "b/2.png", f"b/3.{suffix}", "notes.txt")
  assert len(open_dataset(tmp_path)) == 2
  message = capsys.readouterr().err
  assert "WARNING: " in message
  assert "1 photograph of a format that is not read" in message
  assert f"LEFT OUT: 'b/3.{suffix}'; convert them" in message


@pytest.mark.parametrize("name", ["IMG_1", "3.jpg.1", "3.jpg~", "3.jpg.gz"])
def test_files_that_may_be_photographs_are_warned_of_by_name(
  tmp_path, capsys, name
):
  write_files(tmp_path, "a/1.png", "b/2.png", f"b/{name}", "README", "x.csv")

  assert len(open_dataset(tmp_path)) == 2
  warning = f"WARNING: {tmp_path}: 1 file not named as images,"
  message = capsys.readouterr().err
  assert warning in message
  assert f"LEFT OUT: 'b/{name}'; what is an" in message


@pytest.mark.parametrize("suffix", ["jfif", "pjpeg", "apng", "dib"])
def test_other_suffixes_of_formats_that_are_read_are_read(tmp_path, suffix):
  write_files(tmp_path, "a/1.png", f"b/2.{suffix}")

  assert len(open_dataset(tmp_path)) == 2


def test_a_folder_of_unreadable_photographs_only_is_named(tmp_path):
  write_files(tmp_path, "a/1.tif", "b/2.jxl")
  with refused("LEFT OUT: 'a/1.tif', 'b/2.jxl'; convert them to JPEG or PNG"):
    open_dataset(tmp_path)
