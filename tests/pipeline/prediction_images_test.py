"""predict: images that are not read, or are not like those of training."""

import copy
import csv
import dataclasses
import io
import os

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract import files
from oneshot_dp.extract.backbones.backbone import load_backbone
from oneshot_dp.pipeline.prediction import backbone_of, cell
from tests.extract.images.bit_depth_test import encode_png16
from tests.pipeline import image_heads
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.predictions import column_of, expected, lines_of

# Whole runs, each of a tenth of a second or more.
pytestmark = pytest.mark.slow

# Images that are not read.


@pytest.fixture
def one_sound_of_three(tmp_path, digits_head, digits_photos):
  """The words that label an image between two that cannot be decoded."""
  for name in ("a.png", "z.jpg"):
    (tmp_path / name).write_bytes(b"no image")
  images = (tmp_path / "a.png", digits_photos / "000.png", tmp_path / "z.jpg")
  return ("predict", digits_head.path, *images, "--out", tmp_path / "p.csv")


def test_all_broken_images_are_named_at_once_and_nothing_is_written(
  tmp_path, capsys, one_sound_of_three
):
  line = fails(capsys, *one_sound_of_three)

  assert line.startswith("2 of 3 images cannot be decoded")
  assert "a.png" in line
  assert "z.jpg" in line
  assert [*tmp_path.glob("*p.csv*")] == []


def test_broken_images_that_are_skipped_have_no_class(
  tmp_path, capsys, one_sound_of_three
):
  words = (*one_sound_of_three, "--on-decode-error", "skip")

  said, errors = succeeds(capsys, *words)

  assert "1 image;" in said
  assert "z.jpg" in errors
  first, sound, last = column_of(tmp_path / "p.csv", "class")
  assert first == ""
  assert sound != ""
  assert last == ""


@pytest.mark.parametrize(
  "name", ["=1+1", "+x", "-y", "@z", "'q", "a\x1b[31m", "b\nc", "\u202e"]
)
def test_a_cell_is_neither_a_formula_nor_a_control_sequence(name):
  shown = cell(name)

  assert shown.isprintable()
  assert shown[0] not in "=+-@"


def test_a_name_of_an_image_can_forge_no_line(
  tmp_path, capsys, digits_head, digits_photos
):
  folder = tmp_path / "photos"
  folder.mkdir()
  name = "=cmd\x1b[31m\n.png"
  (folder / name).write_bytes((digits_photos / "000.png").read_bytes())
  out = tmp_path / "p.csv"

  said, _ = succeeds(capsys, "predict", digits_head.path, folder, "--out", out)

  text = out.read_text()
  assert "\x1b" not in text + said
  assert len(text.splitlines()) == 2


# Backbones.


def test_another_backbone_is_refused(
  tmp_path, capsys, digits_head, digits_photos
):
  weights = tmp_path / "other.safetensors"
  weights.write_bytes(b"not these weights")
  words = (
    "predict",
    digits_head.path,
    digits_photos,
    "--out",
    tmp_path / "p.csv",
  )
  assert "has SHA-256" in fails(capsys, *words, "--weights", weights)
  assert not (tmp_path / "p.csv").exists()


@pytest.mark.long
def test_a_killed_run_leaves_nothing(
  tmp_path, tmp_path_factory, capsys, monkeypatch
):
  """A whole file has no name, until it has the one that was asked for."""
  backbone = load_backbone("glyph_vit", embedding="cls")  # a head's own layer
  place = tmp_path_factory.mktemp("heads") / "head"
  head = image_heads.write_image_head(place, backbone)
  (photo,) = image_heads.write_images(tmp_path, 1)
  words = (
    "predict",
    head.path,
    tmp_path / photo,
    "--out",
    tmp_path / "p.csv",
  )
  there = []

  # Stopped where the whole file would get its name.
  def stopped(*_, **__):
    there.extend(tmp_path.iterdir())
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(os, "link", stopped)
    fails(capsys, *words, status=130)
  assert there == [*tmp_path.iterdir()] == [tmp_path / photo]
  succeeds(capsys, *words)


def test_a_function_that_was_changed_is_another_backbone(
  tmp_path, capsys, digits_photos
):
  file = tmp_path / "mine.py"
  code = (
    "def embed(params, images):\n"
    "  return images[:, ::4, ::4].reshape(len(images), -1) * {}\n"
  )
  file.write_text(code.format(1))
  backbone = load_backbone(f"{file}:embed")
  saved = image_heads.write_image_head(tmp_path / "head", backbone)
  words = ("predict", saved.path, digits_photos, "--backbone", f"{file}:embed")
  # As it was, it is the backbone of the head.
  succeeds(capsys, *words, "--out", tmp_path / "a.csv")
  file.write_text(code.format(2))
  words = (*words, "--out", tmp_path / "b.csv")

  assert "is not the backbone that" in fails(capsys, *words)
  assert not (tmp_path / "b.csv").exists()


@pytest.fixture
def function_head(tmp_path):
  """A head on a function of mine.py, which is in other/ and mine_2.py too."""
  file = tmp_path / "mine.py"
  file.write_text(
    "def embed(params, images):\n"
    "  return images[:, ::4, ::4].reshape(len(images), -1)\n"
  )
  for place in (tmp_path / "other" / "mine.py", tmp_path / "mine_2.py"):
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(file.read_bytes())
  return image_heads.write_image_head(
    tmp_path / "head", load_backbone(f"{file}:embed")
  )


def test_a_function_whose_file_is_in_another_folder_is_the_same_backbone(
  tmp_path, capsys, digits_photos, function_head
):
  function = f"{tmp_path}/other/mine.py:embed"
  words = ("predict", function_head.path, digits_photos, "--out", "-")

  succeeds(capsys, *words, "--backbone", function)


def test_a_function_whose_file_was_renamed_is_refused_with_the_fix(
  tmp_path, capsys, digits_photos, function_head
):
  function = f"{tmp_path}/mine_2.py:embed"
  words = ("predict", function_head.path, digits_photos, "--out", "-")

  line = fails(capsys, *words, "--backbone", function)

  assert "have to keep their names; the folder may differ" in line


def test_files_that_are_not_read_are_in_the_table_with_the_reason(
  tmp_path, capsys, digits_head, digits_photos
):
  folder = tmp_path / "photos"
  folder.mkdir()
  (folder / "b.png").write_bytes((digits_photos / "000.png").read_bytes())
  (folder / "a.tif").write_bytes(b"II*\0")
  (folder / "c.JXL").write_bytes(b"\xff\x0a")
  out = tmp_path / "p.csv"

  _, err = succeeds(capsys, "predict", digits_head.path, folder, "--out", out)

  lines = {}
  for line in lines_of(out):
    lines[line["image"][-6:]] = line
  assert len(lines) == 3
  assert lines["/b.png"]["class"] != ""
  assert lines["/b.png"]["note"] == ""
  for name in "/a.tif", "/c.JXL":
    assert lines[name]["class"] == ""
    assert lines[name]["note"].startswith("passed over: not a supported")
  assert err.count("passed over, without a class") == 2


# Bit depth and size.


@pytest.fixture
def twelve_bits(tmp_path):
  """A digit of 12 bits per sample, in a file of 16."""
  samples = image_heads.digits()[0][0].astype(np.uint16) * 16
  file = tmp_path / "twelve.png"
  file.write_bytes(encode_png16(samples, 0))
  return file


def test_a_head_remembers_the_bit_depth_of_its_training(
  tmp_path, capsys, twelve_bits
):
  backbone = load_backbone(
    "glyph_vit", preprocess=PreprocessConfig(bit_depth=12)
  )
  head = image_heads.write_image_head(tmp_path / "head", backbone)
  words = ("predict", head.path, twelve_bits, "--out", "-")

  said, _ = succeeds(capsys, *words)

  (line,) = csv.DictReader(io.StringIO(said))
  assert [line["class"]] == expected(head, 1)


def test_files_of_fewer_bits_than_those_of_the_training_are_refused(
  capsys, digits_head, twelve_bits
):
  words = ("predict", digits_head.path, twelve_bits, "--out", "-")

  assert "give --bit-depth 8, 10, 12 or 14" in fails(capsys, *words)


def test_files_of_fewer_bits_are_labeled_with_the_flag(
  capsys, digits_head, twelve_bits
):
  words = ("predict", digits_head.path, twelve_bits, "--out", "-")

  said, _ = succeeds(capsys, *words, "--bit-depth", 12)

  (line,) = csv.DictReader(io.StringIO(said))
  assert [line["class"]] == expected(digits_head, 1)


def test_images_of_more_than_max_pixels_are_refused(
  capsys, digits_head, digits_photos
):
  words = ("predict", digits_head.path, digits_photos / "000.png", "--out", "-")

  assert "give --max-pixels 64" in fails(capsys, *words, "--max-pixels", 63)


def test_images_of_max_pixels_are_labeled(capsys, digits_head, digits_photos):
  words = ("predict", digits_head.path, digits_photos / "000.png", "--out", "-")

  succeeds(capsys, *words, "--max-pixels", 64)


# Receipts, which may be anybody's.


def stating(saved, **changes):
  """The same head, whose receipt states its backbone with these changes."""
  receipt = copy.deepcopy(saved.receipt)
  receipt["stated"]["backbone"].update(changes)
  return dataclasses.replace(saved, receipt=receipt)


def test_code_that_a_receipt_names_is_not_run(tmp_path, digits_head):
  code = tmp_path / "code.py"
  code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
  for sha256 in (None, "0" * 64, files.sha256(code)):
    saved = stating(
      digits_head, name=f"{code}:f", layer=None, code_sha256=sha256
    )

    with pytest.raises(InputError, match="no such code is here: give --backb"):
      backbone_of(saved)

  assert not (tmp_path / "ran").exists()


def test_code_of_the_training_is_run(tmp_path, monkeypatch, digits_head):
  monkeypatch.chdir(tmp_path)
  code = tmp_path / "code.py"
  code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
  saved = stating(
    digits_head,
    name="code.py:f",
    layer=None,
    code_sha256=files.sha256(code),
  )

  with pytest.raises(InputError, match="no attribute 'f'"):
    backbone_of(saved)

  assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
  "changes",
  [
    {"preprocess": 7},
    {"preprocess": {"resample": True}},
    {"weights_sha256": 1.5},
    {"code_sha256": []},
  ],
)
def test_a_backbone_of_other_types_is_a_damaged_receipt(digits_head, changes):
  with pytest.raises(InputError, match="is damaged: the backbone that"):
    backbone_of(stating(digits_head, **changes))
