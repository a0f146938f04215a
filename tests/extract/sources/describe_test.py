"""What `inspect` says of images is what an extraction would meet."""

import os

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.describe import describe_images
from tests.extract.sources.made import arrays, opened, png, write, write_table


def test_a_folder_with_all_that_can_be_wrong(tmp_path):
  pets = tmp_path / "pets"
  write(pets, "a/1.png", "a/2.png", data=png())
  write(pets, "b/x/3.png", "b/4.png", data=png(1))
  write(pets, "b/cut.png", data=png(7)[:-30])
  write(pets, "stray.png", data=png(9))
  write(pets, "a/n\x1b.heic")
  (pets / "empty").mkdir()
  (pets / "b/gone.png").symlink_to("nowhere")
  (pets / "b/up").symlink_to(pets)
  os.mkfifo(pets / "b/pipe.jpg")
  found = describe_images([str(pets)])
  assert found.num_images == 6
  assert found.sizes == ["5 x 4"] * 3
  assert found.passed_over == [r"a/n\x1b.heic"]
  assert found.duplicates == [
    f"{pets}/a/1.png = {pets}/a/2.png",
    f"{pets}/b/4.png = {pets}/b/x/3.png",
  ]
  faults = "\n".join(found.faults)
  for said in (
    *("'b/gone.png': leads nowhere", "'b/up': leads", "'b/pipe.jpg': leads"),
    *("'stray.png': in no class", "without an image: 'empty'"),
    f"{pets}/b/cut.png: image cannot be decoded",
  ):
    assert said in faults
  assert found.text.replace("\n", "").isprintable()
  with pytest.raises(InputError):
    opened(pets)


def test_a_sound_folder_with_splits(tmp_path):
  for i, name in enumerate(("train/a/1.png", "train/b/2.png", "test/a/3.png")):
    write(tmp_path, name, data=png(i))
  write(tmp_path, "test/b/4.png", data=png(np.zeros((9, 2, 3), np.uint8)))
  found = describe_images([str(tmp_path)])
  assert not [*found.faults, *found.owners]
  counts = {"a": 1, "b": 1}
  assert found.classes == {"test": counts, "train": counts}
  assert found.sizes == ["2 x 4", "5 x 4", "5 x 9"]
  said = "2 images in classes\n  a  1\n  b  1\n"
  assert f"split test: {said}split train: {said}" in found.text


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_tables(tmp_path, kind):
  images = [png(1), b"no image", png(1)]
  path = tmp_path / f"x-train.{kind}"
  write_table(path, images, ["cat", "dog"], label=[0, 1, 1])
  write(tmp_path, "readme.txt")
  found = describe_images([str(tmp_path)])
  assert (found.num_images, len(found.duplicates)) == (3, 1)
  assert found.passed_over == ["readme.txt"]
  (broken,) = found.faults
  assert "8 bytes that are not a readable" in broken
  if kind == "tar":  # A tar names no classes; that is nothing broken.
    assert "names no classes" in found.notes[0]
  else:
    assert "split train: 3 images in classes\n  cat  1\n  dog  2" in found.text
  write(tmp_path, f"y-train.{kind}")
  found = describe_images([str(tmp_path)])
  assert found.num_images == 3
  assert any("y-train" in fault for fault in found.faults)


def test_an_npz(tmp_path):
  values = {f"test_{key}": each for key, each in arrays(4).items()}
  values["test_image"][2] = values["test_image"][0]
  path = tmp_path / "x.npz"
  np.savez(path, **values, class_names=values["test_class_names"])
  found = describe_images([str(path)])
  assert "split test: 4 images in classes\n  cat  2\n  dog  1" in found.text
  assert found.duplicates == [f"{path}[0] = {path}[2]"]
  assert not found.faults


def test_what_is_not_there_or_has_nothing(tmp_path):
  with pytest.raises(InputError, match="is not there"):
    describe_images([str(tmp_path / "gone")])
  write(tmp_path, "a/notes.txt", "x.npz")
  for name, said in ("a", "give a folder of a folder"), ("x.npz", "npz"):
    assert said in describe_images([str(tmp_path / name)]).faults[0]


@pytest.mark.parametrize("kind", ["folder", "parquet", "tar"])
def test_whose_the_images_are(tmp_path, kind):
  """As an extraction with the same flags would have it."""
  flags, owners = {"units": "patient"}, ["ann", "bo", "ann", "ann"]
  if kind == "folder":
    flags = {"units": "/(?P<patient>[^/_]+)_"}
    for i, owner in enumerate(owners):
      write(tmp_path, f"train/{'ab'[i % 2]}/{owner}_{i}.png", data=png(i))
  else:
    table = {"label": [0, 1, 0, 1], "patient": owners}
    path = tmp_path / f"train.{kind}"
    write_table(path, [png(i) for i in range(4)], ["a", "b"], **table)
    flags |= {"class_names": ("a", "b")}
  found = describe_images([str(tmp_path)], **flags)
  assert not found.faults + found.notes
  assert found.classes == {"train": {"a": 2, "b": 2}}
  said = {"unit": "patient", "number": 2, "most": 3}
  assert found.owners == {"train": said}
  assert "owners (patient): 2, of 3 images at most" in found.text
  found = describe_images([str(tmp_path)], **flags | {"units": "(?P<a>q)"})
  assert "(?P<a>q)" in found.faults[0]
