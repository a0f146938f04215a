import csv
import json
import math
import pathlib
from typing import Any

import pytest

from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.pipeline.runs.results import (
  SweepRow,
  accuracy_table,
  as_json,
  comparison_table,
  cost_of,
  grouped,
  write_tables,
)

PLAN = ReleasePlan(epsilons=(1.0, 8.0), delta=1e-5, num_draws=2)
PUBLIC = {"labels": "public"}


def row(epsilon: float, draw: int, top1: float, **changes: Any) -> SweepRow:
  fields: dict[str, Any] = {
    "epsilon": epsilon,
    "delta": 1e-5,
    "draw": draw,
    "head": "lamb",
    "noise_multiplier": 3.73,
    "top1": top1,
    "top5": 0.99,
    "composed_epsilon": 13.2,
    "num_examples": 50_000,
    "num_eval_examples": 10_000,
    "evaluation": "test labels treated as public",
    "release": "nested",
    "noise_source": "os.urandom",
    "private": True,
    "path": f"heads/{epsilon}-{draw}",
  }
  return SweepRow(**fields | changes)


def baseline() -> SweepRow:
  return row(
    math.inf,
    0,
    0.86,
    noise_multiplier=0.0,
    private=False,
    noise_source="none: NOT PRIVATE",
  )


ROWS = [row(8.0, 0, 0.85), row(1.0, 0, 0.82), row(1.0, 1, 0.84)]


def read_csv(folder: pathlib.Path) -> list[dict[str, str]]:
  with (folder / "results.csv").open(newline="") as file:
    return list(csv.DictReader(file))


def test_the_csv_has_a_line_for_each_head(tmp_path):
  write_tables(tmp_path, [*ROWS, baseline()], cost_of(PLAN), PUBLIC)
  lines = read_csv(tmp_path)
  assert " ".join(list(lines[0])[:8]) == (
    "epsilon delta draw head noise_multiplier top1 top5 balanced"
  )
  assert [float(line["epsilon"]) for line in lines] == [8, 1, 1, math.inf]
  assert [float(line["top1"]) for line in lines] == [0.85, 0.82, 0.84, 0.86]
  assert [line["private"] for line in lines] == ["True"] * 3 + ["False"]


def test_recalls_and_numbers_to_the_last_bit(tmp_path):
  rows = [row(1 / 3, 0, 0.5, balanced=0.625, recall=(1.0, 0.25, None))]
  rows.append(row(2.0, 0, 2 / 7))
  write_tables(tmp_path, rows, cost_of(PLAN), PUBLIC)
  lines = read_csv(tmp_path)
  cells = [(line["balanced"], line["recall"]) for line in lines]
  assert cells == [("0.625", "1 0.25 -"), ("", "")]
  first, second = json.loads((tmp_path / "results.json").read_text())["heads"]
  assert float(lines[0]["epsilon"]) == first["epsilon"] == 1 / 3
  assert float(lines[1]["top1"]) == second["top1"] == 2 / 7
  assert first["recall"] == [1.0, 0.25, None]
  assert second["recall"] is second["balanced"] is None
  _, one, two, _ = accuracy_table(rows).splitlines()
  assert one.split()[-2:] == ["62.50", "1"]
  assert two.split()[-2:] == ["-", "1"]


def test_the_json_says_what_the_sweep_cost(tmp_path):
  write_tables(tmp_path, [*ROWS, baseline()], cost_of(PLAN), PUBLIC)
  text = (tmp_path / "results.json").read_text()
  found = json.loads(text, parse_constant=pytest.fail)
  assert found["evaluation"] == PUBLIC
  assert found["composed_epsilon"] == PLAN.composed_epsilon
  assert found["noise_multipliers_charged"] == list(
    PLAN.charged_noise_multipliers
  )
  assert len(found["noise_multipliers_charged"]) == 2
  assert [head["epsilon"] for head in found["heads"]] == [8, 1, 1, "inf"]

  with pytest.raises(ValueError, match="not JSON compliant"):
    as_json({"top1": math.nan})


def test_groups_keep_their_order():
  counts = {e: len(g) for e, g in grouped(ROWS, "epsilon").items()}
  assert counts == {8.0: 1, 1.0: 2}
  assert list(grouped(comparison(), "head")) == ["lamb", "whitened", "logistic"]
  assert list(grouped(ROWS, "epsilon", "draw")) == [(8, 0), (1, 0), (1, 1)]


def test_the_table_is_sorted_and_shows_the_spread():
  header, one, eight, inf, total = accuracy_table(
    [*ROWS, baseline()]
  ).splitlines()
  assert header.split()[:2] == ["epsilon", "sigma"]
  assert one.split() == ["1", "3.7300", "83.00", "±", "1.41", "99.00", "-", "2"]
  assert eight.split() == ["8", "3.7300", "85.00", "99.00", "-", "1"]
  assert inf.endswith("NOT PRIVATE")
  assert "epsilon = 13.2 at delta = 1e-05 (nested releases)" in total
  assert "trained on 50,000, evaluated on 10,000" in total
  assert "(test labels treated as public)" in total

  seeded = [row(1.0, 0, 0.8, private=False)]
  assert accuracy_table(seeded).splitlines()[1].endswith("NOT PRIVATE")


def comparison() -> list[SweepRow]:
  whitened = {"head": "whitened", "release": "independent"}
  return [
    *ROWS,
    row(8.0, 0, 0.91, **whitened),
    row(1.0, 0, 0.90, **whitened),
    row(math.inf, 0, 0.93, head="logistic", private=False),
  ]


def test_a_comparison_has_a_line_for_each_method():
  header, lamb, whitened, logistic, total = comparison_table(
    comparison()
  ).splitlines()
  assert header.split() == ["top-1", "%", "epsilon", "1", "epsilon", "8"]
  assert lamb.split() == ["lamb", "83.00", "±", "1.41", "85.00"]
  assert whitened.split() == ["auto", "90.00", "91.00"]
  assert logistic.split(maxsplit=2)[:2] == ["logistic", "93.00"]
  assert logistic.endswith("NOT PRIVATE: no noise")
  assert "epsilon = 13.2 at delta = 1e-05" in total
  assert "(nested: lamb; independent: auto)" in total
  assert len(header) == len(lamb) == len(whitened)
  rows = [row(1.0, 0, 0.8), row(1.0, 0, 0.9, head="adam", private=False)]
  _, lamb, adam, _ = comparison_table(rows).splitlines()
  assert "NOT PRIVATE" not in lamb
  assert adam.endswith("NOT PRIVATE")
