"""Whose an image of a folder is, where people have names."""

import pathlib
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from oneshot_dp.configs.extract_config import FIXED_GRAPH, NO_OWNER
from oneshot_dp.extract.sources.annotations.file_owners import units_of_files
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  open_dataset,
  reopen_from_listing,
  write_files,
  write_table,
)
from tests.sample_caches import weight_divisors

ANNA = 0xD04474CC4B844A8C >> 1
"""The first 63 bits of `printf anna | b2sum -l 64`."""
FILES = (
  *("cat/anna_1.png", "cat/bo_2.png", "dog/deep/anna_3.png"),
  *("cat/notes.txt", "dog/9.JXL", ".DS_Store", "__MACOSX/cat/x.png"),
)
TABLE = "file,patient\ncat/anna_1.png,anna\ncat/bo_2.png,bo\n"
WHOLE = TABLE + "dog/deep/anna_3.png,anna\n"


@pytest.fixture
def pets(tmp_path) -> pathlib.Path:
  write_files(tmp_path / "pets", *FILES)
  return tmp_path / "pets"


def unit_ids(
  table: str, folder: pathlib.Path, split: str | None = None
) -> list[int]:
  """The units of a folder by a regular expression or the text of a table."""
  flag = table
  path = folder.parent / "units.csv"
  if "\n" in table:
    path.write_text(table)
    flag = str(path)
  source = open_dataset(folder, units=flag, split=split)
  path.unlink(missing_ok=True)
  assert source.unit == "patient"
  # A worker, who has no table, knows the same.
  assert [*reopen_from_listing(source)] == [*source]
  return [example.unit_id for example in source]


@pytest.mark.parametrize(
  "table",
  [
    WHOLE,
    WHOLE.replace("cat/a", "./cat//a").replace("\n", "\r\n"),
    "\ufeff" + WHOLE.replace(",anna", ', "anna"'),
    WHOLE + "\n\n",
    WHOLE + "".join(f"{file},bo\n" for file in FILES[3:]),
    r"(?P<patient>[^/_]+)_\d",
  ],
)
def test_a_table_or_an_expression_gives_each_owner_one_number(pets, table):
  first, bo, last = unit_ids(table, pets)
  assert first == last == ANNA
  assert bo != ANNA
  assert 0 <= bo < 2**63


@pytest.mark.parametrize(
  ("table", "message"),
  [
    (TABLE, r"images without patient in .*: 'dog/deep/anna_3.png'; each"),
    (WHOLE.replace(",bo", ", "), "without patient in .*'cat/bo_2.png'"),
    (
      "(?P<patient>a)[tn]",
      "finds the patient 'a' in every path, perhaps in the name of",
    ),
    ("(?P<patient>bo)_", "finds no patient in .*'cat/anna_1.png', 'd"),
    (WHOLE + "dog/9.png,bo\n", "files that are not in .*: 'dog/9.png'; rem"),
    (WHOLE + "bo_2.png,bo\n", "paths as from .*, such as 'cat/bo_2.png'"),
    (WHOLE + "BO_2,bo\n", "with their suffix, such as 'cat/bo_2.png'"),
    (WHOLE + "cat/bo_2,bo\n", "with their suffix, such as 'cat/bo_2.png'"),
    (WHOLE + "dog/deep/bo_2.png,bo\n", "'dog/deep/bo_2.png'; remove their"),
    (
      WHOLE + "./cat/bo_2.png,bo\n",
      "has 'cat/bo_2.png' more than once with .*: leave one",
    ),
    (WHOLE + "x\n", "'x' has 1 fields, not 2"),
    (WHOLE.split("\n", 1)[1], 'first line must be "file", a comma'),
    (WHOLE.replace(",", ";"), "begins with 'file;patient'"),
    ("file,example\n", "must be a short public one"),
    ("file,a\x1b[2J\n", "must be a short public one"),
    ('file,patient\n"a,b', "is not a valid CSV file in UTF-8: unexpected end"),
    ("(?P<patient>", r"is neither a file that ends in .csv, nor a regular"),
    (r"(\d)_", r"one group, named after the unit, such as '/\(\?P<patient>"),
    (r"(?P<a>\d)(\d)", "one group, named"),
    ("same_image", "nor same-image"),
    ("(?P<patient>anna)_", "searched in CLASS/FILE, or name the owners in a"),
    (WHOLE.replace("/", "\\"), "write / between folders, and not a backslash"),
    ("none.csv", "none.csv cannot be read: No such file or directory"),
  ],
)
def test_units_that_leave_a_doubt_are_refused(pets, table, message):
  with refused(message):
    unit_ids(table, pets)


@pytest.fixture
def split_table(tmp_path) -> str:
  """Writes splits train and test; returns the table of both."""
  table = "file,patient\n"
  for split in ("train", "test"):
    write_files(tmp_path / "both" / split, *FILES)
    for row in WHOLE.split()[1:]:
      table += f"{split}/{row}\n"
  return table


def test_a_table_is_about_all_splits(split_table, tmp_path):
  assert unit_ids(split_table, tmp_path / "both", "train")[0] == ANNA


def test_a_table_without_the_split_in_its_paths_is_refused(
  split_table, tmp_path
):
  with refused(r"without patient .* 'train/cat/anna_1.png', "):
    unit_ids(WHOLE, tmp_path / "both", "train")


def test_a_row_of_a_missing_file_of_this_split_is_refused(
  split_table, tmp_path
):
  table = split_table + "test/cat/x.png,bo"
  with refused(r"files that are not .* 'test/cat/x.png'"):
    unit_ids(table, tmp_path / "both", "test")


SHARED = WHOLE + "cat/bo_2.png,anna\n"
"""Anna is in all three pictures, with Bo in one."""


def open_shared(table: str, folder: pathlib.Path, split: str | None = None):
  path = folder.parent / "units.csv"
  path.write_text(table)
  source = open_dataset(folder, units=str(path), split=split)
  path.unlink()
  assert source.unit == "patient" + FIXED_GRAPH
  # A worker, who has no table, knows the same.
  assert [*reopen_from_listing(source)] == [*source]
  return source


def test_an_image_may_have_several_owners(pets):
  source = open_shared(SHARED, pets)
  anna, both, again = (example.unit_id for example in source)
  assert anna == again == [ANNA, NO_OWNER]
  assert ANNA in both
  assert NO_OWNER not in both
  assert both == sorted(both)
  assert [example.weight_divisor for example in source] == [3, 3, 3]


@pytest.mark.parametrize("other", ["ANNA", "anna\u200b", "\uff21nna"])
def test_one_owner_who_is_spelled_twice_is_refused(pets, other):
  with refused("spell one person in one way"):
    open_shared(WHOLE + f"cat/anna_1.png,{other}\n", pets)


def test_more_owners_than_rows_have_room_for_are_refused(pets):
  crowd = "".join(f"cat/bo_2.png,person {i}\n" for i in range(1000))
  with refused("more than 1,000 owners of 'cat/bo_2.png'"):
    open_shared(WHOLE + crowd, pets)


def test_a_table_of_several_owners_is_warned_of(pets, capsys):
  """A line too many changes what is promised, and may be a slip."""
  open_shared(SHARED, pets)

  warning = capsys.readouterr().err

  assert "names several owners of 1 image, such as 'cat/bo_2.png'" in warning
  assert "WHO IS IN WHICH IMAGE IS NOT PROTECTED" in warning


def test_images_of_other_splits_are_not_counted(split_table, tmp_path):
  table = split_table + "train/cat/anna_1.png,bo\n"
  train = open_shared(table, tmp_path / "both", "train")
  test = open_shared(table, tmp_path / "both", "test")
  assert [example.weight_divisor for example in train] == [2, 2, 2]
  # The relation is that of the table, also where no image is shared.
  assert [example.weight_divisor for example in test] == [2, 1, 2]
  assert test.unit_ids[:, 1].tolist() == [NO_OWNER] * 3


def test_no_owner_weighs_more_than_one(tmp_path):
  rng = np.random.default_rng(0)
  images = [f"a/{i}.png" for i in range(60)]
  lines = ["file,person"]
  owned: dict[str, list[int]] = {}
  for place, image in enumerate(images):
    for owner in rng.choice(12, rng.integers(1, 5), replace=False):
      lines.append(f"{image},p{owner}")
      owned.setdefault(f"p{owner}", []).append(place)
  path = tmp_path / "owners.csv"
  path.write_text("\n".join(rng.permutation(lines[1:]).tolist()))
  path.write_text(f"{lines[0]}\n{path.read_text()}\n")

  found = units_of_files(str(path), images, (), "")

  assert found.weight_divisors is not None
  totals = []
  for places in owned.values():
    divisors = found.weight_divisors[places].tolist()
    totals.append(sum(Fraction(1, divisor) for divisor in divisors))
  assert max(totals) == 1  # of the owner of most images
  np.testing.assert_array_equal(
    found.weight_divisors, weight_divisors(found.unit_ids)
  )
  assert (np.diff(found.unit_ids, axis=1) != 0)[:, 0].all()


def test_an_image_without_an_owner_is_refused_among_shared_ones(pets):
  with refused(r"images without patient in .*: 'dog/deep/anna_3.png'; each"):
    open_shared(TABLE + "cat/bo_2.png,anna\n", pets)


@pytest.mark.parametrize("suffix", ["parquet", "tar"])
def test_an_owners_name_of_more_characters_than_a_path_is_refused(
  tmp_path, suffix
):
  path = tmp_path / f"x.{suffix}"
  write_table(path, [b"a", b"b"], label=[0, 1], who=["anna", "x" * 4097])

  with refused("a name of 4,097 characters, and an owner's may have 4,096"):
    open_dataset(path, num_classes=2, units="who")


def test_a_table_of_one_line_of_commas_is_refused_at_its_start(pets):
  with refused("a line unfolds to 65,536 bytes, and may have 65,535"):
    open_shared("file,patient\n" + ",".ljust(1 << 20, ","), pets)


def test_blank_lines_of_a_table_take_no_memory(pets):
  blank = "\n".ljust(1 << 17, "\n")
  tracemalloc.start()
  try:
    open_shared(SHARED + blank, pets)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 1 << 21  # a list of no fields for each would be 7.5 MB


def test_an_expression_does_not_search_in_the_name_of_the_split(tmp_path):
  write_files(
    tmp_path / "pets" / "train", "big_cat/anna_1.png", "big_dog/bo_2.png"
  )

  anna, bo = unit_ids("/(?P<patient>[^/_]+)_", tmp_path / "pets", "train")

  assert anna == ANNA != bo


def test_a_list_of_owners_in_one_cell_is_refused(pets):
  """It would be a person of its own, and protect none of the list."""
  with refused("patient 'anna; bo' is several of the others: .* a line for"):
    unit_ids(
      WHOLE.replace("cat/anna_1.png,anna", "cat/anna_1.png,anna; bo"), pets
    )


def test_a_single_owner_of_all_images_is_warned_of(pets, capsys):
  """Else a budget would be spent on a head that can learn nothing."""
  unit_ids(WHOLE.replace(",bo", ",anna"), pets)

  assert "all rows are of one patient: no head can" in capsys.readouterr().err


def test_classes_as_owners_are_warned_of(pets, capsys):
  """An expression without its slash finds the folder of the class."""
  unit_ids("(?P<patient>[^/]+)/", pets)

  assert "each class has one patient, as if that" in capsys.readouterr().err


def test_an_owner_that_is_not_utf8_is_found_by_its_line(pets, tmp_path):
  # 20,000 lines are more than one block of what is decoded at a time.
  table = tmp_path / "latin.csv"
  lines = [b"file,patient", *[b"cat/x.png,a"] * 20_000, b"cat/y.png,J\xf6rg"]
  table.write_bytes(b"\n".join(lines))
  with refused("byte 0xf6 in line 20,002; save it as UTF-8"):
    unit_ids(str(table), pets)


def test_a_table_that_is_refused_is_not_warned_of_before(pets, capsys):
  shared = WHOLE + "cat/anna_1.png,bo\n"
  with refused("is several of the others"):
    unit_ids(shared.replace("bo_2.png,bo", "bo_2.png,anna; bo"), pets)

  assert "WARNING" not in capsys.readouterr().err
