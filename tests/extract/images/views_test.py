"""Views are functions of the image alone, of the laws that they state."""

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from oneshot_dp.extract.cache.format import image_key
from oneshot_dp.extract.images import (
  Preprocessing,
  _inception_box,
  _uniforms,
  random_view,
)

SQUARE = Preprocessing(image_size=16)


def photograph(height: int = 40, width: int = 60) -> np.ndarray:
  """Every pixel has its own colour: red is its column, green its row."""
  y, x = np.mgrid[:height, :width]
  return np.stack([4 * x, 4 * y, np.full_like(x, 7)], axis=-1).astype(np.uint8)


def views(count: int, image: np.ndarray | None = None, min_area: float = 0.08):
  pixels = photograph() if image is None else image
  key = int.from_bytes(image_key(pixels).tobytes(), "little")
  return [
    random_view(pixels, key, view, min_area, SQUARE) for view in range(count)
  ]


def test_the_same_views_every_time_and_half_are_flipped():
  for first, second in zip(views(64), views(64), strict=True):
    assert (first.shape, first.dtype) == ((16, 16, 3), np.uint8)
    np.testing.assert_array_equal(first, second)
  many = views(400)
  assert len({view.tobytes() for view in many}) == 400
  flipped = [float(v[:, 0, 0].mean()) > float(v[:, -1, 0].mean()) for v in many]
  assert 0.42 < np.mean(flipped) < 0.58


def test_the_draws_are_frozen_and_of_two_views_never_overlap():
  """The raw stream of Philox: a change of it would change every cache."""
  digest = hashlib.sha256(_uniforms(2**127 + 3, 5, 41).tobytes()).hexdigest()
  assert digest[:16] == "292e3c9416e15201"
  # Views take turns on the counter: no view is another, shifted.
  assert not np.isin(_uniforms(7, 1, 41), _uniforms(7, 0, 4000)).any()


@settings(max_examples=100, deadline=None)
@given(
  width=st.integers(1, 500),
  height=st.integers(1, 500),
  min_area=st.floats(0.01, 1),
  seed=st.integers(0, 2**64),
)
def test_a_crop_lies_inside_the_image(width, height, min_area, seed):
  attempts = _uniforms(seed, 0, 40).reshape(10, 4)
  left, top, right, bottom = _inception_box(width, height, min_area, attempts)
  assert 0 <= left < right <= width
  assert 0 <= top < bottom <= height


def test_areas_and_aspects_have_their_distributions():
  boxes = [
    _inception_box(300, 300, 0.2, _uniforms(1, v, 40).reshape(10, 4))
    for v in range(3000)
  ]
  left, top, right, bottom = np.array(boxes).T
  share = (right - left) * (bottom - top) / 300**2
  aspect = (right - left) / (bottom - top)
  assert share.min() >= 0.19
  assert share.max() > 0.95
  # Uniform, except that large ones of a slanted aspect do not fit.
  below = np.mean(share < 0.5)
  assert 0.375 < below < 0.46
  assert aspect.min() >= 0.73
  assert aspect.max() <= 1.36
  assert abs(np.median(np.log(aspect))) < 0.02
  # Every place is reached.
  assert left.min() == 0
  assert (right == 300).any()


def test_with_min_area_one_the_whole_square_is_shown():
  image = photograph(32, 32)
  whole = np.asarray(
    Image.fromarray(image).resize((16, 16), Image.Resampling.BICUBIC)
  )
  for view in views(10, image, min_area=1.0):
    assert np.array_equal(view, whole) or np.array_equal(view, whole[:, ::-1])


def test_a_long_image_falls_back_to_its_centre():
  attempts = np.full((10, 4), 0.999)
  assert _inception_box(400, 10, 1.0, attempts) == (193, 0, 206, 10)
  assert _inception_box(10, 400, 1.0, attempts) == (0, 193, 10, 206)
  for view in views(6, photograph(1, 300)):
    assert view.shape == (16, 16, 3)
