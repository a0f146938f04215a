"""The tables of a run: results.csv, results.json, and a terminal's."""

import csv
import io
import json
import math

import pytest

from oneshot_dp.pipeline.report.results import (
  EvaluationSet,
  accuracy_interval_95,
  as_json,
  files_of,
  head_name,
  table,
)
from tests.pipeline.report.sample_runs import head_row

TEST = EvaluationSet(num_examples=1000)


@pytest.fixture
def rows():
  """Two kinds of head at two epsilons, two draws each, and one baseline."""
  found = []
  for head in "auto", "lamb":
    for draw in 0, 1:
      for epsilon in 1.0, 2.0:
        found.append(head_row(head=head, epsilon=epsilon, draw=draw))
  return [*found, head_row(epsilon=math.inf)]


def test_csv_has_one_line_for_each_head(rows):
  files = files_of(rows, {})

  lines = list(csv.DictReader(io.StringIO(files["results.csv"].decode())))

  assert [line["path"] for line in lines] == [row.path for row in rows]
  assert float(lines[-1]["epsilon"]) == math.inf
  assert lines[-1]["private"] == "False"
  assert "recall" not in lines[0]


def test_json_holds_no_infinity(rows):
  files = files_of(rows, {"delta": 1e-5})

  found = json.loads(files["results.json"], parse_constant=pytest.fail)

  assert found["delta"] == 1e-5
  assert found["heads"][-1]["epsilon"] == "inf"
  assert found["heads"][0]["recall"] == [0.25, None, 1.0]


def test_json_refuses_nan():
  with pytest.raises(ValueError, match="not JSON compliant"):
    as_json({"nan": math.nan})


def test_head_names_of_a_run_differ(rows):
  assert len({row.path for row in rows}) == len(rows)
  assert head_name("auto", 1.0, 0) != head_name("auto", 1.0000000001, 0)


def test_table_shows_mean_and_spread_of_draws(rows):
  lines = table(rows, TEST, num_classes=10).splitlines()

  assert len(lines) == 1 + 5
  assert "55.00 ± 7.07" in lines[1]


def test_table_marks_heads_that_are_not_private(rows):
  lines = table(rows, TEST, num_classes=10).splitlines()

  marked = [line for line in lines if line.endswith("NOT PRIVATE")]
  assert marked == [lines[-1]]


def test_table_shows_the_interval_of_the_evaluation_set():
  (_, line) = table([head_row(top1=0.9)], TEST, num_classes=10).splitlines()

  assert "88.0–91.8" in line  # of 900 in 1,000, by Clopper and Pearson


@pytest.mark.parametrize(("num_classes", "is_shown"), [(5, False), (6, True)])
def test_table_leaves_top5_out_where_nearly_all_rows_have_it(
  num_classes, is_shown
):
  shown = table([head_row()], TEST, num_classes)

  assert ("top-5" in shown) == is_shown
  assert ("93.21" in shown) == is_shown


def test_table_of_noisy_counts_has_no_column_that_was_not_paid_for():
  row = head_row(top5=None, balanced=None)

  header, line = table([row], TEST, num_classes=10).splitlines()

  assert header.endswith("95 % interval")
  assert "-" not in line.split()


def test_interval_of_a_noisy_accuracy_is_wider_by_the_noise():
  exact = accuracy_interval_95(0.85, TEST)
  noisy = accuracy_interval_95(
    0.85, EvaluationSet(num_examples=1000, accuracy_sd=0.01)
  )

  assert noisy[0] == pytest.approx(exact[0] - 0.0196, abs=1e-5)
  assert noisy[1] == pytest.approx(exact[1] + 0.0196, abs=1e-5)
  assert accuracy_interval_95(1.0, TEST)[1] == 1.0
