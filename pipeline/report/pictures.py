"""Pictures: SVG in the page, wide, narrow, light and dark; PNG and PDF beside.

The text of an SVG is set in the reader's own font.
"""

import base64
import io
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.runs.pictures import save_figure

WIDE, NARROW = 6.9, 3.7
"""Inches: what a page and a phone show at about the size of their text."""
INK, MUTED, RULE = "#1b2330", "#5c6673", "#dbe0e6"
FILL, ON_FILL, WARN = "#0a539b", "#fefefe", "#a32018"
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
  "axes.axisbelow": True,
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

MOST_NAMED = 30
"""Classes that can have a line each; more are drawn as a curve."""
_LONGEST_NAME = 18
_SEEDED = f"{NOT_PRIVATE}: the noise comes from a seed"


class Plan(NamedTuple):
  """A picture to be drawn: its title is of the files, as a page has headings.

  Heights, in inches, are of the wide and the narrow one.
  """

  alt: str
  title: str
  heights: tuple[float, float]
  draw: Callable[[Figure], None]


class Picture(NamedTuple):
  """A figure, for the page: data URIs of SVG, the wide one so many pixels."""

  alt: str
  wide: str
  narrow: str
  wide_dark: str
  narrow_dark: str
  width: int
  height: int


def draw_picture(plan: Plan, path: Path, *, is_private: bool) -> Picture:
  """Draws one for the page, and writes its PNG and PDF beside `path`.

  It is marked, unless it is private: its noise comes from a seed.
  """
  mark = [] if is_private else [_SEEDED]
  with matplotlib.rc_context(_LOOK), warnings.catch_warnings():
    # The name of a class may be in any script; browsers have more fonts.
    warnings.filterwarnings("ignore", message="Glyph .* missing from")
    alone = _figure(plan, WIDE, [*mark, plan.title])
    save_figure(alone, path.with_suffix(".png"), dpi=200)
    alone.set_layout_engine("none")  # it is laid out
    # No time of creation: the same run gives the same file.
    no_date = {"CreationDate": None}
    save_figure(alone, path.with_suffix(".pdf"), metadata=no_date)
    wide, narrow = (_svg(_figure(plan, w, mark)) for w in (WIDE, NARROW))
  return Picture(
    alt=plan.alt,
    wide=_uri(wide),
    narrow=_uri(narrow),
    wide_dark=_uri(_in_the_dark(wide)),
    narrow_dark=_uri(_in_the_dark(narrow)),
    width=round(WIDE * 96),
    height=round(plan.heights[0] * 96),
  )


def is_wide(figure: Figure) -> bool:
  """Whether it is for a page, and not for a phone."""
  return bool(figure.get_figwidth() >= WIDE)


def name_lines(axes: Axes, names: Sequence[str]) -> None:
  """Writes classes at the left, a line each."""
  axes.set_yticks(range(len(names)), [short(name) for name in names])
  axes.set_ylim(-0.6, len(names) - 0.4)
  axes.tick_params(axis="y", length=0)


def short(name: str) -> str:
  """A name cut to what fits a picture."""
  if len(name) <= _LONGEST_NAME:
    return name
  return name[: _LONGEST_NAME - 1] + "…"


def _figure(plan: Plan, width: float, title: Sequence[str]) -> Figure:
  height = plan.heights[width < WIDE]
  figure = Figure(figsize=(width, height), layout="constrained")
  plan.draw(figure)
  color = WARN if _SEEDED in title else INK
  figure.axes[0].set_title("\n".join(title), color=color)
  return figure


def _svg(figure: Figure) -> str:
  file = io.StringIO()
  figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
  return re.sub(r"'DejaVu Sans'[^;\"]*", _FONTS, file.getvalue())


def _in_the_dark(svg: str) -> str:
  return re.sub(r"#[0-9a-f]{6}\b", lambda m: _DARK.get(m[0], m[0]), svg)


def _uri(svg: str) -> str:
  return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
