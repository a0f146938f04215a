"""Folders of images: what is an example, in which order, what is refused."""

import os
import pathlib

import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.configs.extract_config import ExtractConfig, SourceConfig
from oneshot_dp.extract.job.job import cache_info
from oneshot_dp.extract.job.listing import listing_digest
from oneshot_dp.extract.job.shard import load_embedder
from oneshot_dp.extract.sources.open_source import open_source
from oneshot_dp.extract.sources.source import Source
from tests.extract import object_server
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  labels_of,
  open_dataset,
  reopen_from_listing,
  write_files,
)

IMAGES = ("a/x.JPG", "a/y.jpeg", "b/deep/t.bmp", "b/u.Png", "b/z.jpe")
OTHERS = ("a/notes.txt", "a/deep/2.JXL", "README.md", "a/7.\x1b[2J")
IGNORED = (
  ".5.png",
  ".git/x/3.png",
  "a/.hidden.png",
  "a/.cache/4.png",
  "__MACOSX/a/6.png",
)
NO_UTF8 = os.fsdecode(b"b/\xff.png")


@pytest.fixture
def birds(tmp_path) -> pathlib.Path:
  """Five images and one with an odd name, among files that are none."""
  folder = tmp_path / "birds"
  write_files(folder, *IMAGES, *OTHERS, *IGNORED)
  (folder / NO_UTF8).write_bytes(b"x")
  return folder


def contents(source: Source) -> list[str]:
  return [bytes(source[i].image).decode() for i in range(len(source))]


def test_a_folder_of_classes_has_its_images_as_examples(birds):
  source = open_dataset(birds)
  assert (source.name, source.split, source.unit) == ("birds", "all", "example")
  assert source.class_names == ("a", "b")
  assert labels_of(source) == [0, 0, 1, 1, 1, 1]
  assert contents(source) == [*IMAGES, "x"]


def test_a_worker_reads_the_same_files(birds):
  source = reopen_from_listing(open_dataset(birds))
  assert contents(source) == [*IMAGES, "x"]
  for i in range(5):
    path = pathlib.Path(source.display_path(i))
    assert source[i].image == path.read_bytes()
  assert source.display_path(5).endswith(r"b/\udcff.png")


def test_files_that_are_no_images_are_reported(birds, capsys):
  open_dataset(birds)
  message = capsys.readouterr().err
  assert r": 4 files, .\x1b[2j, .jxl, .md, .txt" in message


@pytest.mark.parametrize(
  "name", ["my__MACOSX.png", "lost+found.png", "x.y.png"]
)
def test_a_name_that_only_resembles_an_ignored_one_is_listed(tmp_path, name):
  write_files(tmp_path, f"cat/{name}")

  assert len(open_dataset(tmp_path)) == 1


def test_a_hidden_file_between_images_is_ignored(tmp_path):
  """Names of a folder come together, and one of them is enough to look."""
  write_files(tmp_path, "cat/!1.png", "cat/.2.png", "cat/3.png")

  assert contents(open_dataset(tmp_path)) == ["cat/!1.png", "cat/3.png"]


@pytest.mark.parametrize("index", [-1, 6])
def test_an_index_outside_of_a_source_is_an_index_error(birds, index):
  with pytest.raises(IndexError, match=f"{index} is not in"):
    open_dataset(birds)[index]


def test_a_data_set_is_named_after_its_folder_or_a_flag(birds, monkeypatch):
  monkeypatch.chdir(birds)
  assert open_dataset(".").name == "birds"
  source = open_dataset(f"{birds}/", name="Birds of 1838")
  assert source.name == "Birds of 1838"


@pytest.fixture
def pets(tmp_path) -> pathlib.Path:
  """Splits train, with two classes, and test, with images in one of them."""
  folder = tmp_path / "pets"
  write_files(folder, "train/a/1.png", "train/b/2.png", "test/a/3.png")
  write_files(folder, "test/b/x")
  return folder


def test_a_split_has_the_images_of_its_folder(pets):
  source = open_dataset(pets, split="train")
  assert contents(source) == ["train/a/1.png", "train/b/2.png"]


def test_the_folder_of_a_split_is_that_split_of_its_data_set(pets):
  """No two names may be of the same images."""
  source = open_dataset(pets / "train")
  assert (source.name, source.split) == ("pets", "train")


def test_a_class_without_an_image_is_refused(pets):
  with refused("classes without an image: 'b'"):
    open_dataset(pets, split="test")


def test_class_names_may_name_classes_without_an_image(pets):
  source = open_dataset(pets, split="test", class_names=("c", "b", "a"))
  assert contents(source) == ["test/a/3.png"]
  assert source.class_names == ("a", "b", "c")


@pytest.mark.parametrize("split", [None, "val", "all"])
def test_one_of_several_splits_must_be_chosen(pets, split):
  with refused("give --split test or train"):
    open_dataset(pets, split=split)


def test_an_only_split_needs_no_flag(tmp_path):
  write_files(tmp_path, "one/train/a/1.png")
  assert open_dataset(tmp_path / "one").split == "train"


@pytest.mark.parametrize("split", [None, "all"])
def test_a_folder_without_splits_is_the_split_all(tmp_path, split):
  write_files(tmp_path, "a/1.png", "b/2.png")
  assert open_dataset(tmp_path, split=split).split == "all"


@pytest.mark.parametrize("split", ["train", "cat", "All"])
def test_a_split_that_a_folder_lacks_is_refused(tmp_path, split):
  write_files(tmp_path, "a/1.png", "b/2.png")
  with refused(f"no --split '{split}'.*--rows"):
    open_dataset(tmp_path, split=split)


@pytest.mark.parametrize("split", ["train[:10]", "../other", "", ".."])
def test_a_split_that_is_no_name_is_refused(tmp_path, split):
  write_files(tmp_path, "a/1.png", "b/2.png")
  with refused("--split"):
    open_dataset(tmp_path, split=split)


def test_examples_are_in_the_order_of_the_bytes_of_their_paths(tmp_path):
  folders = ("0", "Z", "_", "a", "a b", "a-", "a.b", "é")
  paths = [f"{f}/{name}.png" for f in folders for name in ("~", "b-", "b", "é")]
  write_files(tmp_path, *paths)
  source = open_dataset(tmp_path)
  assert contents(source) == sorted(paths, key=os.fsencode)
  assert source.class_names == folders
  for example in source:
    folder = example.image.decode().split("/")[0]
    assert folder == folders[example.label]


@pytest.fixture
def linked(tmp_path) -> pathlib.Path:
  """A folder of links to images, and to a folder of images."""
  write_files(tmp_path, "store/1.png", "store/more/2.png", "root/a/3.png")
  root = tmp_path / "root"
  (root / "b").symlink_to(tmp_path / "store")
  (root / "a/4.png").symlink_to(tmp_path / "store/1.png")
  (root / "a/.hidden").symlink_to(tmp_path / "gone.png")
  return root


def test_links_are_followed(linked):
  source = open_dataset(linked)
  assert source.class_names == ("a", "b")
  assert contents(source) == [
    "root/a/3.png",
    "store/1.png",
    "store/1.png",
    "store/more/2.png",
  ]


def test_links_to_nowhere_circles_and_pipes_are_refused_by_name(linked):
  """Nothing is waited for, and no class goes with a link that leads nowhere."""
  (linked.parent / "store/up").symlink_to(linked.parent / "store")
  (linked / "c").symlink_to(linked.parent / "gone")
  (linked / "a/7.png").symlink_to(linked.parent / "gone.png")
  os.mkfifo(linked / "a/8.jpg")
  with refused("what is not a file: 'a/7.png', 'a/8.jpg', 'b/up', 'c'; fix"):
    open_dataset(linked)


@pytest.mark.parametrize(
  ("paths", "flags", "message"),
  [
    ("1.png a/2.png", {}, r"images outside any class folder: '1\.png'"),
    ("a/1.txt b/2.pdf", {}, "give a folder that has a folder of images"),
    ("a/1.png b/2.tif", {}, "classes without an image: 'b'; remove"),
    ("all/1.png", {}, "images outside any class folder: '1.png'"),
    ("a\x85b/1.png", {}, "control characters"),
    ("\u3000/1.png", {}, "blank|non-empty"),
    ("a/1.png b/1.png", {"class_names": ("a",)}, "does not name: 'b'"),
    ("a/1.png b/1.png", {"class_names": ("a", "b", "b")}, "'b' more than once"),
    ("a/1.png b/1.png", {"num_classes": 3}, "names 2 classes .* leave"),
    ("a/1.png b/1.png", {"label": "x"}, "--image and --label are for tables"),
    ("a/1.png b/1.png", {"data_dir": "x"}, "--data-dir is for tfds"),
  ],
)
def test_a_folder_that_is_not_of_classes_is_refused(
  tmp_path, paths, flags, message
):
  write_files(tmp_path, *paths.split(" "))
  with refused(message):
    open_dataset(tmp_path, **flags)


def test_an_added_image_makes_another_source(tmp_path):
  write_files(tmp_path, "a/1.png", "b/2.png")
  before = listing_digest(open_dataset(tmp_path))
  assert listing_digest(open_dataset(tmp_path)) == before
  write_files(tmp_path, "a/3.png")
  assert listing_digest(open_dataset(tmp_path)) != before
  (tmp_path / "a/3.png").unlink()
  assert listing_digest(open_dataset(tmp_path)) == before


def test_a_changed_image_of_the_same_size_makes_another_source(tmp_path):
  write_files(tmp_path, "a/1.png", "b/2.png")
  before = open_dataset(tmp_path)
  (tmp_path / "a/1.png").write_bytes(b"a/9.png")
  os.utime(tmp_path / "a/1.png", ns=(5, 5))
  assert listing_digest(open_dataset(tmp_path)) != listing_digest(before)
  for source in (before, reopen_from_listing(before)):
    with refused("was there when the files were listed, and cannot", RunError):
      source[0]


def test_a_removed_image_cannot_be_read_any_more(tmp_path):
  write_files(tmp_path, "a/1.png", "b/2.png")
  source = open_dataset(tmp_path)
  (tmp_path / "b/2.png").unlink()
  with refused("was there when the files were listed, and cannot", RunError):
    source[1]


@pytest.mark.parametrize(
  ("path", "message"),
  [("a/1.png", "give a folder that has a folder"), ("c", "does not exist")],
)
def test_a_single_image_or_a_missing_path_is_no_data_set(
  tmp_path, path, message
):
  write_files(tmp_path, "a/1.png")
  with refused(message):
    open_dataset(tmp_path / path)


def test_an_enormous_file_is_refused_before_it_is_read(tmp_path):
  write_files(tmp_path, "a/1.png")
  os.truncate(tmp_path / "a/1.png", 2**40)
  with refused("bytes are more than an image may have"):
    open_dataset(tmp_path)[0]


@pytest.fixture
def bucket(tmp_path, monkeypatch):
  """A store whose folder `pets` has one image of each of two classes."""
  with object_server.served(monkeypatch, tmp_path) as server:
    server.objects = {"pets/cat/1.png": b"x", "pets/dog/1.png": b"x"}
    yield server


BUCKET_URL = f"s3://{object_server.BUCKET}/pets"


def test_classes_of_a_bucket_are_said_to_follow_from_the_images(bucket, capsys):
  source = open_dataset(BUCKET_URL)

  assert source.num_classes_source == "labels (treated as public)"
  assert "class names follow from the images" in capsys.readouterr().err


def test_classes_of_a_bucket_that_a_flag_states_are_public(bucket, capsys):
  source = open_dataset(BUCKET_URL, class_names=("cat", "dog", "eel"))

  assert source.num_classes_source == "class_names"
  assert source.class_names == ("cat", "dog", "eel")
  assert "follow from the images" not in capsys.readouterr().err


def test_classes_of_folders_on_a_disk_are_public(birds):
  assert open_dataset(birds).num_classes_source == "class_names"


@pytest.mark.parametrize("also", [[], ["pets//1.png"]])
def test_class_of_a_bucket_with_nothing_but_an_odd_key_is_still_one(
  bucket, also
):
  for key in ["pets/eel//1.png", *also]:
    bucket.objects[key] = b"x"

  with refused("classes without an image: 'eel'"):
    open_dataset(BUCKET_URL)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("flags", "expected"),
  [
    ({}, "labels (treated as public)"),
    ({"num_classes": 2}, "flag"),
    ({"class_names": ("cat", "dog")}, "class_names"),
  ],
)
def test_cache_of_a_bucket_says_where_its_classes_are_known_from(
  bucket, flags, expected
):
  config = ExtractConfig(
    source=SourceConfig(location=(BUCKET_URL,), **flags), backbone="glyph_vit"
  )
  backbone = load_embedder(config).backbone

  info = cache_info(config, open_source(config.source), backbone)

  assert info.num_classes_source == expected


@pytest.mark.parametrize("folder", ["#recycle", "$RECYCLE.BIN", "@Recycle"])
def test_the_wastebasket_of_a_disk_is_no_class(tmp_path, folder):
  write_files(tmp_path, "cat/1.png", f"{folder}/2.png", f"cat/{folder}/3.png")

  source = open_dataset(tmp_path)

  assert (source.class_names, len(source)) == (("cat",), 1)


def test_classes_that_differ_only_in_unicode_form_are_warned_of(
  tmp_path, capsys
):
  write_files(tmp_path, "caf\u00e9/1.png", "cafe\u0301/2.png")

  open_dataset(tmp_path)

  assert "are different classes" in capsys.readouterr().err


def test_classes_that_look_the_same_are_shown_by_their_code_points(
  tmp_path, capsys
):
  write_files(tmp_path, "caf\u00e9/1.png", "cafe\u0301/2.png")

  open_dataset(tmp_path)

  assert r"('cafe\u0301', 'caf\xe9', by the" in capsys.readouterr().err


def test_a_class_in_another_form_of_unicode_than_its_flag_is_explained(
  tmp_path,
):
  write_files(tmp_path, "cafe\u0301/1.png", "dog/2.png")

  with refused(
    r"'cafe\\u0301' and 'caf\\xe9' look the same, and are two forms"
  ):
    open_dataset(tmp_path, class_names=("caf\u00e9", "dog"))


def test_a_folder_of_splits_without_a_flag_is_told_which_there_are(tmp_path):
  write_files(tmp_path, "train/a/1.png", "test/a/2.png")
  with refused("has splits: give --split test or train"):
    open_dataset(tmp_path)


def test_an_empty_folder_is_named(tmp_path):
  with refused(f"'{tmp_path}' is empty: give a folder that has a folder of"):
    open_dataset(tmp_path)


def test_files_without_a_suffix_are_counted_as_such(tmp_path, capsys):
  write_files(tmp_path, "a/1.png", "b/2.png", "b/IMG_1", "a/x.txt")
  open_dataset(tmp_path)
  assert ": 2 files, .txt, without a suffix" in capsys.readouterr().err


def test_a_class_that_is_called_all_is_a_class(tmp_path):
  """`all` is the name of the whole of a folder without splits."""
  write_files(tmp_path, "all/1.png", "hem/2.png")

  assert open_dataset(tmp_path).class_names == ("all", "hem")
