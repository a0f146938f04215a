"""The same sources in object stores, through obstore and a loopback server."""

import pathlib

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.sources.open_source import (
  listing_of,
  reopened,
  unlabelled,
)
from tests.extract import object_server
from tests.extract.refusals import refused
from tests.extract.sources.made import (
  arrays,
  opened,
  write,
  write_table,
)


@pytest.fixture
def server(tmp_path, monkeypatch):
  with object_server.served(monkeypatch, tmp_path) as made:
    yield made


def uploaded(server: object_server.ObjectServer, root: pathlib.Path) -> None:
  files = [path for path in root.rglob("*") if path.is_file()]
  server.objects = {
    f"{root.name}/{f.relative_to(root)}": f.read_bytes() for f in files
  }


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("kind", ["folder", "npz", "parquet", "tar"])
def test_a_url_is_read_as_the_files_are(tmp_path, server, scheme, kind):
  root, names = tmp_path / "pets", {}
  place = ""
  if kind == "folder":
    write(root, "train/a/1.png", "train/b/2.png", "train/.x/3.png", "t.csv")
  elif kind == "npz":
    root.mkdir()
    place = "/x.npz"
    np.savez(root / "x.npz", **arrays())
  else:
    names = {"class_names": ("a", "b")}
    for i in range(2):
      images = [b"%d" % i, b"y" * 9000]
      write_table(root / f"train-{i}.{kind}", images, label=[0, 1])
  uploaded(server, root)
  there = opened(f"{scheme}://{object_server.BUCKET}/pets{place}", **names)
  here = opened(f"{root}{place}", **names)
  again = reopened(listing_of(there))
  assert len(there) == len(here) == len(again) > 1
  assert (there.name, there.split) == (here.name, here.split)
  for i in range(len(here)):
    assert (
      np.asarray(there[i].image).tobytes()
      == np.asarray(here[i].image).tobytes()
    )
    assert there[i].label == here[i].label == again[i].label
    assert there.where(i).startswith(f"{scheme}://")


@pytest.mark.parametrize("kind", ["folder", "parquet", "tar"])
def test_another_object_of_the_same_size_is_another(tmp_path, server, kind):
  root, url = tmp_path / "pets", f"s3://{object_server.BUCKET}/pets"
  names = {} if kind == "folder" else {"class_names": ("a",)}

  def listing(content):
    if kind == "folder":
      write(root, "a/1.png")
      (root / "a/1.png").write_bytes(content)
    else:
      write_table(root / f"x.{kind}", [content], label=[0])
    uploaded(server, root)
    return listing_of(opened(url, **names))

  before = listing(b"ab")
  assert listing(b"ab") == before != listing(b"ac")
  with refused("changed", RunError):
    reopened(before)[0]


def test_images_without_labels_of_a_url(tmp_path, server):
  write(tmp_path / "pets", "deep/down/1.png", "2.jpg", "x.txt")
  uploaded(server, tmp_path / "pets")
  url = f"s3://{object_server.BUCKET}/pets"
  found = unlabelled([url, f"{url}/2.jpg"])
  names = ["2.jpg", "deep/down/1.png", "2.jpg"]
  assert [bytes(example.image).decode() for example in found] == names
  assert [found.name_of(i) for i in range(3)] == [f"{url}/{n}" for n in names]
  for nothing in (f"{url}/3.jpg", f"s3://{object_server.BUCKET}/none"):
    with refused("is not there"):
      unlabelled([nothing])
