"""Many files in little memory: the same files in the same order."""

import concurrent.futures
import os

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract import file_table, files
from oneshot_dp.extract.file_table import File, make_table
from tests.extract.refusals import refused

ODD_NAME = os.fsdecode(b"b/\xff\n.png")
"""Its bytes are not UTF-8."""


@pytest.fixture
def listed(monkeypatch) -> list[File]:
  """Files whose names fill several blocks."""
  monkeypatch.setattr(file_table, "_BLOCK_BYTES", 1 << 10)
  numbers = [File(f"a/{i:05}.png", i, i + 7) for i in range(2000)]
  return [*numbers, File("b/é", -1, 0), File(ODD_NAME, 2**40, 2**32 - 1)]


def test_table_gives_back_the_files_that_it_was_given(listed):
  table = make_table(listed)

  assert list(table) == listed
  assert [table[i] for i in range(len(listed))] == listed
  assert table[37:1200] == listed[37:1200]
  assert table[-1] == listed[-1]


def test_table_of_no_files_is_empty():
  table = make_table([])

  assert list(table) == []
  assert not table


def test_table_is_read_by_many_threads_at_once(listed):
  table = make_table(listed)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    read = list(pool.map(table.__getitem__, range(len(listed))))

  assert read == listed


def test_select_keeps_what_is_chosen_wherever_it_lies(listed):
  is_kept = np.arange(len(listed)) % 3 == 1

  kept = make_table(listed).select(is_kept)

  assert list(kept) == listed[1::3]
  assert list(kept.select(np.arange(len(kept)) > 5)) == listed[1::3][6:]


def test_below_takes_the_prefix_off(listed):
  below = make_table(listed).below("b/")

  assert list(below.paths()) == ["é", ODD_NAME.removeprefix("b/")]


def test_listing_out_of_order_is_sorted():
  """As S3's directory buckets list."""
  names = ["b", "a/x", "a-b", "a.c"]

  table = make_table(File(name, 1, 1) for name in names)

  assert list(table.paths()) == sorted(names)


def test_file_that_is_listed_twice_is_refused():
  with refused("was listed twice", RunError):
    make_table([File("a", 1, 1), File("b", 1, 1), File("a", 1, 1)])


def test_walk_comes_in_the_order_of_whole_paths(tmp_path):
  """A folder sorts among files by its name and a slash."""
  for name in ("a/z", "a-b", "a.c", "a/b/c", "ab", "B/a", "a0/x"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()

  names = [name for name, _ in files.walk(str(tmp_path))]

  assert names == sorted(names)
  assert len(names) == 7
