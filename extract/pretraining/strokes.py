"""Characters as a hand writes them: skeletons with a shaky pen.

`skeletons.txt` has the ways to write each character, separated by "|". A way is
one or more strokes of a pen, separated by ",". A stroke is a row of points "xy"
on a grid of 10 by 10, x to the right and y down, through which a smooth curve
runs; a point that stands twice is a corner. The box is stretched to fit, so
that only proportions count.

Every hand has habits of its own, drawn at random: how far it strays from the
skeleton, and how it divides height and width (the loops of an 8, the bar of a
4).
"""

import pathlib

import numpy as np
from jaxtyping import Float

Stroke = tuple[tuple[int, int], ...]


def _parse(drawings: str) -> tuple[tuple[Stroke, ...], ...]:
  return tuple(
    tuple(
      tuple((int(point[0]), int(point[1])) for point in stroke.split())
      for stroke in drawing.split(",")
    )
    for drawing in drawings.split("|")
  )


_TABLE = pathlib.Path(__file__).with_name("skeletons.txt")
SKELETONS = {
  line[0]: _parse(line[2:]) for line in _TABLE.read_text("utf-8").splitlines()
}
"""The ways to write every character."""

# Grid units of the skeletons, which are ten wide.
_STRAY = (0.1, 0.75)
_BEND = 0.22
_POINTS_PER_SEGMENT = 24


def written(
  character: str, rng: np.random.Generator
) -> list[Float[np.ndarray, "p 2"]]:
  """One character in a random hand: strokes of dense points (x, y), y down."""
  ways = SKELETONS[character]
  drawing = ways[rng.integers(len(ways))]
  stray, bends = rng.uniform(*_STRAY), rng.normal(0, _BEND, (2, 2))
  return [_bent(_curve(stroke, stray, rng), bends) for stroke in drawing]


def _curve(
  stroke: Stroke, stray: float, rng: np.random.Generator
) -> Float[np.ndarray, "p 2"]:
  """A Catmull-Rom spline through points that stray; corners stay corners."""
  moved: dict[tuple[int, int], np.ndarray] = {}
  for point in stroke:
    # Twice the same point moves as one, else a corner would be a kink. The
    # ends of a closed stroke need not meet.
    moved[point] = np.array(point) + rng.normal(0, stray, 2)
  points = np.array([moved[point] for point in stroke])
  points[0] += rng.normal(0, stray / 2, 2)
  padded = np.concatenate([points[:1], points, points[-1:]])
  before, start, end, after = (
    padded[i : len(padded) - 3 + i, None] for i in range(4)
  )
  t = np.linspace(0, 1, _POINTS_PER_SEGMENT)[:, None]
  spline = start + t / 2 * (
    end
    - before
    + t * (2 * before - 5 * start + 4 * end - after)
    + t**2 * (3 * (start - end) + after - before)
  )
  return spline.reshape(-1, 2)


def _bent(
  points: Float[np.ndarray, "p 2"], bends: Float[np.ndarray, "2 2"]
) -> Float[np.ndarray, "p 2"]:
  """Each axis stretched here and shrunk there, without folding."""
  unit = points / 9
  waves = np.stack([np.sin(np.pi * unit), np.sin(2 * np.pi * unit) / 2])
  return unit + (bends[:, None] * waves).sum(axis=0) / 2
