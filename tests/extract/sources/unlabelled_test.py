"""Images as `predict` is given them: which, in which order, by which names."""

import os

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.sources.open_source import unlabelled
from tests.extract.refusals import refused
from tests.extract.sources.made import (
  arrays,
  png,
  write,
  write_table,
)


def test_order_is_as_given_and_names_are_those_of_the_files(tmp_path):
  write(tmp_path, "z.png", "f/b/2.png", "f/a.jpg", "f/notes.txt", "odd")
  np.savez(tmp_path / "x.npz", image=arrays(2)["image"])
  for kind in ("parquet", "tar"):
    write_table(tmp_path / f"t.{kind}", [png(1), png(2)], label=["?", "?"])
    write_table(tmp_path / f"tables/u.{kind}", [png(3)])
  words = ("x.npz", "z.png", "odd", "f", "t.parquet", "t.tar", "tables", "odd")
  found = unlabelled([str(tmp_path / word) for word in words])
  names = [found.name_of(i).removeprefix(f"{tmp_path}/") for i in range(13)]
  assert names == [
    *("x.npz[0]", "x.npz[1]", "z.png", "odd", "f/a.jpg", "f/b/2.png"),
    *("t.parquet[0]", "t.parquet[1]"),
    *("t.tar[0]", "t.tar[1]"),
    *("tables/u.parquet[0]", "tables/u.tar[0]", "odd"),
  ]
  assert len(found) == 13
  assert found.class_names == ("unlabelled",)
  assert {example.label for example in found} == {0}
  assert found[3].image == b"odd"
  assert found[7].image == found[9].image == png(2)
  with pytest.raises(IndexError):
    found[13]
  write(tmp_path, "g/a\x1b[2J.png")
  found = unlabelled([str(tmp_path / "g")])
  assert found.name_of(0).endswith("a\x1b[2J.png")
  assert found.where(0).endswith(r"a\x1b[2J.png")
  (tmp_path / "g/a\x1b[2J.png").unlink()
  with refused(r"a\\x1b\[2J.png' was there", RunError):
    found[0]


def test_what_has_no_images(tmp_path):
  write(tmp_path, "f/notes.txt", "g/1.png", "x.tar.gz")
  np.savez(tmp_path / "x.npz", label=np.arange(2))
  (tmp_path / "g/2.png").symlink_to("gone.png")
  os.mkfifo(tmp_path / "pipe.png")
  os.mkfifo(tmp_path / "pipe.npz")
  for word, said in {
    "f": "has no images: they end in",
    "g": "lead nowhere .*'2.png'",
    "gone": "is not there",
    "x.npz": "has no array 'image'",
    "pipe.png": "not a regular file",
    "pipe.npz": "not a regular file",
  }.items():
    with refused(said):
      unlabelled([str(tmp_path / word)])
