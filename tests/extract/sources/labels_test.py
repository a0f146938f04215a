"""Whose an image of a folder is, where people have names."""

import pathlib

import pytest

from oneshot_dp.extract.sources import labels
from tests.extract.refusals import refused
from tests.extract.sources.made import again, opened, write

ANNA = 0xD04474CC4B844A8C >> 1
"""The first 63 bits of `printf anna | b2sum -l 64`."""
FILES = (
  *("cat/anna_1.png", "cat/bo_2.png", "dog/deep/anna_3.png"),
  *("cat/notes.txt", "dog/9.HEIC", ".DS_Store", "__MACOSX/cat/x.png"),
)
TABLE = "file,patient\ncat/anna_1.png,anna\ncat/bo_2.png,bo\n"
WHOLE = TABLE + "dog/deep/anna_3.png,anna\n"


@pytest.fixture
def root(tmp_path) -> pathlib.Path:
  write(tmp_path / "pets", *FILES)
  return tmp_path / "pets"


def numbers(table, root, split=None):
  path = root.parent / "units.csv"
  if "\n" in table:
    path.write_text(table)
    table = str(path)
  source = opened(root, units=table, split=split)
  assert source.unit == "patient"
  path.unlink(missing_ok=True)
  assert [*again(source)] == [*source]
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
def test_a_table_and_an_expression_say_the_same(root, table):
  anna, bo, anna_again = numbers(table, root)
  assert anna == anna_again == ANNA != bo
  assert 0 <= bo < 2**63


@pytest.mark.parametrize(
  ("table", "said"),
  [
    (TABLE, r"images without a patient in .*: 'dog/deep/anna_3.png'\.$"),
    (WHOLE.replace(",bo", ", "), "without a patient in .*'cat/bo_2.png'"),
    ("(?P<patient>a)[tn]", "all images are of the patient 'a'.*folder's name"),
    ("(?P<patient>bo)_", "without a patient in .*'cat/anna_1.png', 'd"),
    (WHOLE + "dog/9.png,bo\n", "files that are not in .*: 'dog/9.png'; rem"),
    (WHOLE + "./cat/bo_2.png,bo\n", "has 'cat/bo_2.png' more than once"),
    (WHOLE + "x\n", "'x' has 1 fields, not 2"),
    (WHOLE.split("\n", 1)[1], 'first line must be "file," and what owns'),
    (WHOLE.replace(",", ";"), "begins with 'file;patient'"),
    ("file,example\n", "must be a short public one"),
    ("file,a\x1b[2J\n", "must be a short public one"),
    ('file,patient\n"a,b', "is no CSV file in UTF-8: unexpected end"),
    ("(?P<patient>", r"must be FILE.csv, or a regular expression with one"),
    (r"(\d)_", r"one group, named after the unit: '\(\?P<patient>"),
    (r"(?P<a>\d)(\d)", "one group, named"),
    ("none.csv", "none.csv cannot be read: No such file or directory"),
  ],
)
def test_units_that_are_not_plain(root, table, said):
  with refused(said):
    numbers(table, root)


def test_a_table_is_of_all_splits(root, tmp_path):
  table = "file,patient\n"
  for split in ("train", "test"):
    write(tmp_path / "of" / split, *FILES)
    table += "".join(f"{split}/{row}\n" for row in WHOLE.split()[1:])
  assert numbers(table, tmp_path / "of", "train")[0] == ANNA
  with refused(r"without a patient .* 'train/cat/anna_1.png', "):
    numbers(WHOLE, tmp_path / "of", "train")
  with refused(r"files that are not .* 'test/cat/x.png'"):
    numbers(table + "test/cat/x.png,bo", tmp_path / "of", "test")


def test_two_names_are_never_one_unit_of_batches_either():
  names, known = [f"u{i}" for i in range(50)], {}
  first = labels.units_of_column(names, "user", str, known)
  assert labels.units_of_column(names, "user", str, known) == first
  known[first[7]] = "somebody"
  with refused("'somebody' and 'u7' have one number"):
    labels.units_of_column(names, "user", str, known)
