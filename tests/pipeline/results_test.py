"""Tables and the picture of a run."""

import csv
import io
import json
import math
from typing import Any

import pytest

from oneshot_dp.pipeline.report.accuracy_plot import pictures_of
from oneshot_dp.pipeline.report.results import (
  HeadRow,
  as_json,
  files_of,
  head_name,
  table,
)


def row(head="auto", epsilon=1.0, draw=0, **changes):
  fields: dict[str, Any] = {
    "path": f"heads/{head_name(head, epsilon, draw)}",
    "delta": 1e-5,
    "private": math.isfinite(epsilon),
    "noise_source": "the operating system",
    "noise_multiplier": 0.0 if math.isinf(epsilon) else 3.7 / epsilon,
    "top1": 0.5 + draw / 10,
    "top5": 0.9,
    "balanced": 0.4,
    "recall": (0.25, None, 1.0),
  } | changes
  return HeadRow(head=head, epsilon=epsilon, draw=draw, **fields)


ROWS = [
  *(row(h, e, i) for h in ("auto", "lamb") for i in (0, 1) for e in (1.0, 2.0)),
  row("auto", math.inf),
]


def test_the_csv_has_a_line_for_each_head_and_the_json_is_strict():
  files = files_of(ROWS, {"delta": 1e-5})
  lines = list(csv.DictReader(io.StringIO(files["results.csv"].decode())))
  assert [line["path"] for line in lines] == [each.path for each in ROWS]
  assert len({each.path for each in ROWS}) == len(ROWS)
  assert head_name("auto", 1.0, 0) != head_name("auto", 1.0000000001, 0)
  assert float(lines[-1]["epsilon"]) == math.inf
  assert lines[-1]["private"] == "False"
  assert "recall" not in lines[0]
  found = json.loads(files["results.json"], parse_constant=pytest.fail)
  assert found["delta"] == 1e-5
  assert found["heads"][-1]["epsilon"] == "inf"
  assert found["heads"][0]["recall"] == [0.25, None, 1.0]
  with pytest.raises(ValueError, match="not JSON compliant"):
    as_json({"nan": math.nan})


def test_the_table_has_means_and_spreads_and_marks():
  lines = table(ROWS).splitlines()
  assert len(lines) == 1 + 5
  assert "55.00 ± 7.07" in lines[1]
  assert lines[-1].endswith("NOT PRIVATE")
  assert sum("NOT PRIVATE" in line for line in lines) == 1
  noisy = table([row(top5=None, balanced=None)]).splitlines()[1]
  assert noisy.split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(
  "rows",
  [ROWS, [row()], [row("lamb", math.inf)], [row(top1=1.0), row(top1=0.0)]],
)
def test_pictures_are_functions_of_the_rows(rows):
  name = "a $x^2$ name"
  pictures = pictures_of(rows, name, "noisy counts")
  assert pictures == pictures_of(rows, name, "noisy counts")
  assert pictures["accuracy.png"].startswith(b"\x89PNG")
  assert pictures["accuracy.pdf"].startswith(b"%PDF")
