"""Many files in little memory: the same files in the same order."""

import concurrent.futures
import os
import time

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract import file_table, files
from oneshot_dp.extract.file_table import (
  File,
  FileTable,
  columns_of,
  make_table,
)
from tests.extract.refusals import refused

ODD_NAME = os.fsdecode(b"b/\xff\n.png")
"""Its bytes are not UTF-8."""


@pytest.fixture
def listed(monkeypatch) -> list[File]:
  """Files whose names fill several blocks."""
  monkeypatch.setattr(file_table, "_BLOCK_BYTES", 1 << 10)
  numbers = [File(f"a/{i:05}.png", i, i + 7) for i in range(2000)]
  return [*numbers, File("b/é", -1, 0), File(ODD_NAME, 2**40, 2**32 - 1)]


def table_of(files: list[File]) -> FileTable:
  """A table of files that come in blocks of seven."""
  blocks = [files[start : start + 7] for start in range(0, len(files), 7)]
  return make_table(map(columns_of, blocks))


def test_table_gives_back_the_files_that_it_was_given(listed):
  table = table_of(listed)

  assert list(table) == listed
  assert [table[i] for i in range(len(listed))] == listed
  assert list(table[37:1200]) == listed[37:1200]
  assert table[-1] == listed[-1]


def test_table_of_no_files_is_empty():
  table = table_of([])

  assert list(table) == []
  assert not table


def test_table_is_read_by_many_threads_at_once(listed):
  table = table_of(listed)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    read = list(pool.map(table.__getitem__, range(len(listed))))

  assert read == listed


def test_select_keeps_what_is_chosen_wherever_it_lies(listed):
  is_kept = np.arange(len(listed)) % 3 == 1

  kept = table_of(listed).select(is_kept)

  assert list(kept) == listed[1::3]
  assert list(kept.select(np.arange(len(kept)) > 5)) == listed[1::3][6:]


def test_columns_of_a_table_are_those_of_its_files(listed):
  table = table_of(listed)

  assert columns_of(table[5:]) == columns_of(listed[5:])


def test_below_takes_the_folder_off(listed):
  below = table_of(listed).below("b")

  assert list(below.paths()) == ["é", ODD_NAME.removeprefix("b/")]


def test_below_a_folder_without_files_is_empty(listed):
  assert not table_of(listed).below("c")


def test_below_has_no_file_whose_name_is_the_next_after_the_folder():
  """The first name behind all of "a/" is "a0"."""
  below = table_of([File(name, 1, 1) for name in ("a/x", "a0")]).below("a")

  assert list(below.paths()) == ["x"]


def test_folders_are_found_between_names_that_begin_alike():
  """A folder's name goes on with a slash: others sort before and after it."""
  names = ["a", "a-b/x", "a.c", "a/b/c", "a/z", "a0/x", "é/x", "z"]
  names = sorted([*names, ODD_NAME])

  folders = table_of([File(name, 1, 1) for name in names]).folders()

  found = {folder: names[rows] for folder, rows in folders.items()}
  assert found == {
    "a-b": ["a-b/x"],
    "a": ["a/b/c", "a/z"],
    "a0": ["a0/x"],
    "b": [ODD_NAME],
    "é": ["é/x"],
  }


def test_folder_that_goes_on_through_many_blocks_is_one(listed):
  rows_of = table_of(listed).folders()

  assert rows_of == {"a": slice(0, 2000), "b": slice(2000, 2002)}


def test_folders_of_one_file_each_are_found_in_one_pass():
  """To look for the end of each by itself took a hundred times as long."""
  files = [File(f"{i:05}/x.png", 1, 1) for i in range(50_000)]
  table = table_of(files)

  start = time.process_time()
  rows_of = table.folders()

  assert len(rows_of) == len(files)
  assert time.process_time() - start < 1.5


def test_listing_out_of_order_is_sorted():
  """As S3's directory buckets list."""
  names = ["b", "a/x", "a-b", "a.c"]

  table = table_of([File(name, 1, 1) for name in names])

  assert list(table.paths()) == sorted(names)


def test_block_that_begins_before_the_last_one_ends_is_sorted():
  blocks = [[File("b", 1, 1), File("c", 2, 2)], [File("a", 3, 3)]]

  table = make_table(map(columns_of, blocks))

  assert list(table) == [File("a", 3, 3), File("b", 1, 1), File("c", 2, 2)]


def test_file_that_is_listed_twice_is_refused():
  with refused("was listed twice", RunError):
    table_of([File("a", 1, 1), File("b", 1, 1), File("a", 1, 1)])


@pytest.mark.parametrize("block_files", [1, 2, 100])
def test_walk_comes_in_the_order_of_whole_paths(
  tmp_path, monkeypatch, block_files
):
  """A folder sorts among files by its name and a slash."""
  monkeypatch.setattr(files, "_BLOCK_FILES", block_files)
  for name in ("a/z", "a-b", "a.c", "a/b/c", "ab", "B/a", "a0/x"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()

  blocks = list(files.walk(str(tmp_path)))

  names: list[str] = []
  for block in blocks:
    assert len(block.names) <= block_files
    names += block.names
  assert names == sorted(names)
  assert len(names) == 7
