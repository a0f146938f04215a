import pytest

from oneshot_dp.pipeline.runs.text_table import text_table

HEADER = ["top-1 %", "epsilon 1", "epsilon 2", "epsilon 4"]
ROWS = [
  ["lamb", "1.00", "2.00", "4.00"],
  ["whitened", "10.00", "20.00", "40.0"],
]


@pytest.fixture
def screen(monkeypatch):
  """So many columns of a terminal."""
  monkeypatch.setattr("sys.stdout.isatty", lambda: True)
  return lambda columns: monkeypatch.setenv("COLUMNS", str(columns))


def test_keys_to_the_left_and_numbers_to_the_right():
  assert text_table(HEADER, ROWS) == [
    "top-1 %   epsilon 1  epsilon 2  epsilon 4",
    "lamb           1.00       2.00       4.00",
    "whitened      10.00      20.00       40.0",
  ]


@pytest.mark.parametrize("name", ["é", "e\u0301", "日", "ε=½"])
def test_characters_of_other_widths(name):
  places = {"é": 1, "e\u0301": 1, "日": 2, "ε=½": 3}[name]
  rows = [[name, "1.00"], ["long name", "2.00"]]
  _, first, second = text_table(["", "x"], rows)
  assert len(first) - len(name) + places == len(second)


def test_notes_stand_behind_and_move_nothing():
  lines = text_table(HEADER, [["a", "1"], ["b", "2", "3", "4"]], ["odd", ""])
  assert lines[1] == "a                1  odd"
  assert lines[2].endswith("        4")


def test_a_wide_table_is_broken_and_repeats_its_keys(screen):
  screen(32)
  lines = text_table(HEADER, ROWS, ["", "NOT PRIVATE"])
  assert lines == [
    "top-1 %   epsilon 1  epsilon 2",
    "lamb           1.00       2.00",
    "whitened      10.00      20.00  NOT PRIVATE",
    "",
    "top-1 %   epsilon 4",
    "lamb           4.00",
    "whitened       40.0",
  ]


def test_one_column_at_least_of_rows_that_have_more(screen):
  screen(1)
  lines = text_table(HEADER, [*ROWS, ["logistic", "99.0"]])
  assert lines[:4] == [
    "top-1 %   epsilon 1",
    "lamb           1.00",
    "whitened      10.00",
    "logistic       99.0",
  ]
  assert sum(line.startswith("logistic") for line in lines) == 1
  assert sum(line.startswith("lamb") for line in lines) == 3


def test_a_pipe_is_as_wide_as_it_takes(monkeypatch):
  monkeypatch.setenv("COLUMNS", "20")
  header = ["x", *(f"epsilon {i}" for i in range(99))]
  assert len(text_table(header, [["a", *map(str, range(99))]])) == 2
