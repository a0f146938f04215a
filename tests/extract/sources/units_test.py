"""Whose an image of a folder or an npz is, where people have names."""

import dataclasses
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.extract_config import ArraysSource, ImageFolderSource
from oneshot_dp.extract.cache.info import INCOMPLETE_DIR
from oneshot_dp.extract.job.job import run_extraction
from oneshot_dp.extract.sources import units
from oneshot_dp.extract.sources.open_source import open_source
from tests.extract.image_jobs import (
  columns,
  folder_job,
  write_folder,
  write_npz,
)
from tests.extract.refusals import refused

ANNA = 0xD04474CC4B844A8C >> 1
"""The first 63 bits of `printf anna | b2sum -l 64`."""
FILES = ("cat/anna_1.png", "cat/bo_2.png", "dog/deep/anna_3.png")
TABLE = "file,patient\ncat/anna_1.png,anna\ncat/bo_2.png,bo\n"
WHOLE = TABLE + "dog/deep/anna_3.png,anna\n"


def numbers(table: str, root: pathlib.Path, split: str = "all") -> list:
  if "\n" in table:
    (root / "units.csv").write_text(table)
    table = str(root / "units.csv")
  source = open_source(ImageFolderSource(root=str(root), units=table), split)
  assert source.privacy_unit == "patient"
  again = open_source(
    ImageFolderSource(root=str(root), units="gone.csv"), split, source.listing
  )
  assert [e.unit_id for e in again] == [e.unit_id for e in source]
  return [example.unit_id for example in source]


@pytest.fixture
def root(tmp_path) -> pathlib.Path:
  for name in FILES:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(name)
  return tmp_path


@pytest.mark.parametrize(
  "table",
  [
    WHOLE,
    WHOLE.replace("cat/a", "./cat//a").replace("\n", "\r\n"),
    "\ufeff" + WHOLE.replace(",anna", ', "anna"'),
    r"(?P<patient>[^/_]+)_\d",
  ],
)
def test_a_table_and_an_expression_say_the_same(root, table):
  anna, bo, anna_again = numbers(table, root)
  assert anna == anna_again == ANNA != bo
  assert 0 <= bo < 2**63


@pytest.mark.parametrize(
  ("table", "said"),
  [
    (TABLE, r"1 image has no patient in .*: 'dog/deep/anna_3.png'\.$"),
    (WHOLE.replace(",bo", ", "), "1 image has no patient in .*'cat/bo_2.png"),
    ("(?P<patient>bo)_", "2 images have no patient in .*'cat/anna_1.png', 'd"),
    (WHOLE + "dog/9.png,bo\n", "names 1 files that are no .*: 'dog/9.png'; re"),
    (WHOLE + "./cat/bo_2.png,bo\n", "has 'cat/bo_2.png' more than once"),
    (WHOLE + "x\n", "has a line of 1 fields instead of 2, that of 'x'"),
    (WHOLE.split("\n", 1)[1], 'first line must be "file," and what owns'),
    ("file,patient,age\n", "begins with 'file,patient,age'"),
    (WHOLE.replace(",", ";"), "is separated by ';'; it must be ','"),
    (WHOLE.replace(",", "\t"), "separated by '.t'; it must be ','"),
    ("file,example\n", "must be a short public one"),
    ('file,patient\n"a,b', "is no CSV file in UTF-8: unexpected end"),
    ("(?P<patient>", "is neither a .csv file nor a regular expression: "),
    (r"(\d)_", r"must have one group, named after the unit: \(\?P<patient>"),
    (r"(?P<a>\d)(?P<b>\d)", "must have one group, named"),
    ("none.csv", "'none.csv' cannot be read: No such file or directory"),
  ],
)
def test_units_that_are_not_plain(root, table, said):
  with refused(said):
    numbers(table, root)


def test_a_table_is_of_all_splits(root, tmp_path):
  for split in ("train", "test"):
    (tmp_path / "of" / split).mkdir(parents=True)
    for name in ("cat", "dog"):
      (tmp_path / "of" / split / name).symlink_to(root / name)
  lines = [
    line
    for split in ("train", "test")
    for line in WHOLE.split()[1:]
    for line in [f"{split}/{line}"]
  ]
  table = "\n".join(["file,patient", *lines])
  assert numbers(table, tmp_path / "of", "train")[0] == ANNA
  with refused(r"3 images .* 'train/cat/anna_1.png', "):
    numbers(WHOLE, tmp_path / "of", "train")
  with refused(r"names 1 files .* 'test/cat/x.png'"):
    numbers(table + "\ntest/cat/x.png,bo", tmp_path / "of", "test")


def test_two_names_are_never_one_unit(root, monkeypatch):
  class Same:
    def __init__(self, code, digest_size):
      del code, digest_size

    def digest(self):
      return b"\1" * 8

  monkeypatch.setattr(units.hashlib, "blake2b", Same)
  with refused("have one number, by chance"):
    numbers(WHOLE, root)


@pytest.mark.parametrize("array", ["patient", "unit_id"])
@pytest.mark.parametrize("of", [[0, 5, 0], ["anna", "bo", "anna "]])
def test_an_array_of_any_name(tmp_path, array, of):
  write_npz(tmp_path / "i.npz", 3)
  with np.load(tmp_path / "i.npz") as there:
    arrays: Any = dict(there) | {array: np.array(of)}
  np.savez(tmp_path / "i.npz", **arrays)
  config = ArraysSource(path=str(tmp_path / "i.npz"), unit_name="patient")
  found = [example.unit_id for example in open_source(config, "train")]
  assert found[0] == found[2] == (0 if of[0] == 0 else ANNA) != found[1]


def test_units_reach_the_cache_and_names_do_not(tmp_path):
  files = write_folder(tmp_path / "photos", 70, bad=[40])
  lines = [
    f"{f.relative_to(tmp_path / 'photos')},who{f.stem[-1]}" for f in files
  ]
  table = tmp_path / "units.csv"
  table.write_text("\n".join(["file,patient", *lines]))
  job = folder_job(tmp_path / "photos")
  source = ImageFolderSource(root=str(tmp_path / "photos"), units=str(table))
  job, out = dataclasses.replace(job, source=source), tmp_path / "c"
  with refused(r"00040.png .* cannot be decoded"):
    run_extraction(job, out)
  shutil.copytree(out, tmp_path / "stopped")
  mended = files[41].read_bytes()
  files[40].write_bytes(mended + b"\0")
  # Somebody else's image now: another job, but not where it is nobody's still.
  table.write_text("\n".join(["file,patient", *lines[:-1], lines[-1] + "x"]))
  with refused("belongs to another job"):
    run_extraction(job, out)
  table.write_text("\n".join(["file,patient", *lines[::-1]]))
  report = run_extraction(job, out)
  assert report.kept_shards == 1
  units = columns(report.cache)["unit_id"]
  assert [len(set(units[i::10])) for i in range(10)] == [1] * 10
  assert len(set(units)) == 10
  assert report.cache.info.privacy_unit == "patient"
  for folder in (out, tmp_path / "stopped"):
    kept = [f for f in folder.rglob("*") if f.is_file()]
    assert not any(b"who" in file.read_bytes() for file in kept)
  assert (tmp_path / "stopped" / INCOMPLETE_DIR / "listing").is_file()


def test_parts_of_a_source_have_no_unit_in_common(tmp_path):
  write_folder(tmp_path / "photos", 60)
  source = ImageFolderSource(
    root=str(tmp_path / "photos"), units=r"(?P<patient>\d)\.png"
  )
  parts = []
  for split in ("all[:50%]", "all[50%:]"):
    job = dataclasses.replace(
      folder_job(tmp_path / "photos", split=split), source=source
    )
    cache = run_extraction(job, tmp_path / split).cache
    assert cache.info.parts_by == "unit"
    parts.append(columns(cache)["unit_id"])
  assert sum(map(len, parts)) == 60
  assert min(map(len, parts)) > 0
  assert not set(parts[0]) & set(parts[1])
