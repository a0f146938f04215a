"""The square that a backbone is shown: the centre of an image, or a view."""

import hashlib

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.backbones.backbone import apply_function
from oneshot_dp.extract.images import (
  Preprocessing,
  _inception_box,
  _uniforms,
  image_key,
  random_view,
  resize_and_crop,
)
from tests.extract.images.decode_test import gradient
from tests.extract.refusals import refused

FILTERS = ("bilinear", "bicubic")


def by_pillow(image: np.ndarray, size: tuple[int, int], resample: str):
  filter_ = Image.Resampling[resample.upper()]
  return np.asarray(Image.fromarray(image).resize(size, filter_)).astype(int)


@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize("side", [8, 64])
def test_straight_resize_is_pillow_s(resample, side):
  config = Preprocessing(image_size=side, resample=resample)
  found = resize_and_crop(gradient(), config)
  expected = by_pillow(gradient(), (side, side), resample)
  np.testing.assert_array_equal(found, expected)
  image = gradient(side, side)  # of the right size: untouched
  for resize in ("square", side):
    config = Preprocessing(image_size=side, resize=resize)
    assert np.shares_memory(resize_and_crop(image, config), image)


# Pillow takes the edges of a box in float32 and rounds to bytes after each of
# its two passes, so a value midway between two bytes may fall to either side
# in each: up to 2. A crop one pixel off differs by some 80 on such noise.
@settings(max_examples=20, deadline=None)
@example(height=32, width=20, side=32, margin=6, resample="bilinear")
@given(
  height=st.integers(1, 90),
  width=st.integers(1, 90),
  side=st.integers(1, 40),
  margin=st.integers(0, 12),
  resample=st.sampled_from(FILTERS),
)
def test_crop_is_resizing_then_cropping(height, width, side, margin, resample):
  noise = np.random.default_rng(height * 91 + width)
  image = noise.integers(0, 256, (height, width, 3), dtype=np.uint8)
  small = side + margin
  config = Preprocessing(image_size=side, resize=small, resample=resample)
  scale = small / min(height, width)
  full = round(width * scale), round(height * scale)
  left = (full[0] - side) // 2
  top = (full[1] - side) // 2
  whole = by_pillow(image, full, resample)
  expected = whole[top : top + side, left : left + side]
  assert np.abs(resize_and_crop(image, config) - expected).max() <= 2

  # Of a very long one no memory is taken for its length.
  long = np.zeros((1, 200_000, 3), np.uint8)
  assert resize_and_crop(long, config).shape == (side, side, 3)


def test_without_the_aspect_both_sides_are_resized_then_cropped():
  config = Preprocessing(image_size=24, resize=32, keep_aspect=False)
  expected = by_pillow(gradient(), (32, 32), "bicubic")[4:28, 4:28]
  found = resize_and_crop(gradient(), config)
  assert np.abs(found - expected).max() <= 1


def test_what_is_asked_for_replaces_what_the_reference_does():
  """A crop is kept, in proportion to the image."""
  for own, asked, found in (
    (256, PreprocessConfig(), (224, 256)),
    (256, PreprocessConfig(image_size=112), (112, 128)),
    ("square", PreprocessConfig(image_size=384), (384, "square")),
    (256, PreprocessConfig(resize="square"), (224, "square")),
    ("square", PreprocessConfig(image_size=28, resize=32), (28, 32)),
  ):
    changed = Preprocessing(resize=own).changed(asked)
    assert (changed.image_size, changed.resize) == found
  with refused("--resize 200 .* size of 224"):
    Preprocessing().changed(PreprocessConfig(resize=200))


def test_normalize_is_the_formula_for_every_pixel_value():
  pixels = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, 16, 16, 3)
  own = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.2, 0.3, 0.4))
  for config, expected in (
    (own, (pixels / 255 - own.mean) / own.std),
    (Preprocessing(), pixels / 127.5 - 1),  # as the ViT papers have it
  ):
    shown = apply_function(lambda _, x: x, config)
    np.testing.assert_allclose(jax.jit(shown)({}, pixels), expected, atol=1e-6)


def views(count: int, pixels: np.ndarray, min_area: float = 0.08):
  key = int.from_bytes(image_key(pixels).tobytes(), "little")
  own = Preprocessing(image_size=16)
  return [random_view(pixels, key, i, min_area, own) for i in range(count)]


def test_the_same_views_every_time_and_half_are_flipped():
  many = views(400, gradient(40, 60))
  np.testing.assert_array_equal(many[:64], views(64, gradient(40, 60)))
  assert (many[0].shape, many[0].dtype) == ((16, 16, 3), np.uint8)
  assert len({view.tobytes() for view in many}) > 390
  # Red grows to the right.
  flipped = [float(v[:, 0, 0].mean()) > float(v[:, -1, 0].mean()) for v in many]
  assert 0.42 < np.mean(flipped) < 0.58
  square = gradient(32, 32)
  whole = by_pillow(square, (16, 16), "bicubic")
  for view in views(10, square, min_area=1.0):
    assert np.array_equal(view, whole) or np.array_equal(view, whole[:, ::-1])


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
  assert 0.375 < np.mean(share < 0.5) < 0.46
  assert aspect.min() >= 0.73
  assert aspect.max() <= 1.36
  assert abs(np.median(np.log(aspect))) < 0.02
  # Every place is reached.
  assert left.min() == 0
  assert (right == 300).any()


def test_a_long_image_falls_back_to_its_centre():
  attempts = np.full((10, 4), 0.999)
  assert _inception_box(400, 10, 1.0, attempts) == (193, 0, 206, 10)
  assert _inception_box(10, 400, 1.0, attempts) == (0, 193, 10, 206)
  for view in views(6, np.zeros((1, 300, 3), np.uint8)):
    assert view.shape == (16, 16, 3)
