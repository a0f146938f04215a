"""All kinds of sources, here and in stores, with labels and without."""

import os

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.sources.open_source import serialize_source, unlabelled
from tests.extract import object_server
from tests.extract.refusals import refused
from tests.extract.sources.made import (
  again,
  arrays,
  opened,
  png,
  write,
  write_table,
)

KINDS = ("folder", "npz", "parquet", "tar")
NAMES = {"class_names": ("cat", "dog", "eel")}
URL = f"s3://{object_server.BUCKET}/pets"


@pytest.fixture
def upload(tmp_path, monkeypatch):
  """Puts the folder `pets` into a store on the loopback."""

  def put():
    files = [path for path in tmp_path.rglob("pets/**/*") if path.is_file()]
    server.objects = {
      str(file.relative_to(tmp_path)): file.read_bytes() for file in files
    }

  with object_server.served(monkeypatch, tmp_path) as server:
    yield put


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_url_is_read_as_the_files_are(tmp_path, upload, scheme, kind):
  root = tmp_path / "pets"
  write(root, "train/.x/3.png", "t.csv")
  if kind == "folder":
    write(root, "train/cat/1.png", "train/dog/2.png")
  elif kind == "npz":
    np.savez(root / "x.npz", **arrays())
  else:
    for i in range(2):
      images = [b"%d" % i, b"y" * 9000]
      write_table(root / f"train-{i}.{kind}", images, label=[0, 1])
  upload()
  here = opened(root, **NAMES)
  there = opened(f"{scheme}://{object_server.BUCKET}/pets", **NAMES)
  assert (there.name, there.split) == (here.name, here.split)
  assert there.display_path(0).startswith(f"{scheme}://")
  for source in (there, again(there)):
    assert len(source) == len(here) > 1
    for one, other in zip(source, here, strict=True):
      assert one.label == other.label
      np.testing.assert_array_equal(one.image, other.image)


@pytest.mark.parametrize("kind", ["folder", "parquet", "tar"])
def test_another_object_of_the_same_size_is_another(tmp_path, upload, kind):
  def source(content):
    if kind == "folder":
      write(tmp_path / "pets", "cat/1.png", data=content)
    else:
      write_table(tmp_path / f"pets/x.{kind}", [content], label=[0])
    upload()
    return opened(URL, **NAMES)

  before = source(b"ab")
  listed = serialize_source(before)
  assert (
    serialize_source(source(b"ab")) == listed != serialize_source(source(b"ac"))
  )
  with refused("changed", RunError):
    before[0]


def test_images_without_labels_are_in_the_order_given(tmp_path, upload):
  write(tmp_path, "z.png", "pets/b/2.png", "pets/a.jpg", "pets/x.txt", "odd")
  np.savez(tmp_path / "x.npz", image=arrays(2)["image"])
  for kind in ("parquet", "tar"):
    write_table(tmp_path / f"t.{kind}", [png(1), png(2)], label=["?", "?"])
    write_table(tmp_path / f"tables/u.{kind}", [png(3)])
  upload()
  here = ("x.npz", "z.png", "odd", "pets", "t.parquet", "t.tar", "tables")
  words = [str(tmp_path / word) for word in here]
  found = unlabelled([*words, URL, f"{URL}/a.jpg"])
  names = [found.name_of(i).replace(f"{tmp_path}/", "") for i in range(15)]
  assert names == [
    *("x.npz[0]", "x.npz[1]", "z.png", "odd", "pets/a.jpg", "pets/b/2.png"),
    *("t.parquet[0]", "t.parquet[1]", "t.tar[0]", "t.tar[1]"),
    *("tables/u.parquet[0]", "tables/u.tar[0]"),
    *(f"{URL}/a.jpg", f"{URL}/b/2.png", f"{URL}/a.jpg"),
  ]
  assert found.class_names == ("unlabelled",)
  assert {example.label for example in found} == {0}
  assert found[3].image == b"odd"
  assert found[4].image == found[12].image == b"pets/a.jpg"
  assert found[7].image == found[9].image == png(2)
  with pytest.raises(IndexError):
    found[15]
  write(tmp_path, "g/a\x1b[2J.png")
  found = unlabelled([str(tmp_path / "g")])
  assert found.name_of(0).endswith("a\x1b[2J.png")
  assert found.display_path(0).endswith(r"a\x1b[2J.png")
  (tmp_path / "g/a\x1b[2J.png").unlink()
  with refused(r"a\\x1b\[2J.png' was there", RunError):
    found[0]


def test_what_has_no_images(tmp_path, upload):
  write(tmp_path, "f/notes.txt", "g/1.png")
  np.savez(tmp_path / "x.npz", label=np.arange(2))
  (tmp_path / "empty").mkdir()
  (tmp_path / "g/2.png").symlink_to("gone.png")
  os.mkfifo(tmp_path / "pipe.png")
  os.mkfifo(tmp_path / "pipe.npz")
  for word, said in {
    "f": "has no images: they end in",
    "empty": "has no images: they end in",
    "g": "lead nowhere .*'2.png'",
    "gone": "is not there",
    "x.npz": "has no array 'image'",
    "pipe.png": "not a regular file",
    "pipe.npz": "not a regular file",
    f"{URL}/3.jpg": "is not there",
    f"{URL}.none": "is not there",
  }.items():
    with refused(said):
      unlabelled([word if "://" in word else str(tmp_path / word)])
