"""All kinds of sources, here and in stores, with labels and without."""

import os

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.job.listing import listing_digest
from oneshot_dp.extract.sources.open_source import open_unlabeled
from tests.extract import object_server
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  encode_png,
  labels_of,
  make_arrays,
  open_dataset,
  reopen_from_listing,
  write_files,
  write_table,
)

KINDS = ("folder", "npz", "parquet", "tar")
NAMES = {"class_names": ("cat", "dog", "eel")}
URL = f"s3://{object_server.BUCKET}/pets"


@pytest.fixture
def upload(tmp_path, monkeypatch):
  """Puts the folder `pets` into a store on the loopback."""

  def put():
    server.objects = {}
    for path in tmp_path.rglob("pets/**/*"):
      if path.is_file():
        key = str(path.relative_to(tmp_path))
        server.objects[key] = path.read_bytes()

  with object_server.served(monkeypatch, tmp_path) as server:
    yield put


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_url_is_read_as_the_same_files_are(tmp_path, upload, scheme, kind):
  root = tmp_path / "pets"
  write_files(root, "train/.x/3.png", "t.csv")
  if kind == "folder":
    write_files(root, "train/cat/1.png", "train/dog/2.png")
  elif kind == "npz":
    np.savez(root / "x.npz", **make_arrays())
  else:
    for i in range(2):
      images = [b"%d" % i, b"y" * 9000]
      write_table(root / f"train-{i}.{kind}", images, label=[0, 1])
  upload()

  here = open_dataset(root, **NAMES)
  there = open_dataset(f"{scheme}://{object_server.BUCKET}/pets", **NAMES)

  assert (there.name, there.split) == (here.name, here.split)
  assert there.display_path(0).startswith(f"{scheme}://")
  for source in (there, reopen_from_listing(there)):
    assert len(source) == len(here) > 1
    for one, other in zip(source, here, strict=True):
      assert one.label == other.label
      np.testing.assert_array_equal(one.image, other.image)


@pytest.mark.parametrize("kind", ["folder", "parquet", "tar"])
def test_another_object_of_the_same_size_is_another_source(
  tmp_path, upload, kind
):
  def open_with(content):
    if kind == "folder":
      write_files(tmp_path / "pets", "cat/1.png", data=content)
    else:
      write_table(tmp_path / f"pets/x.{kind}", [content], label=[0])
    upload()
    return open_dataset(URL, **NAMES)

  first = open_with(b"ab")
  listing = listing_digest(first)
  assert listing_digest(open_with(b"ab")) == listing
  assert listing_digest(open_with(b"ac")) != listing
  with refused("changed", RunError):
    first[0]


@pytest.fixture
def mixed(tmp_path, upload):
  """Images without labels of every kind, and a copy of a folder in a store."""
  write_files(tmp_path, "z.png", "pets/b/2.png", "pets/a.jpg", "pets/x.txt")
  write_files(tmp_path, "odd")
  np.savez(tmp_path / "x.npz", image=make_arrays(2)["image"])
  for kind in ("parquet", "tar"):
    images = [encode_png(1), encode_png(2)]
    write_table(tmp_path / f"t.{kind}", images, label=["?", "?"])
    write_table(tmp_path / f"tables/u.{kind}", [encode_png(3)])
  upload()
  names = ("x.npz", "z.png", "odd", "pets", "t.parquet", "t.tar", "tables")
  paths = [str(tmp_path / name) for name in names]
  return open_unlabeled([*paths, URL, f"{URL}/a.jpg"])


def test_images_without_labels_are_in_the_order_given(mixed, tmp_path):
  names = [mixed.name_of(i).replace(f"{tmp_path}/", "") for i in range(15)]
  assert names == [
    *("x.npz[0]", "x.npz[1]", "z.png", "odd", "pets/a.jpg", "pets/b/2.png"),
    *("t.parquet[0]", "t.parquet[1]", "t.tar[0]", "t.tar[1]"),
    *("tables/u.parquet[0]", "tables/u.tar[0]"),
    *(f"{URL}/a.jpg", f"{URL}/b/2.png", f"{URL}/a.jpg"),
  ]


def test_images_without_labels_are_read_as_they_are(mixed):
  assert mixed.class_names == ("unlabeled",)
  assert set(labels_of(mixed)) == {0}
  assert mixed[3].image == b"odd"
  assert mixed[4].image == mixed[12].image == b"pets/a.jpg"
  assert mixed[7].image == mixed[9].image == encode_png(2)
  with pytest.raises(IndexError):
    mixed[15]


def test_a_name_with_control_characters_is_escaped_where_it_is_shown(tmp_path):
  write_files(tmp_path, "g/a\x1b[2J.png")
  source = open_unlabeled([str(tmp_path / "g")])
  assert source.name_of(0).endswith("a\x1b[2J.png")
  assert source.display_path(0).endswith(r"a\x1b[2J.png")
  (tmp_path / "g/a\x1b[2J.png").unlink()
  with refused(r"a\\x1b\[2J.png' was there", RunError):
    source[0]


@pytest.fixture
def without_images(tmp_path, upload):
  write_files(tmp_path, "f/notes.txt", "g/1.png")
  np.savez(tmp_path / "x.npz", label=np.arange(2))
  (tmp_path / "empty").mkdir()
  (tmp_path / "g/2.png").symlink_to("gone.png")
  os.mkfifo(tmp_path / "pipe.png")
  os.mkfifo(tmp_path / "pipe.npz")
  return tmp_path


@pytest.mark.parametrize(
  ("place", "message"),
  [
    ("f", "has no images: they end in"),
    ("empty", "has no images: they end in"),
    ("g", "lead nowhere .*'2.png'"),
    ("gone", "does not exist"),
    ("x.npz", "has no array 'image'"),
    ("pipe.png", "not a regular file"),
    ("pipe.npz", "not a regular file"),
    (f"{URL}/3.jpg", "does not exist"),
    (f"{URL}.none", "does not exist"),
  ],
)
def test_a_place_without_images_is_refused(without_images, place, message):
  path = place if "://" in place else str(without_images / place)
  with refused(message):
    open_unlabeled([path])
