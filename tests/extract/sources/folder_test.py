"""Folders of images: what is an example, in which order, what is refused."""

import os
import pathlib

import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.sources.open_source import serialize_source
from oneshot_dp.extract.sources.source import Source
from tests.extract.refusals import refused
from tests.extract.sources.made import again, opened, write


def images(source: Source) -> list[str]:
  return [bytes(source[i].image).decode() for i in range(len(source))]


def test_reads_files_undecoded_and_passes_over_others(
  tmp_path, monkeypatch, capsys
):
  names = ["a/x.JPG", "a/y.jpeg", "b/deep/t.bmp", "b/u.Png", "b/z.jpe"]
  birds = tmp_path / "birds"
  write(
    birds,
    *(*names, "a/notes.txt", "a/deep/2.HEIC", "README.md", ".5.png"),
    *(".git/x/3.png", "a/.hidden.png", "a/.cache/4.png", "__MACOSX/a/6.png"),
    "a/7.\x1b[2J",
  )
  (birds / os.fsdecode(b"b/\xff.png")).write_bytes(b"x")
  found = opened(birds)
  told = capsys.readouterr().err
  assert r": 4 files, .\x1b[2j, .heic, .md, .txt" in told
  assert (found.name, found.split, found.unit) == ("birds", "all", "example")
  assert found.class_names == ("a", "b")
  assert [found[i].label for i in range(6)] == [0, 0, 1, 1, 1, 1]
  for source in (found, again(found)):
    assert images(source) == [*names, "x"]
    for i in range(5):
      assert (
        source[i].image == pathlib.Path(source.display_path(i)).read_bytes()
      )
    assert source.display_path(5).endswith(r"b/\udcff.png")
  for index in (-1, 6):
    with pytest.raises(IndexError, match=f"{index} is not in"):
      found[index]
  monkeypatch.chdir(birds)
  assert opened(".").name == "birds"
  assert opened(f"{birds}/", name="Birds of 1838").name[-4:] == "1838"


def test_splits_are_folders(tmp_path):
  """No two names may be of the same images."""
  root = tmp_path / "pets"
  write(root, "train/a/1.png", "train/b/2.png", "test/a/3.png", "test/b/x")
  train = ["train/a/1.png", "train/b/2.png"]
  assert images(opened(root, split="train")) == train
  alone = opened(root / "train")
  assert (alone.name, alone.split) == ("pets", "train")
  with refused("classes without an image: 'b'"):
    opened(root, split="test")
  found = opened(root, split="test", class_names=("c", "b", "a"))
  assert images(found) == ["test/a/3.png"]
  assert found.class_names == ("a", "b", "c")
  for split in (None, "val", "all"):
    with refused("give --split test or train"):
      opened(root, split=split)
  write(tmp_path, "one/train/a/1.png", "none/a/1.png", "none/b/2.png")
  assert opened(tmp_path / "one").split == "train"
  none = tmp_path / "none"
  assert opened(none).split == opened(none, split="all").split == "all"
  for split in ("train", "cat", "All"):
    with refused(f"no --split '{split}'.*--rows"):
      opened(none, split=split)
  for split in ("train[:10]", "../other", "", ".."):
    with refused("--split"):
      opened(none, split=split)


def test_order_is_that_of_the_bytes_of_the_paths(tmp_path):
  folders = ("0", "Z", "_", "a", "a b", "a-", "a.b", "é")
  every = [f"{f}/{name}.png" for f in folders for name in ("~", "b-", "b", "é")]
  write(tmp_path, *every)
  found = opened(tmp_path)
  assert images(found) == sorted(every, key=os.fsencode)
  assert found.class_names == folders
  for label, image, _ in found:
    assert image.decode().split("/")[0] == folders[label]


def test_links_are_followed_but_to_what_is_no_file(tmp_path):
  """Nothing is waited for, and no class goes with a link that leads nowhere."""
  write(tmp_path, "store/1.png", "store/more/2.png", "root/a/3.png")
  root = tmp_path / "root"
  (root / "b").symlink_to(tmp_path / "store")
  (root / "a/4.png").symlink_to(tmp_path / "store/1.png")
  (root / "a/.hidden").symlink_to(tmp_path / "gone.png")
  found = opened(root)
  assert found.class_names == ("a", "b")
  assert images(found) == [
    *("root/a/3.png", "store/1.png", "store/1.png", "store/more/2.png"),
  ]
  (tmp_path / "store/up").symlink_to(tmp_path / "store")
  (root / "c").symlink_to(tmp_path / "gone")
  (root / "a/7.png").symlink_to(tmp_path / "gone.png")
  os.mkfifo(root / "a/8.jpg")
  with refused("or what is no file: 'a/7.png', 'a/8.jpg', 'b/up', 'c'; mend"):
    opened(root)


@pytest.mark.parametrize(
  ("paths", "flags", "message"),
  [
    ("1.png a/2.png", {}, r"images outside any class folder: '1\.png'"),
    ("a/1.txt b/2.tif", {}, "give a folder of a folder of images"),
    ("a/1.png b/2.tif", {}, "classes without an image: 'b'; remove"),
    ("all/1.png", {}, "images outside any class folder: '1.png'"),
    ("a\x85b/1.png", {}, "control characters"),
    ("\u3000/1.png", {}, "not blank"),
    ("a/1.png b/1.png", {"class_names": ("a",)}, "does not name: 'b'"),
    ("a/1.png b/1.png", {"class_names": ("a", "b", "b")}, "'b' more than once"),
    ("a/1.png b/1.png", {"num_classes": 3}, "names 2 classes .* leave"),
    ("a/1.png b/1.png", {"label": "x"}, "--image and --label are for tables"),
    ("a/1.png b/1.png", {"data_dir": "x"}, "--data-dir is for tfds"),
  ],
)
def test_not_a_folder_of_classes(tmp_path, paths, flags, message):
  write(tmp_path, *paths.split(" "))
  with refused(message):
    opened(tmp_path, **flags)


def test_a_photograph_that_came_went_or_changed_is_another_job(tmp_path):
  write(tmp_path, "a/1.png", "b/2.png")
  first = opened(tmp_path)
  assert serialize_source(opened(tmp_path)) == serialize_source(first)
  write(tmp_path, "a/3.png")
  came = opened(tmp_path)
  assert serialize_source(came) != serialize_source(first)
  (tmp_path / "a/3.png").unlink()
  assert serialize_source(opened(tmp_path)) == serialize_source(first)
  (tmp_path / "a/1.png").write_bytes(b"a/9.png")  # of the same size
  os.utime(tmp_path / "a/1.png", ns=(5, 5))
  assert serialize_source(opened(tmp_path)) != serialize_source(first)
  for source, index in ((came, 1), (first, 0), (again(came), 0)):
    with refused("was there when the files were listed, and cannot", RunError):
      source[index]
  for name, said in (
    ("a/1.png", "give a folder of a folder"),
    ("c", "not there"),
  ):
    with refused(said):
      opened(tmp_path / name)
  os.truncate(tmp_path / "b/2.png", 2**40)  # and takes no memory
  with refused("bytes are no image"):
    opened(tmp_path)[1]
