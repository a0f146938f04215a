"""Characters as a hand writes them: skeletons with a shaky pen.

Every hand has habits of its own, drawn at random: how far it strays from the
skeleton, and how it divides height and width (the loops of an 8, the bar of a
4).
"""

import numpy as np
from jaxtyping import Float

from oneshot_dp.extract.pretraining.skeletons import SKELETONS, Stroke

# Grid units of the skeletons, which are ten wide.
_STRAY = (0.1, 0.75)
_BEND = 0.22
_POINTS_PER_SEGMENT = 24


def written(
  character: str, rng: np.random.Generator
) -> list[Float[np.ndarray, "p 2"]]:
  """One character in a random hand.

  Args:
    character: a digit or letter.
    rng: draws the hand and the drawing.

  Returns:
    The pen's strokes, dense points (x, y) on each, y down; scale is arbitrary.
  """
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
