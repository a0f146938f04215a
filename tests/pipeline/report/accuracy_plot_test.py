"""The picture of a run plots whatever a sweep can be asked for."""

import io
import math
import re
import statistics
from typing import Any

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.pipeline.report import accuracy_plot
from oneshot_dp.pipeline.report.accuracy_plot import charts_of, pictures_of
from oneshot_dp.pipeline.report.results import EvaluationSet
from tests.pipeline.report.sample_runs import head_row

TEST = EvaluationSet(num_examples=1000)
HOW = "labels treated as public"
RUNS = {
  "one head": [head_row()],
  "a baseline alone": [head_row(epsilon=math.inf)],
  "everything right": [head_row(top1=1.0)],
  "everything wrong": [head_row(top1=0.0)],
  "two draws far apart": [
    head_row(top1=1.0),
    head_row(top1=0.0, draw=1),
  ],
  "many epsilons": [head_row(epsilon=2.0**i) for i in range(-4, 5)],
}


def draw_all(rows):
  """Everything that a sweep draws of these rows."""
  return pictures_of(rows, "pets", HOW, TEST), charts_of(rows, TEST)


def axes_of(rows, test=TEST) -> Any:
  """The axes of the wide picture."""
  (axes,) = accuracy_plot._draw(rows, test, (6.4, 4.2), "").axes
  return axes


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_pictures_same_rows_same_bytes(name):
  pictures, charts = draw_all(RUNS[name])

  assert pictures["accuracy.png"].startswith(b"\x89PNG")
  assert pictures["accuracy.pdf"].startswith(b"%PDF")
  assert (pictures, charts) == draw_all(RUNS[name])


@pytest.mark.long
def test_pictures_any_number_of_heads_is_plotted():
  rows = []
  for i in range(30):
    head = f"head {i}"
    rows.append(head_row(head, top1=0.5 + i / 100))
    rows.append(head_row(head, 2.0, top1=0.6 + i / 100))
    rows.append(head_row(head, math.inf, top1=0.9))

  pictures, charts = draw_all(rows)

  Image.open(io.BytesIO(pictures["accuracy.png"])).verify()
  assert all("head 29" in chart for chart in charts)


def test_lines_of_seven_heads_look_different():
  axes = axes_of([head_row(f"head {i}") for i in range(7)])

  looks = set()
  for container in axes.containers:
    line = container.lines[0]
    looks.add((line.get_color(), line.get_linestyle(), line.get_marker()))
  assert len(looks) == 7


def test_bars_are_95_percent_intervals_of_the_evaluation_set():
  axes = axes_of([head_row(top1=0.9)])

  (container,) = axes.containers
  (bar,) = container.lines[2]
  (segment,) = bar.get_segments()
  # Of 900 in 1,000, by Clopper and Pearson.
  np.testing.assert_allclose(segment[:, 1], [87.97, 91.79], atol=0.01)


def test_bars_of_several_draws_are_around_their_mean():
  tops = [0.88, 0.90, 0.92]
  axes = axes_of([head_row(top1=top, draw=i) for i, top in enumerate(tops)])

  points = axes.containers[0].lines[0].get_ydata()
  assert points == [pytest.approx(100 * statistics.mean(tops))]


def test_axis_says_where_it_begins():
  axes = axes_of([head_row(top1=0.9), head_row(epsilon=2.0, top1=0.92)])

  low, _ = axes.get_ylim()
  assert low > 0
  assert f"axis from {low:.0f} %" in axes.get_ylabel()


def test_axis_from_zero_says_nothing():
  axes = axes_of([head_row(top1=0.0), head_row(epsilon=2.0, top1=0.9)])

  assert axes.get_ylim()[0] == 0
  assert "axis from" not in axes.get_ylabel()


@pytest.mark.slow
def test_a_name_with_mathematics_is_text():
  pictures_of([head_row()], "a $x^2$ $ name", HOW, TEST)


@pytest.mark.slow
def test_charts_use_the_colors_of_the_page():
  for chart in charts_of([head_row("auto"), head_row("lamb")], TEST):
    assert "var(--c0)" in chart
    assert "var(--c1)" in chart
    assert not re.search("#0072b2|#d55e00|#000000", chart)


@pytest.mark.slow
def test_charts_are_described_in_words():
  rows = [head_row(), head_row(epsilon=math.inf)]

  for chart in charts_of(rows, TEST):
    assert (
      "auto 50.0 % at ε 1, auto 50.0 % without noise (NOT PRIVATE)" in chart
    )
