import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from oneshot_dp.pipeline.runs.accuracy_plot import (
  _STYLES,
  draw_accuracy,
  plot_accuracy,
)
from tests.pipeline.runs.results_test import ROWS, baseline, comparison, row


def test_the_same_rows_give_the_same_pictures(tmp_path):
  rows = [row(1.0, 0, 0.125 * i, head=f"head {i}") for i in range(9)]
  written = []
  for name in ("a", "b"):
    folder = tmp_path / name
    folder.mkdir()
    plot_accuracy([*rows, baseline()], "pets", folder)
    written.append({p.name: p.read_bytes() for p in folder.iterdir()})
  assert written[0] == written[1]
  assert sorted(written[0]) == ["accuracy.pdf", "accuracy.png"]
  assert written[0]["accuracy.pdf"].startswith(b"%PDF-")
  with Image.open(tmp_path / "a" / "accuracy.png") as image:
    image.load()
    assert image.size == (960, 630)
    assert len(image.convert("RGB").getcolors(10**6) or []) > 10


def words_of(rows, folder, monkeypatch) -> str:
  """All that is written in a picture, which is not."""
  drawn = []

  def keep(figure, *args, **options):
    assert not figure.axes[0].get_legend()  # which would hide lines
    drawn.extend(text.get_text() for text in figure.findobj(Text))

  monkeypatch.setattr(Figure, "savefig", keep)
  plot_accuracy(rows, "pets", folder)
  return " | ".join(drawn)


def test_every_method_is_named_and_the_ceiling_says_what_it_is(
  tmp_path, monkeypatch
):
  words = words_of(comparison(), tmp_path, monkeypatch)
  assert "| lamb |" in words
  assert "| auto |" in words
  assert "| logistic, no noise (NOT PRIVATE) |" in words
  assert "mean ± sd of 2 draws" in words
  assert "Private heads on pets" in words
  seeded = row(1.0, 0, 0.5, head="adam", noise_source="seeded: NOT PRIVATE")
  words = words_of([*ROWS, seeded], tmp_path, monkeypatch)
  assert "Private heads on pets (seeded noise: NOT PRIVATE)" in words


def test_methods_can_be_told_apart_without_colours():
  for field in ("linestyle", "marker", "color"):
    assert len({style[field] for style in _STYLES}) == len(_STYLES)


@pytest.mark.parametrize("draws", [1, 2])
def test_one_draw_has_no_bars_and_epsilons_are_rounded_up(draws):
  axes = Figure().subplots()
  rows = [row(2.000001, draw, 0.5 + 0.1 * draw) for draw in range(draws)]
  draw_accuracy(axes, rows, "pets")
  (line,) = axes.containers
  assert isinstance(line, ErrorbarContainer)
  assert line.has_yerr == (draws > 1)
  (label,) = axes.get_xticklabels()
  assert label.get_text() == "2.0001"
