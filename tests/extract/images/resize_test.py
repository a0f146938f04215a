"""The square that a backbone is shown, against Pillow's and TensorFlow's."""

import copy

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.images.resize import (
  Preprocessing,
  normalize,
  resize_and_crop,
)
from tests.extract.images.decode_test import gradient
from tests.extract.sources.made import refused


@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("side", [8, 24, 64])
def test_straight_resize_is_pillow_s(resample, side):
  config = Preprocessing(image_size=side, resample=resample)
  expected = Image.fromarray(gradient()).resize(
    (side, side), Image.Resampling[resample.upper()]
  )
  np.testing.assert_array_equal(
    resize_and_crop(gradient(), config), np.asarray(expected)
  )


@pytest.mark.parametrize("resize", ["square", 24])
def test_an_image_of_the_right_size_is_untouched(resize):
  image = gradient(24, 24)
  config = Preprocessing(image_size=24, resize=resize)
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
  resample=st.sampled_from(["bilinear", "bicubic", "lanczos"]),
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


@pytest.mark.parametrize("shape", [(90, 70), (20, 31)])
def test_without_antialiasing_it_samples_as_tensorflow_does(shape):
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
  config = Preprocessing(image_size=24, resample="bilinear", antialias=False)
  found = resize_and_crop(image, config).astype(int)
  expected = jax.image.resize(
    image.astype(np.float32), (24, 24, 3), "linear", antialias=False
  )
  inner = np.s_[2:-2, 2:-2]  # libraries differ at the border
  assert np.abs(found - expected)[inner].max() < 1.01  # Pillow truncates
  antialiased = resize_and_crop(
    image, Preprocessing(image_size=24, resample="bilinear")
  )
  if shape == (90, 70):
    assert np.abs(found - antialiased).mean() > 5


@pytest.mark.parametrize("resample", ["lanczos", "bicubic"])
def test_the_others_always_antialias(resample):
  with refused(f"{resample} always antialiases"):
    Preprocessing().changed(
      PreprocessConfig(resample=resample, antialias=False)
    )


def test_what_is_asked_for_replaces_what_the_reference_does():
  reference = Preprocessing(image_size=224, resize=256, resample="bilinear")
  assert reference.changed(PreprocessConfig()) == reference
  changed = reference.changed(
    PreprocessConfig(resize="square", mean=(0.1, 0.2, 0.3))
  )
  assert changed == Preprocessing(
    resize="square", resample="bilinear", mean=(0.1, 0.2, 0.3)
  )


@pytest.mark.parametrize(
  ("reference", "size", "resize"),
  [("square", None, 256), ("square", 28, 32), (306, None, 306), (256, 28, 32)],
)
def test_crop_is_of_any_backbone(reference, size, resize):
  """The reference's own where it has one, in proportion to the image."""
  asked = PreprocessConfig(resize="crop", image_size=size)
  assert Preprocessing(resize=reference).changed(asked).resize == resize


@pytest.mark.parametrize(
  ("reference", "size", "resize"),
  [(256, 384, 439), (256, 112, 128), ("square", 384, "square")],
)
def test_another_image_size_is_cropped_in_proportion(reference, size, resize):
  preprocessing = Preprocessing(image_size=224, resize=reference)
  changed = preprocessing.changed(PreprocessConfig(image_size=size))
  assert (changed.image_size, changed.resize) == (size, resize)


def test_a_resize_below_the_crop_is_refused():
  with refused("--resize 200 .* size of 224"):
    Preprocessing().changed(PreprocessConfig(resize=200))


@pytest.mark.parametrize(
  "config",
  [
    Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.2, 0.3, 0.4)),
    Preprocessing(),
  ],
)
def test_normalize_is_the_formula_for_every_pixel_value(config):
  pixels = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, 16, 16, 3)
  expected = (pixels / 255 - config.mean) / config.std
  np.testing.assert_allclose(normalize(pixels, config), expected, atol=1e-6)
  # By default as the ViT papers have it.
  if config == Preprocessing():
    np.testing.assert_allclose(expected, pixels / 127.5 - 1, atol=1e-12)


def test_a_std_of_zero_is_refused():
  with refused("std"):
    PreprocessConfig(std=(0.5, 0.0, 0.5))


def test_lists_are_as_good_as_tuples():
  """In a config file nothing checks types; what is compiled is found by it."""
  asked = PreprocessConfig(mean=(0.1, 0.2, 0.3))
  as_list = copy.copy(asked)
  object.__setattr__(as_list, "mean", list(asked.mean or ()))
  found = Preprocessing().changed(as_list)
  assert found == Preprocessing().changed(asked)
  assert hash(found) == hash(Preprocessing().changed(asked))
