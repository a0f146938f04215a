"""The table of an ablation, and its picture."""

import dataclasses
import math
from typing import Any

import matplotlib.image
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oneshot_dp.pipeline.paper.ablation_plot import plot_ablation
from oneshot_dp.pipeline.paper.ablation_table import AblationRow, ablation_table
from oneshot_dp.pipeline.runs import accuracy_plot
from tests.pipeline.runs import results_test

BASE_SETTING = "lamb, zero, 1 epoch, full batch, clip 1"


def row(
  axis: str,
  setting: str,
  top1: float,
  *,
  draw: int = 0,
  nominal: float | None = None,
  **changes: Any,
) -> AblationRow:
  plain = results_test.row(
    *(changes.pop("epsilon", 8.0), draw, top1),
    delta=1e-6,
    composed_epsilon=33.25,
    path=f"heads/{axis}-{setting}",
    **{"noise_multiplier": 0.6} | changes,
  )
  return AblationRow(
    **dataclasses.asdict(plain),
    axis=axis,
    setting=setting,
    cache=0,
    epsilon_if_poisson=nominal,
  )


def without_noise(axis: str, setting: str, top1: float) -> AblationRow:
  of_none: dict[str, Any] = {
    "epsilon": math.inf,
    "noise_multiplier": 0.0,
    "noise_source": "none: NOT PRIVATE",
    "private": False,
  }
  return row(axis, setting, top1, **of_none)


ROWS = [
  row("base", BASE_SETTING, 0.80),
  row("base", BASE_SETTING, 0.82, draw=1),
  row("clip", "10", 0.70),
  row("clip", "10", 0.70, draw=1),
  row("batch", "500, partition, 1 epoch", 0.86, nominal=2.5),
  row("batch", "500, partition, 1 epoch", 0.86, nominal=2.5, draw=1),
]
EXACT = [
  without_noise("base", BASE_SETTING, 0.90),
  without_noise("clip", "10", 0.91),
  without_noise("batch", "500, partition, 1 epoch", 0.895),
]


def test_changes_are_against_the_base():
  header, base, clip, batch, total = ablation_table(ROWS).splitlines()
  assert header.split() == ["epsilon", "8", "change"]
  assert base.split()[-4:] == ["81.00", "±", "1.41", "+0.00"]
  assert clip.split() == ["clip", "10", "70.00", "±", "0.00", "-11.00"]
  assert "86.00 ± 0.00    +5.00" in batch
  assert batch.endswith("(epsilon 2.5, not proven, as the paper accounts)")
  assert "epsilon = 33.25 at delta = 1e-06" in total
  assert "trained on 50,000, evaluated on 10,000" in total
  assert "(test labels treated as public)" in total
  assert "NOT PRIVATE" not in ablation_table(ROWS)


def test_without_noise_it_has_columns_of_its_own():
  header, base, clip, batch, _, mark = ablation_table(
    [*ROWS, *EXACT]
  ).splitlines()
  assert header.split()[-3:] == ["no", "noise", "change"]
  assert base.split()[-2:] == ["90.00", "+0.00"]
  assert clip.split()[-3:] == ["-11.00", "91.00", "+1.00"]
  assert "+5.00     89.50    -0.50  (epsilon 2.5" in batch
  assert mark == "the column without noise is NOT PRIVATE"
  assert len(header) == len(base) == len(clip)


def seeded() -> list[AblationRow]:
  noise = {"noise_source": "seeded: NOT PRIVATE", "private": False}
  return [dataclasses.replace(each, **noise) for each in ROWS]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
  """Draws, writes, and looks at the axes."""
  kept: list[Figure] = []
  save = accuracy_plot.save
  monkeypatch.setattr(
    accuracy_plot, "save", lambda f, *args: kept.append(f) or save(f, *args)
  )

  def draw(rows: list[AblationRow]) -> Axes:
    plot_ablation(rows, "cifar10", tmp_path)
    assert matplotlib.image.imread(tmp_path / "ablation.png").std() > 0.05
    assert (tmp_path / "ablation.pdf").stat().st_size > 1000
    return kept[-1].axes[0]

  return draw


def test_the_picture(drawn):
  axes = drawn([*ROWS, *EXACT])
  widths = [bar.get_width() for bar in axes.patches]
  assert widths == pytest.approx([0.0, -11.0, 5.0])  # from the base, 81
  assert {bar.get_x() for bar in axes.patches} == {81.0}
  (marks,) = (line for line in axes.lines if line.get_marker() == "d")
  assert list(marks.get_xdata()) == pytest.approx([90.0, 91.0, 89.5])
  assert marks.get_label() == "no noise (NOT PRIVATE)"
  assert [t.get_text().split(":")[0] for t in axes.get_yticklabels()] == [
    "base",
    "clip",
    "batch",
  ]
  assert axes.get_title() == "One thing changed at a time, cifar10"
  assert axes.get_xlabel() == "top-1 accuracy, % (delta = 1e-06)"


def test_a_seed_is_owned_up_to(drawn):
  assert ablation_table(seeded()).splitlines()[-1] == (
    "the noise comes from a seed: all of it is NOT PRIVATE"
  )
  assert "NOT PRIVATE" in drawn(seeded()).get_title()
  assert "NOT PRIVATE" not in drawn([*ROWS, *EXACT]).get_title()


def test_long_labels_leave_room_for_the_bars(drawn):
  """And are all within the picture."""
  name = "caches-of-vit-l14-384x384/train-with-16-views-and-a-long-name-besides"
  axes = drawn([*ROWS[::2], row("resolution", name, 0.9)])
  assert axes.get_position().width > 0.4
  for label in axes.get_yticklabels():
    assert label.get_window_extent().x0 >= 0
