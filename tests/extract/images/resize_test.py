"""The square that a backbone is shown, against Pillow's own."""

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.backbones.backbone import apply_function
from oneshot_dp.extract.images import Preprocessing, resize_and_crop
from tests.extract.images.decode_test import gradient
from tests.extract.refusals import refused

FILTERS = ("bilinear", "bicubic")


@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize("side", [8, 64])
def test_straight_resize_is_pillow_s(resample, side):
  config = Preprocessing(image_size=side, resample=resample)
  expected = Image.fromarray(gradient()).resize(
    (side, side), Image.Resampling[resample.upper()]
  )
  np.testing.assert_array_equal(
    resize_and_crop(gradient(), config), np.asarray(expected)
  )
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
  config = Preprocessing(
    image_size=side, resize=side + margin, resample=resample
  )
  scale = (side + margin) / min(height, width)
  full = round(width * scale), round(height * scale)
  left, top = (full[0] - side) // 2, (full[1] - side) // 2
  whole = np.asarray(
    Image.fromarray(image).resize(full, Image.Resampling[resample.upper()])
  )
  expected = whole[top : top + side, left : left + side]
  difference = resize_and_crop(image, config).astype(int) - expected
  assert np.abs(difference).max() <= 2


def test_crop_of_a_very_long_image_takes_no_memory_for_its_length():
  image = np.zeros((1, 200_000, 3), np.uint8)
  config = Preprocessing(image_size=224, resize=256)
  assert resize_and_crop(image, config).shape == (224, 224, 3)


def test_without_the_aspect_both_sides_are_resized_then_cropped():
  config = Preprocessing(image_size=24, resize=32, keep_aspect=False)
  whole = Image.fromarray(gradient()).resize((32, 32), Image.Resampling.BICUBIC)
  expected = np.asarray(whole)[4:28, 4:28].astype(int)
  found = resize_and_crop(gradient(), config)
  assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize(
  ("reference", "asked", "found"),
  [
    ((224, 256), {}, (224, 256)),
    ((224, 256), {"image_size": 112}, (112, 128)),
    ((224, "square"), {"image_size": 384}, (384, "square")),
    ((224, 256), {"resize": "square"}, (224, "square")),
    ((224, "square"), {"image_size": 28, "resize": 32}, (28, 32)),
  ],
)
def test_what_is_asked_for_replaces_what_the_reference_does(
  reference, asked, found
):
  """A crop is kept, in proportion to the image."""
  own = dict(zip(("image_size", "resize"), reference, strict=True))
  changed = Preprocessing(**own).changed(PreprocessConfig(**asked))
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
