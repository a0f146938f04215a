import copy
import io
import random
import struct
import warnings
import zlib

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.images.preprocess import (
  DecodeError,
  Preprocessing,
  decode_image,
  normalize,
  resize_and_crop,
)
from tests.extract.refusals import refused

pytestmark = pytest.mark.usefixtures("quick_compilation")


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
  buffer = io.BytesIO()
  image.save(buffer, kind, **options)
  return buffer.getvalue()


def gradient(height: int = 24, width: int = 40) -> np.ndarray:
  """Smooth, and no two of its corners, rows or channels alike."""
  y, x = np.mgrid[:height, :width] / (max(height, width) - 1)
  pixels = np.stack([255 * x, 255 * y, 255 * (1 - x) * (1 - y)], axis=-1)
  return pixels.round().astype(np.uint8)


GRAY = gradient()[..., 0]
WIDE = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)


@pytest.mark.parametrize(
  ("mode", "kind", "options", "most"),
  [
    ("RGB", "JPEG", {"subsampling": 0}, 6),
    ("RGB", "JPEG", {"subsampling": 0, "progressive": True}, 6),
    ("CMYK", "JPEG", {"subsampling": 0}, 12),  # and not inverted
    ("L", "JPEG", {}, 3),
    ("RGB", "WEBP", {}, 40),
  ],
)
def test_lossy_formats_are_near(mode, kind, options, most):
  pixels = GRAY if mode == "L" else gradient()
  image = Image.fromarray(pixels).convert(mode)
  decoded = decode_image(encode(image, kind, quality=98, **options))
  expected = pixels[..., None] if mode == "L" else pixels
  error = np.abs(decoded.astype(int) - expected)
  assert error.max() <= most
  assert error.mean() < 4


RGB = Image.fromarray(gradient())
PALETTE = RGB.quantize(64)
COLOURS = np.asarray(PALETTE.convert("RGB"))
ALPHA = Image.merge("RGBA", [*RGB.split(), Image.new("L", RGB.size, 7)])
EXACT = {"lossless": True, "exact": True}


@pytest.mark.parametrize(
  ("image", "kind", "options", "expected"),
  [
    (RGB, "PNG", {}, gradient()),
    (RGB, "BMP", {}, gradient()),
    (RGB, "WEBP", {"lossless": True}, gradient()),
    (PALETTE, "PNG", {}, COLOURS),
    (PALETTE, "GIF", {}, COLOURS),
    # Transparency is dropped and not blended.
    (PALETTE, "PNG", {"transparency": 3}, COLOURS),
    (PALETTE, "PNG", {"transparency": bytes(range(0, 256, 4))}, COLOURS),
    (ALPHA, "PNG", {}, gradient()),
    (ALPHA, "WEBP", EXACT, gradient()),
    (ALPHA.convert("LA"), "PNG", {}, np.asarray(RGB.convert("L"))),
    (Image.fromarray(GRAY), "PNG", {}, GRAY),
    # Scaled, and not clipped.
    (Image.fromarray(WIDE), "PNG", {}, WIDE // 256),
    (Image.fromarray(GRAY > 100), "PNG", {}, np.where(GRAY > 100, 255, 0)),
  ],
)
def test_what_loses_nothing_gives_the_very_pixels(
  image, kind, options, expected
):
  if expected.ndim == 2:
    expected = np.repeat(expected[..., None], 3, axis=-1)
  decoded = decode_image(encode(image, kind, **options))
  np.testing.assert_array_equal(decoded, expected)


# What a camera stores so that the tag's number turns it upright.
STORED = {
  1: lambda a: a,
  2: lambda a: a[:, ::-1],
  3: lambda a: a[::-1, ::-1],
  4: lambda a: a[::-1],
  5: lambda a: a.swapaxes(0, 1),
  6: lambda a: np.rot90(a),
  7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
  8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_is_applied(orientation, kind):
  exif = Image.Exif()
  exif[0x0112] = orientation
  stored = np.ascontiguousarray(STORED[orientation](gradient()))
  options = {
    "JPEG": {"quality": 98, "subsampling": 0},
    "PNG": {},
    "WEBP": {"lossless": True},
  }[kind]
  data = encode(Image.fromarray(stored), kind, exif=exif, **options)
  decoded = decode_image(data)
  assert decoded.shape == gradient().shape
  assert np.abs(decoded.astype(int) - gradient()).max() <= 6


def test_orientation_of_sixteen_bits_and_palettes():
  exif = Image.Exif()
  exif[0x0112] = 6
  values = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000
  data = encode(Image.fromarray(np.rot90(values).copy()), "PNG", exif=exif)
  np.testing.assert_array_equal(decode_image(data)[..., 0], values // 256)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_does_not_cost_the_image(kind):
  data = encode(Image.fromarray(gradient()), kind, exif=b"Exif\0\0garbage!!")
  assert decode_image(data).shape == gradient().shape


NOISE = Image.fromarray(
  np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
@pytest.mark.parametrize("kept", [0.0, 0.02, 0.3, 0.7, 0.9])
def test_truncated_images_are_refused(kind, kept):
  data = encode(NOISE, kind)
  with pytest.raises(DecodeError) as caught:
    decode_image(data[: int(kept * len(data))])
  assert "\n" not in str(caught.value)
  assert " at 0x" not in str(caught.value)


@pytest.mark.parametrize(
  "data", [b"", b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n", bytes(4096)]
)
def test_what_is_no_image_is_refused(data):
  with pytest.raises(DecodeError, match=f"{len(data)} bytes that are not"):
    decode_image(data)


@pytest.mark.parametrize("side", [10_000, 100_000])
def test_decompression_bombs_are_refused(side):
  data = bytearray(encode(Image.new("1", (8, 8)), "PNG"))
  data[16:24] = struct.pack(">II", side, side)
  data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with pytest.raises(DecodeError):
      decode_image(bytes(data))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_damaged_bytes_give_pixels_or_a_decode_error(kind):
  data = encode(NOISE.resize((16, 16)), kind)
  chance = random.Random(0)
  for _ in range(100):
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 8)):
      damaged[chance.randrange(len(data))] = chance.randrange(256)
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      try:
        decoded = decode_image(bytes(damaged))
      except DecodeError:
        continue
    assert decoded.dtype == np.uint8


@pytest.mark.parametrize("shape", [(24, 40), (24, 40, 1), (24, 40, 3)])
def test_arrays_are_taken_as_pixels(shape):
  pixels = np.resize(gradient(), shape)
  expected = np.broadcast_to(pixels.reshape(*shape[:2], -1), (24, 40, 3))
  np.testing.assert_array_equal(decode_image(pixels), expected)


@pytest.mark.parametrize(
  ("shape", "dtype", "said"),
  [
    ((4, 4, 3), np.float32, "dtype float32"),
    ((4, 4, 3), np.uint16, "dtype uint16"),
    ((4, 4, 3), bool, "dtype bool"),
    ((4,), np.uint8, "shape"),
    ((4, 4, 4), np.uint8, "shape"),
    ((4, 4, 2), np.uint8, "shape"),
    ((0, 4, 3), np.uint8, "shape"),
  ],
)
def test_other_arrays_are_refused(shape, dtype, said):
  with refused(said):
    decode_image(np.zeros(shape, dtype))


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
  with refused(r"resize=200.*image_size=224"):
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
