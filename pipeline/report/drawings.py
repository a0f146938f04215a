"""The page's pictures, as SVG whose colours are the page's.

A picture is drawn as wide as it is shown, once for a page and once for a phone,
so that its words have the size of the text around it.
"""

import html
import math
from collections.abc import Sequence

from oneshot_dp.pipeline.report.results import NOT_PRIVATE, HeadRow, grouped

_LEFT, _RIGHT, _TOP, _LINE = 46, 14, 12, 20
"""Room around the chart, and of a line of the legend, in pixels."""
_LEAST_RANGE = 0.05


def accuracy(rows: Sequence[HeadRow], width: int, name: str) -> str:
  """Top-1 against epsilon, a line for each head, bars over its draws.

  Without noise a head is a line right across.
  """
  heads = list(dict.fromkeys(row.head for row in rows))
  epsilons = sorted({r.epsilon for r in rows if math.isfinite(r.epsilon)})
  low, high, step = _ticks([row.top1 for row in rows])
  bottom, end = _TOP + width // 2, width - _RIGHT
  span = math.log(epsilons[-1] / epsilons[0])

  def x(epsilon: float) -> float:
    share = math.log(epsilon / epsilons[0]) / span if span else 0.5
    return _LEFT + 18 + share * (end - _LEFT - 36)

  def y(value: float) -> float:  # a noisy count may be beyond its ends
    share = (min(max(value, low), high) - low) / (high - low)
    return bottom - share * (bottom - _TOP)

  parts, last = [], -math.inf
  for i in range(round((high - low) / step) + 1):
    value = low + i * step
    parts.append(_path("grid", f"M{_LEFT} {y(value):.1f}H{end}"))
    words = f"{100 * value:.3g}"
    parts.append(_text(_LEFT - 6, y(value) + 4, words, "tick", "end"))
  for epsilon in epsilons:
    if x(epsilon) - last >= 30:
      last = x(epsilon)
      parts.append(_text(last, bottom + 18, f"{epsilon:g}", "tick"))
  middle = (_TOP + bottom) / 2
  title = _text(11, middle, "top-1 accuracy, %")
  parts.append(f'<g transform="rotate(-90 11 {middle})">{title}</g>')
  parts.append(_text((_LEFT + end) / 2, bottom + 36, "ε of each head"))

  line = bottom + 38
  for place, head in enumerate(heads):
    color, points = f"c{place % 4} line", []
    of_head = grouped([row for row in rows if row.head == head])
    without = of_head.pop((head, math.inf), None)
    for (_, epsilon), draws in of_head.items():
      top1 = [row.top1 for row in draws]
      points.append((x(epsilon), y(_mean(draws))))
      ends = f"{y(min(top1)):.1f}V{y(max(top1)):.1f}"
      parts.append(_path(color, f"M{x(epsilon):.1f} {ends}"))
    if points:
      along = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
      line += _LINE
      parts += [_path(color, f"M{along}"), _mark(place, _LEFT + 10, line - 4)]
      parts += [_mark(place, a, b) for a, b in points]
      parts.append(_text(_LEFT + 28, line, head, anchor="start"))
    if without:
      line += _LINE
      across = f"M{_LEFT} {y(_mean(without)):.1f}H{end}"
      parts.append(_path(f"{color} none", f"{across}M{_LEFT} {line - 4}h20"))
      words = f"{head} without noise ({NOT_PRIVATE})"
      parts.append(_text(_LEFT + 28, line, words, anchor="start"))
  return (
    f'<svg class="chart {name}" viewBox="0 0 {width} {line + 8}" role="img"'
    f' aria-label="{html.escape(_in_words(rows))}">{"".join(parts)}</svg>'
  )


def bar(share: float) -> str:
  """A bar of so much of its line."""
  return (
    '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none"'
    f' aria-hidden="true"><rect width="{100 * share:.1f}" height="10"/></svg>'
  )


def _in_words(rows: Sequence[HeadRow]) -> str:
  """What the picture shows, for those who do not see it."""
  said = (
    f"{head} {100 * _mean(draws):.1f} % "
    + (f"without noise ({NOT_PRIVATE})" if math.isinf(e) else f"at ε {e:g}")
    for (head, e), draws in grouped(rows).items()
  )
  return f"Top-1 accuracy: {', '.join(said)}."


def _mean(draws: Sequence[HeadRow]) -> float:
  return math.fsum(row.top1 for row in draws) / len(draws)


def _ticks(values: Sequence[float]) -> tuple[float, float, float]:
  """Ends of an axis within 0 and 1, and a round step between its lines."""
  low, high = (min(max(v, 0.0), 1.0) for v in (min(values), max(values)))
  missing = max(0.0, _LEAST_RANGE - (high - low)) / 2
  low, high = max(0.0, low - missing), min(1.0, high + missing)
  step = next(
    s for s in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if (high - low) / s <= 6
  )
  first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
  return first * step, last * step, step


def _path(classes: str, d: str) -> str:
  return f'<path class="{classes}" d="{d}"/>'


def _text(
  x: float | int,
  y: float | int,
  words: str,
  classes: str = "",
  anchor: str = "middle",
) -> str:
  return (
    f'<text class="{classes}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">'
    f"{html.escape(words)}</text>"
  )


def _mark(place: int, x: float | int, y: float | int) -> str:
  """A head's own mark: heads are told apart without colours, too."""
  outlines = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
    "m-4 -4h8v8h-8z",
    "m0 -5l5 9h-10z",
    "m0 -5l5 5l-5 5l-5 -5z",
  )
  outline = f"M{x:.1f} {y:.1f}{outlines[place % 4]}"
  return _path(f"c{place % 4} mark", outline)
