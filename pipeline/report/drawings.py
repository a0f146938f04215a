"""The page's pictures, as SVG whose colours are the page's.

A picture is drawn as wide as it is shown, once for a page and once for a phone,
so that its words have the size of the text around it.
"""

import html
import math
from collections.abc import Iterator, Sequence

from oneshot_dp.pipeline.results import NOT_PRIVATE, HeadRow, grouped

_LEFT, _RIGHT, _TOP, _LINE = 46, 14, 12, 20
"""Room around the chart, and of a line of the legend, in pixels."""
_LEAST_RANGE = 0.05
_MARKS = ("circle", "square", "triangle", "diamond")


def accuracy(rows: Sequence[HeadRow], width: int, name: str) -> str:
  """Top-1 against epsilon, a line for each head, bars over its draws.

  Without noise a head is a line right across.
  """
  heads = list(dict.fromkeys(row.head for row in rows))
  epsilons = sorted({r.epsilon for r in rows if math.isfinite(r.epsilon)})
  entries = [*_entries(rows, heads)]
  height = _TOP + round(0.5 * width) + 44 + _LINE * len(entries)
  bottom = _TOP + round(0.5 * width)
  values = [row.top1 for row in rows]
  low, high, step = _ticks(min(values), max(values))
  span = math.log(epsilons[-1] / epsilons[0]) or 1.0

  def x(epsilon: float) -> float:
    share = math.log(epsilon / epsilons[0]) / span if epsilons[1:] else 0.5
    return _LEFT + 18 + share * (width - _LEFT - _RIGHT - 36)

  def y(value: float) -> float:
    return bottom - (value - low) / (high - low) * (bottom - _TOP)

  parts = []
  for i in range(round((high - low) / step) + 1):
    value = low + i * step
    parts.append(
      f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{width - _RIGHT}"/>'
      f'<text class="tick" text-anchor="end" x="{_LEFT - 6}"'
      f' y="{y(value) + 4:.1f}">{100 * value:.3g}</text>'
    )
  last = -math.inf
  for epsilon in epsilons:
    if x(epsilon) - last >= 30:
      last = x(epsilon)
      parts.append(
        f'<text class="tick" text-anchor="middle" x="{last:.1f}"'
        f' y="{bottom + 18}">{epsilon:g}</text>'
      )
  parts.append(
    f'<text text-anchor="middle" x="{(width + _LEFT) / 2:.0f}"'
    f' y="{bottom + 36}">ε of each head</text>'
    f'<text text-anchor="middle" transform="rotate(-90 11'
    f' {(_TOP + bottom) / 2:.0f})" x="11" y="{(_TOP + bottom) / 2:.0f}">top-1'
    " accuracy, %</text>"
  )
  for place, head in enumerate(heads):
    points = []
    for (_, epsilon), draws in grouped(
      [r for r in rows if r.head == head]
    ).items():
      top1 = [row.top1 for row in draws]
      mean = sum(top1) / len(top1)
      if math.isinf(epsilon):
        parts.append(
          f'<path class="c{place % 4} line none"'
          f' d="M{_LEFT} {y(mean):.1f}H{width - _RIGHT}"/>'
        )
        continue
      points.append((x(epsilon), y(mean)))
      if len(top1) > 1:
        parts.append(
          f'<path class="c{place % 4} line" d="M{x(epsilon):.1f}'
          f' {y(min(top1)):.1f}V{y(max(top1)):.1f}"/>'
        )
    drawn = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
    if points:
      parts.append(f'<path class="c{place % 4} line" d="M{drawn}"/>')
    parts += [_mark(place, a, b) for a, b in points]
  for i, (place, words, is_private) in enumerate(entries):
    line = bottom + 58 + _LINE * i
    parts.append(
      _mark(place, _LEFT + 10, line - 4)
      if is_private
      else f'<path class="c{place % 4} line none" d="M{_LEFT} {line - 4}h20"/>'
    )
    parts.append(
      f'<text x="{_LEFT + 28}" y="{line}">{html.escape(words)}</text>'
    )
  return (
    f'<svg class="chart {name}" viewBox="0 0 {width} {height}" role="img"'
    f' aria-label="{html.escape(in_words(rows))}">{"".join(parts)}</svg>'
  )


def in_words(rows: Sequence[HeadRow]) -> str:
  """What the picture shows, for those who do not see it."""
  said = []
  for (head, epsilon), draws in grouped(rows).items():
    mean = 100 * sum(row.top1 for row in draws) / len(draws)
    at = f"at ε {epsilon:g}"
    if math.isinf(epsilon):
      at = f"without noise ({NOT_PRIVATE})"
    said.append(f"{head} {mean:.1f} % {at}")
  return f"Top-1 accuracy: {', '.join(said)}."


def bar(share: float) -> str:
  """A bar of so much of its line."""
  return (
    '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none"'
    f' aria-hidden="true"><rect width="{100 * share:.1f}" height="10"/></svg>'
  )


def _entries(
  rows: Sequence[HeadRow], heads: Sequence[str]
) -> Iterator[tuple[int, str, bool]]:
  for place, head in enumerate(heads):
    found = {math.isfinite(row.epsilon) for row in rows if row.head == head}
    if True in found:
      yield place, head, True
    if False in found:
      yield place, f"{head} without noise ({NOT_PRIVATE})", False


def _ticks(low: float, high: float) -> tuple[float, float, float]:
  """Ends of an axis within 0 and 1, and a round step between its lines."""
  missing = max(0.0, _LEAST_RANGE - (high - low)) / 2
  low, high = max(0.0, low - missing), min(1.0, high + missing)
  step = next(
    s for s in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if (high - low) / s <= 6
  )
  first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
  return first * step, last * step, step


def _mark(place: int, x: float, y: float) -> str:
  """A head's own mark: heads are told apart without colours, too."""
  shape = {
    "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>',
    "square": f'<path d="M{x - 4:.1f} {y - 4:.1f}h8v8h-8z"/>',
    "triangle": f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z"/>',
    "diamond": f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"/>',
  }[_MARKS[place % 4]]
  return f'<g class="c{place % 4} mark">{shape}</g>'
