"""Glyphs of every origin in one form: maps of the distance to the ink's edge.

A distance, positive inside, can be warped like a picture, and any stroke width
can still be chosen afterwards by adding to it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.ndimage
import scipy.spatial
from jaxtyping import Bool, Float, Int8, Int32
from tqdm import tqdm

from oneshot_dp.extract.pretraining.characters import (
  CHARACTERS,
  CLASSES,
  class_of,
)
from oneshot_dp.extract.pretraining.fonts import Typeface, glyph
from oneshot_dp.extract.pretraining.strokes import written

SIDE = 48
"""Side of a map, pixels."""
BOX = 32
"""The longer side of a glyph's box, in the middle of its map, pixels."""
STEPS_PER_PIXEL = 8
"""A distance in a map, to the pixel."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Glyphs:
  """Many glyphs.

  `maps` are distances to the edge in 1/8 pixels, positive in the ink; of glyphs
  that `is_written`, minus the distance to the path of the pen.
  """

  maps: Int8[np.ndarray, "n 48 48"]
  labels: Int32[np.ndarray, "n"]
  is_written: Bool[np.ndarray, "n"]

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, which: slice | np.ndarray) -> "Glyphs":
    """Some of them: a slice, their numbers, or a mask."""
    return Glyphs(**{name: v[which] for name, v in vars(self).items()})

  def __add__(self, other: "Glyphs") -> "Glyphs":
    """Both, one after the other."""
    return Glyphs(
      **{
        name: np.concatenate([value, getattr(other, name)])
        for name, value in vars(self).items()
      }
    )


def printed_glyphs(typefaces: Sequence[Typeface]) -> Glyphs:
  """Every character of every typeface."""
  pairs = [(face, c) for face in typefaces for c in CHARACTERS]
  bar = tqdm(pairs, desc="printing", unit="glyph", disable=None)
  maps = [_printed_map(glyph(face, c)) for face, c in bar]
  return _glyphs(maps, [c for _, c in pairs], is_written=False)


def written_glyphs(per_character: int, seed: int) -> Glyphs:
  """Every character, one after the other, by as many random hands."""
  rng = np.random.default_rng(seed)
  drawn = [c for c in CHARACTERS for _ in range(per_character)]
  bar = tqdm(drawn, desc="writing", unit="glyph", disable=None)
  maps = [_written_map(np.concatenate(written(c, rng))) for c in bar]
  return _glyphs(maps, drawn, is_written=True)


def _glyphs(
  maps: list[Int8[np.ndarray, "48 48"]],
  characters: Sequence[str],
  *,
  is_written: bool,
) -> Glyphs:
  number = {name: i for i, name in enumerate(CLASSES)}
  labels = [number[class_of(character)] for character in characters]
  return Glyphs(
    maps=np.stack(maps),
    labels=np.array(labels, np.int32),
    is_written=np.full(len(maps), is_written),
  )


def _printed_map(ink: Bool[np.ndarray, "h w"]) -> Int8[np.ndarray, "48 48"]:
  """Measured at the resolution of the ink, then read at every map's pixel."""
  per_pixel = max(ink.shape) / BOX
  margin = round(SIDE / 2 * per_pixel)
  padded = np.pad(ink, margin)
  inside, outside = (
    np.asarray(scipy.ndimage.distance_transform_edt(part))
    for part in (padded, ~padded)
  )
  steps = (np.arange(SIDE) + 0.5 - SIDE / 2) * per_pixel
  rows, columns = (length / 2 - 0.5 + steps for length in padded.shape)
  read = scipy.ndimage.map_coordinates(
    inside - outside, np.meshgrid(rows, columns, indexing="ij"), order=1
  )
  return _stored(read / per_pixel)


def _written_map(points: Float[np.ndarray, "p 2"]) -> Int8[np.ndarray, "48 48"]:
  low, high = points.min(axis=0), points.max(axis=0)
  points = (points - (low + high) / 2) * (BOX / max(high - low)) + SIDE / 2
  centres = np.arange(SIDE) + 0.5
  pixels = np.stack(np.meshgrid(centres, centres), axis=-1)  # x, y
  distance, _ = scipy.spatial.KDTree(points).query(pixels)
  return _stored(-distance)


def _stored(distance: Float[np.ndarray, "48 48"]) -> Int8[np.ndarray, "48 48"]:
  steps = np.rint(distance * STEPS_PER_PIXEL)
  return np.clip(steps, -127, 127).astype(np.int8)
