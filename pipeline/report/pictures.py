"""Pictures for the page and beside it.

The page has each twice, for wide and narrow screens, as SVG whose text is set
in the reader's own font, and in two sets of colours. Beside the page each is a
PNG and a PDF.
"""

import base64
import contextlib
import dataclasses
import io
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

WIDE, NARROW = 6.9, 3.7
"""Inches: what a page and a phone show at about the size of their text."""
INK, MUTED, RULE, FILL, ON_FILL, WARN = (
  "#1b2330",
  "#5c6673",
  "#dbe0e6",
  "#0a539b",
  "#fefefe",
  "#a32018",
)
_DARK = {
  INK: "#e6e9ee",
  MUTED: "#a3adb9",
  RULE: "#39424e",
  FILL: "#6cb2ff",
  ON_FILL: "#0b1016",
  WARN: "#ff9188",
  # What `accuracy_plot` draws with.
  "#0072b2": "#5cb3f0",
  "#d55e00": "#ff9a52",
  "#009e73": "#3fd0a4",
  "#cc79a7": "#eaa2cb",
  "#000000": "#e5e9ee",
  "#56b4e9": "#a5d8f7",
  "#6b6b6b": "#a4adb9",
}
"""Each colour on light paper, and what stands for it on dark."""
_FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,sans-serif"
_LOOK = {
  "axes.edgecolor": MUTED,
  "axes.labelcolor": INK,
  "axes.spines.right": False,
  "axes.spines.top": False,
  "axes.titlelocation": "left",
  "axes.titlesize": 10.5,
  "axes.titlecolor": INK,
  "font.size": 9.5,
  "grid.color": RULE,
  "legend.fontsize": 9,
  "legend.labelcolor": INK,
  "savefig.transparent": False,
  "svg.fonttype": "none",
  "svg.hashsalt": "oneshot-dp",
  "text.color": INK,
  # A class may be called "$x".
  "text.parse_math": False,
  "xtick.color": MUTED,
  "xtick.labelcolor": INK,
  "ytick.color": MUTED,
  "ytick.labelcolor": INK,
}

Draw = Callable[[Figure, bool], None]
"""Fills a figure; True for one that stands alone, with a title."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
  """A figure, for the page.

  Attributes:
    name: of its files.
    alt: what is to be seen, for whoever cannot.
    wide, narrow, wide_dark, narrow_dark: data URIs of SVG.
    width, height: of the wide one, pixels.
  """

  name: str
  alt: str
  wide: str
  narrow: str
  wide_dark: str
  narrow_dark: str
  width: int
  height: int


def draw_picture(
  name: str, alt: str, draw: Draw, heights: tuple[float, float], folder: Path
) -> Picture:
  """Draws one for the page, and writes its PNG and PDF.

  Args:
    name: of the files.
    alt: what is to be seen.
    draw: fills a figure of any width.
    heights: of the wide and the narrow one, inches.
    folder: where the files go.
  """
  with _look():
    alone = _figure(WIDE, heights[0], draw, alone=True)
    alone.savefig(folder / f"{name}.png", dpi=200)
    alone.set_layout_engine("none")  # it is laid out
    # No time of creation: the same run gives the same file.
    alone.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
    wide = _svg(_figure(WIDE, heights[0], draw, alone=False))
    narrow = _svg(_figure(NARROW, heights[1], draw, alone=False))
  return Picture(
    name=name,
    alt=alt,
    wide=_uri(wide),
    narrow=_uri(narrow),
    wide_dark=_uri(_in_the_dark(wide)),
    narrow_dark=_uri(_in_the_dark(narrow)),
    width=round(WIDE * 96),
    height=round(heights[0] * 96),
  )


@contextlib.contextmanager
def _look() -> Iterator[None]:
  with matplotlib.rc_context(_LOOK), warnings.catch_warnings():
    # The name of a class may be in any script; browsers have more fonts.
    warnings.filterwarnings("ignore", message="Glyph .* missing from")
    yield


def _figure(width: float, height: float, draw: Draw, *, alone: bool) -> Figure:
  figure = Figure(figsize=(width, height), layout="constrained")
  draw(figure, alone)
  return figure


def _svg(figure: Figure) -> str:
  file = io.StringIO()
  figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
  return re.sub(r"'DejaVu Sans'[^;\"]*", _FONTS, file.getvalue())


def _in_the_dark(svg: str) -> str:
  return re.sub(r"#[0-9a-f]{6}\b", lambda m: _DARK.get(m[0], m[0]), svg)


def _uri(svg: str) -> str:
  return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
