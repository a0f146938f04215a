"""From distance maps to images of glyphs, no two alike, on the device.

A glyph is slanted, turned, stretched and bent; its stroke is made wider or
thinner; it is cut out by its box, as data sets of characters are, and fitted
into the image with some margin; it is reduced to as few as 8 pixels a side and
enlarged again as an extraction job would; then contrast, polarity and noise.
Four in nine of the images pass through 8 x 8 pixels, which is public knowledge
about the digits of the demo; three quarters are light on dark.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int8

from oneshot_dp.extract.backbones.vit.position_embedding import bicubic_weights
from oneshot_dp.extract.pretraining.glyphs import SIDE, STEPS_PER_PIXEL

IMAGE_SIZE = 32
"""Side of the images that are made, pixels."""
RESOLUTIONS = (8, 8, 8, 8, 10, 12, 16, 24, 32)
"""One of these is drawn for every image."""

# Widths are in pixels of the map, angles in radians.
_PEN_RADIUS = (1.2, 4.0)
_WIDENING = (-0.8, 1.8)
_TURN, _SLANT, _STRETCH, _BEND = 0.12, 0.25, 0.2, 1.2
_BEND_GRID = 4
_MARGIN, _OFF_CENTRE, _MIN_WIDTH = (-0.04, 0.12), 0.3, 3
_EDGE = (0.25, 0.8)
_GAMMA, _MAX_NOISE = 0.3, 0.35
_DARK, _LIGHT, _DARK_ON_LIGHT = (0.0, 0.15), (0.7, 1.0), 0.25


class Draws(NamedTuple):
  """Every random number behind some images.

  Drawn by NumPy, because XLA takes seconds to compile what JAX draws with.
  """

  uniform: Float32[Any, "*b 9"]
  normal: Float32[Any, "*b 6"]
  knots: Float32[Any, "*b 2 4 4"]
  noise: Float32[Any, "*b 32 32"]


def draw(rng: np.random.Generator, number: int) -> Draws:
  """The random numbers behind `number` images."""
  return Draws(
    rng.random((number, 9), np.float32),
    rng.standard_normal((number, 6), np.float32),
    rng.standard_normal((number, 2, _BEND_GRID, _BEND_GRID), np.float32),
    rng.standard_normal((number, IMAGE_SIZE, IMAGE_SIZE), np.float32),
  )


def augment(
  draws: Draws, maps: Int8[Any, "b 48 48"], is_written: Bool[Any, " b"]
) -> Float32[Array, "b 32 32"]:
  """An image in [0, 1] of every glyph; see `Glyphs` for the maps."""
  return jax.vmap(_image)(draws, maps, is_written)


def _image(
  draws: Draws, steps: Int8[Array, "48 48"], is_written: Bool[Array, ""]
) -> Float32[Array, "32 32"]:
  width, edge, margin, along, *shades = draws.uniform
  turn, slant, stretch, proportion, across, gamma = draws.normal
  distance = steps.astype(jnp.float32) / STEPS_PER_PIXEL
  # A thin stroke keeps half of its width.
  wider = jnp.maximum(_between(_WIDENING, width), -distance.max() / 2)
  pen = _between(_PEN_RADIUS, width)
  matrix = _to_source(_TURN * turn, _SLANT * slant, jnp.exp(_STRETCH * stretch))
  field = _warped(distance, matrix, _BEND * draws.knots)
  field, scale = _fitted(
    field + jnp.where(is_written, pen, wider),
    room=IMAGE_SIZE * (1 - 2 * _between(_MARGIN, margin)),
    proportion=jnp.exp(_STRETCH * proportion),
    off_centre=jnp.stack([along - 0.5, jnp.clip(_OFF_CENTRE * across, -1, 1)]),
  )
  ink = jax.nn.sigmoid(field * scale / _between(_EDGE, edge))
  return _shaded(ink ** jnp.exp(_GAMMA * gamma), shades, draws.noise)


def _between(low_high: tuple[float, float], uniform: Array) -> Array:
  low, high = low_high
  return low + (high - low) * uniform


def _to_source(
  turn: Array, slant: Array, stretch: Array
) -> Float[Array, "2 2"]:
  """(row, column) of an image to that of its map, around their centres."""
  cos, sin, root = jnp.cos(turn), jnp.sin(turn), jnp.sqrt(stretch)
  rotation = jnp.array([[cos, -sin], [sin, cos]])
  return rotation @ jnp.array([[root, 0], [slant * root, 1 / root]])


def _warped(
  distance: Float[Array, "48 48"],
  to_source: Float[Array, "2 2"],
  knots: Float[Array, "2 4 4"],
) -> Float[Array, "48 48"]:
  centred = jnp.arange(SIDE) + 0.5 - SIDE / 2
  grid = jnp.stack(jnp.meshgrid(centred, centred, indexing="ij"))
  smooth = _enlargement(_BEND_GRID, SIDE)
  source = jnp.einsum("ij,jyx->iyx", to_source, grid)
  source = source + jnp.einsum("yk,ikl,xl->iyx", smooth, knots, smooth)
  return jax.scipy.ndimage.map_coordinates(
    distance, list(source + SIDE / 2 - 0.5), order=1, mode="nearest"
  )


def _fitted(
  field: Float[Array, "48 48"],
  *,
  room: Array,
  proportion: Array,
  off_centre: Float[Array, "2"],
) -> tuple[Float[Array, "32 32"], Float[Array, ""]]:
  """The glyph's box cut out and laid into the image; and how it was scaled."""
  low, high = _box(field)
  size = high - low
  scale = room / size[0]
  width = jnp.clip(size[1] * scale * proportion, _MIN_WIDTH, room)
  extent = jnp.stack([room, width])
  start = (IMAGE_SIZE - extent) / 2 * (1 + off_centre)
  pixels = jnp.arange(IMAGE_SIZE) + 0.5
  source = low[:, None] + (pixels - start[:, None]) * (size / extent)[:, None]
  rows, columns = (_interpolation(at) for at in source)
  return rows @ field @ columns.T, scale


def _box(
  field: Float[Array, "48 48"],
) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
  ink = field > 0
  sides = []
  for axis in (1, 0):
    some = ink.any(axis=axis)
    sides.append((some.argmax(), SIDE - some[::-1].argmax()))
  low, high = jnp.array(sides, jnp.float32).T
  return low, jnp.maximum(high, low + 1)


def _interpolation(at: Float[Array, " m"]) -> Float[Array, "m 48"]:
  """Weights that read a row of 48 pixels at positions, linearly."""
  at = jnp.clip(at - 0.5, 0, SIDE - 1)
  return jnp.maximum(0, 1 - jnp.abs(at[:, None] - jnp.arange(SIDE)))


def _shaded(
  ink: Float[Array, "32 32"],
  uniform: Sequence[Array],
  noise: Float[Array, "32 32"],
) -> Float32[Array, "32 32"]:
  level, which, low, high, polarity = uniform
  # (Squared: little noise as a rule.)
  ink = ink + _MAX_NOISE * jnp.square(level) * noise
  index = (which * len(RESOLUTIONS)).astype(jnp.int32)
  reduce = jnp.asarray(_REDUCTIONS)[index]
  image = jnp.clip(reduce @ ink @ reduce.T, 0, 1)
  dark, light = _between(_DARK, low), _between(_LIGHT, high)
  image = dark + (light - dark) * image
  return jnp.where(polarity < _DARK_ON_LIGHT, 1 - image, image)


def _means(
  source: int, target: int
) -> Float32[np.ndarray, "{target} {source}"]:
  """The mean of each of `target` equal parts of a row of pixels."""
  edges = np.arange(target + 1) * source / target
  pixel = np.arange(source)
  overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(
    edges[:-1, None], pixel
  )
  return (np.maximum(overlap, 0) * target / source).astype(np.float32)


def _enlargement(
  source: int, target: int
) -> Float32[np.ndarray, "{target} {source}"]:
  """Pillow's bicubic filter along a row of pixels."""
  return bicubic_weights(source, target, antialias=True).astype(np.float32)


_REDUCTIONS = np.stack(
  [
    _enlargement(side, IMAGE_SIZE) @ _means(IMAGE_SIZE, side)
    for side in RESOLUTIONS
  ]
)
