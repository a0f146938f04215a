import os
import pathlib
import tracemalloc
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.sources.example import Example, Source
from oneshot_dp.extract.sources.open_source import open_source
from tests.extract.refusals import refused


def write(root: pathlib.Path, *paths: str) -> None:
  """Writes files whose content is their path: sources do not decode."""
  for path in paths:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(path.encode())


def opened(root: pathlib.Path, split: str = "all", **fields: Any) -> Source:
  config = extract_config.ImageFolderSource(root=str(root), **fields)
  return open_source(config, split)


def text(example: Example) -> str:
  assert isinstance(example.image, bytes)
  return example.image.decode()


def images(found: Source) -> list[str]:
  return [text(found[i]) for i in range(len(found))]


def test_reads_real_files_undecoded(tmp_path):
  pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
  for name in ("a/x.JPG", "a/y.jpeg", "b/z.jpe", "b/u.Png", "b/v.webp"):
    path = tmp_path / "birds" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {"P": "PNG", "w": "WEBP"}.get(path.suffix[1], "JPEG")
    Image.fromarray(pixels).save(path, kind)
  found = opened(tmp_path / "birds")
  assert (found.name, found.version) == ("birds", "")
  assert found.class_names == ("a", "b")
  assert [found[i].label for i in range(5)] == [0, 0, 1, 1, 1]
  assert [found[i].example_id for i in range(5)] == list(range(5))
  for i in range(5):
    assert found[i].image == pathlib.Path(found.where(i)).read_bytes()
    assert found.where(i).startswith(str(tmp_path))


def test_photographs_that_are_passed_over_are_no_secret(tmp_path, capsys):
  write(tmp_path, "a/1.png", "a/2.HEIC", "b/3.heif", "b/4.txt")
  with refused("without an image: 'b'"):
    opened(tmp_path)
  warning, note = capsys.readouterr().err.splitlines()
  assert warning == (
    f"warning: {tmp_path}: 2 HEIC images passed over: convert to JPEG what is"
    " to count."
  )
  assert "3 files (.HEIC, .heif, .txt) passed over" in note


def test_name_is_given_or_the_folder_s(tmp_path, monkeypatch):
  write(tmp_path, "birds/a/1.png")
  monkeypatch.chdir(tmp_path / "birds")
  assert opened(pathlib.Path(".")).name == "birds"
  found = opened(pathlib.Path("."), name="Birds of 1838")
  assert found.name == "Birds of 1838"


def test_a_folder_of_many_is_listed_in_little_memory(tmp_path):
  """What is known of one file goes before the next: 1 kB of each was kept."""
  write(tmp_path, "a/0.png")
  for i in range(1, 1500):
    os.link(tmp_path / "a/0.png", tmp_path / f"a/{i}.png")
  tracemalloc.start()
  try:
    assert len(opened(tmp_path)) == 1500
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 700 * 1500


def test_splits_are_folders(tmp_path):
  write(tmp_path, "train/a/1.png", "train/b/2.png", "test/a/3.png", "test/b/x")
  assert images(opened(tmp_path, "train")) == ["train/a/1.png", "train/b/2.png"]
  with refused("classes without an image: 'b'"):
    opened(tmp_path, "test")
  found = opened(tmp_path, "test", class_names=("c", "b", "a"))
  assert images(found) == ["test/a/3.png"]
  assert found.class_names == ("a", "b", "c")
  with refused("no split 'val': it has test, train"):
    opened(tmp_path, "val")


@pytest.mark.parametrize("split", ["train", "test", "cat", "al", "All"])
def test_a_folder_without_splits_is_one_split(tmp_path, split):
  """No two names may be of the same images."""
  write(tmp_path, "a/1.png", "b/2.png")
  assert len(opened(tmp_path, "all")) == 2
  with refused(f"no folder '{split}'.* --split all"):
    opened(tmp_path, split)


@pytest.mark.parametrize("split", ["train[:10%]", "../other", "a/b", "", ".."])
def test_split_must_be_a_plain_name(tmp_path, split):
  write(tmp_path, "a/1.png")
  with refused("only TFDS data sets can be sliced"):
    opened(tmp_path, split)


def test_other_files_and_hidden_ones_are_ignored(tmp_path):
  write(
    tmp_path,
    *("a/1.png", "a/notes.txt", "a/deep/2.tif", "README.md", ".5.png"),
    *(".git/x/3.png", "a/.hidden.png", "a/.cache/4.png", "__MACOSX/a/6.png"),
  )
  found = opened(tmp_path)
  assert images(found) == ["a/1.png"]
  assert found.class_names == ("a",)


def test_a_class_is_read_to_its_depths(tmp_path):
  write(tmp_path, "b/2012/may/1.png", "b/1.png", "a/x.png/2.png")
  found = opened(tmp_path)
  assert images(found) == ["a/x.png/2.png", "b/1.png", "b/2012/may/1.png"]
  assert [found[i].label for i in range(3)] == [0, 1, 1]


names = st.text(st.sampled_from("abZ-_ .0é~"), min_size=1, max_size=4).filter(
  lambda name: name.strip(". ") and not name.startswith(".")
)


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(
  st.sets(st.tuples(names, names), min_size=1, max_size=12), st.randoms()
)
def test_order_is_that_of_the_bytes_of_the_paths(tmp_path_factory, paths, rng):
  root = tmp_path_factory.mktemp("root")
  shuffled = [f"{folder}/{file}.png" for folder, file in sorted(paths)]
  rng.shuffle(shuffled)
  write(root, *shuffled)
  found = opened(root)
  assert images(found) == sorted(shuffled, key=os.fsencode)
  assert list(found.class_names) == sorted({folder for folder, _ in paths})
  for i in range(len(found)):
    folder = text(found[i]).split("/")[0]
    assert found.class_names[found[i].label] == folder


def test_links_are_followed(tmp_path):
  write(tmp_path, "store/1.png", "store/more/2.png", "root/a/3.png")
  (tmp_path / "root/b").symlink_to(tmp_path / "store")
  (tmp_path / "root/a/4.png").symlink_to(tmp_path / "store/1.png")
  found = opened(tmp_path / "root")
  assert found.class_names == ("a", "b")
  assert images(found) == [
    *("root/a/3.png", "store/1.png", "store/1.png", "store/more/2.png"),
  ]


def test_links_that_never_end(tmp_path):
  write(tmp_path, "a/1.png", "a/deep/2.png")
  (tmp_path / "a/deep/up").symlink_to(tmp_path / "a")
  with refused("a/deep/up' is a link to a folder that"):
    opened(tmp_path)


def test_broken_link_to_an_image(tmp_path):
  write(tmp_path, "a/1.png")
  (tmp_path / "a/2.png").symlink_to(tmp_path / "gone.png")
  (tmp_path / "a/3.png").symlink_to(tmp_path / "gone.png")
  with refused(r"no files .* 'a/2.png', 'a/3.png'; "):
    opened(tmp_path)


@pytest.mark.parametrize(
  ("paths", "message"),
  [
    (["1.png", "a/2.png"], r"1 images outside any .*, such as '1\.png"),
    (["1.png"], "has no class folders"),
    (["notes.txt"], "has no class folders"),
    (["a/1.txt", "b/2.tif"], r"2 class folders \('a', 'b'\) but no image"),
    (["a/1.png", "b/2.tif"], "classes without an image: 'b'; remove"),
    (["all/1.png"], "all' has no class folders"),
  ],
)
def test_not_a_folder_of_classes(tmp_path, paths, message):
  write(tmp_path, *paths)
  with refused(message):
    opened(tmp_path)


def test_root_must_be_a_folder(tmp_path):
  write(tmp_path, "a/1.png")
  for root in (tmp_path / "b", tmp_path / "a" / "1.png"):
    with refused("is not a folder: give the one"):
      opened(root)


def test_file_that_vanishes_is_a_failed_run(tmp_path):
  write(tmp_path, "a/1.png", "a/2.png")
  found = opened(tmp_path)
  (tmp_path / "a/2.png").unlink()
  assert found[0].image == b"a/1.png"
  with refused(r"a/2\.png' was there .*: No such file", RunError):
    found[1]


def test_the_id_is_the_number_in_the_name(tmp_path):
  write(tmp_path, "a/x_00000012.png", "a/x_7.JPEG", "b/deep/0003.png")
  found = opened(tmp_path, id_from_name=True)
  assert found.id_source == "file name"
  assert [found[i].example_id for i in range(3)] == [12, 7, 3]
  assert images(found) == ["a/x_00000012.png", "a/x_7.JPEG", "b/deep/0003.png"]
  assert opened(tmp_path).id_source == "position"


@pytest.mark.parametrize(
  ("second", "said"),
  [
    ("b/y7.png", "'a/x_07.png' and 'b/y7.png' both have the number 7"),
    ("b/seven.png", "'b/seven.png' does not end in a number"),
  ],
)
def test_names_that_number_nothing(tmp_path, second, said):
  write(tmp_path, "a/x_07.png", second)
  with refused(said):
    opened(tmp_path, id_from_name=True)
