"""Formats, transparency, orientation, damage: what a file's pixels are."""

import contextlib
import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.extract.images import DecodeError, decode_image
from tests.extract.refusals import refused


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


RGB = Image.fromarray(gradient())
PALETTE = RGB.quantize(64)
COLOURS = np.asarray(PALETTE.convert("RGB"))
FINE = {"quality": 98, "subsampling": 0}
ALPHA = Image.merge("RGBA", [*RGB.split(), Image.new("L", RGB.size, 7)])
EXACT = {"lossless": True, "exact": True}


@pytest.mark.parametrize(
  ("image", "kind", "options", "expected"),
  [
    (RGB, "PNG", {}, gradient()),
    (RGB, "BMP", {}, gradient()),
    (RGB, "WEBP", {"lossless": True}, gradient()),
    (RGB, "WEBP", {"quality": 98}, gradient()),
    (RGB, "JPEG", FINE | {"progressive": True}, gradient()),
    (RGB.convert("CMYK"), "JPEG", FINE, gradient()),  # and not inverted
    (Image.fromarray(GRAY), "JPEG", FINE, GRAY),
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
def test_pixels_are_those_of_the_image(image, kind, options, expected):
  """The very ones, but where the format loses some."""
  if expected.ndim == 2:
    expected = np.repeat(expected[..., None], 3, axis=-1)
  decoded = decode_image(encode(image, kind, **options))
  error = np.abs(decoded.astype(int) - expected)
  most = {"JPEG": 12, "WEBP": 40}[kind] if "quality" in options else 0
  assert error.max() <= most
  assert error.mean() <= most / 3


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
  options = {"JPEG": FINE, "WEBP": EXACT}.get(kind, {})
  image = Image.fromarray(stored)
  decoded = decode_image(encode(image, kind, exif=exif, **options))
  assert decoded.shape == gradient().shape
  assert np.abs(decoded.astype(int) - gradient()).max() <= 6
  data = encode(image, kind, exif=b"Exif\0\0garbage!!")
  assert decode_image(data).shape == stored.shape  # it costs no image


NOISE = Image.fromarray(
  np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
)


def bomb() -> bytes:
  data = bytearray(encode(Image.new("1", (8, 8)), "PNG"))
  data[16:24] = struct.pack(">II", 10_000, 10_000)
  data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
  return bytes(data)


NONE = r"\d+ bytes that are not a readable"
OTHERS = ("TIFF", "PPM", "TGA", "ICO", "PCX", "SGI")  # the list is closed
WHOLE = [encode(NOISE, kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF")]


@pytest.mark.parametrize(
  ("data", "said"),
  [
    *((data, NONE) for data in (b"", b"not an image", bytes(4096))),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n", NONE),
    *((encode(NOISE, kind), NONE) for kind in OTHERS),
    (b"\0\0\0\x18ftypheic" + bytes(40), "HEIC, .*: convert"),
    (b"II*\0" + bytes(40), "TIFF: convert"),
    (bomb(), ""),
    *((data[: len(data) // 50], "") for data in WHOLE),  # cut short
    *((data[: 9 * len(data) // 10], "") for data in WHOLE),
  ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_image_is_refused(data, said):
  with refused(f"^(?!.* at 0x).*{said}", DecodeError):
    decode_image(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes_give_pixels_or_a_decode_error(kind):
  data = encode(NOISE.resize((16, 16)), kind)
  chance = random.Random(0)
  for _ in range(100):
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 8)):
      damaged[chance.randrange(len(data))] = chance.randrange(256)
    with contextlib.suppress(DecodeError):
      assert decode_image(bytes(damaged)).dtype == np.uint8


def drawn_in_alpha(mode: str) -> Image.Image:
  """A black picture whose letters are what of it is not transparent."""
  letters = np.zeros((24, 40), np.uint8)
  letters[5:9, 5:30] = 255
  if mode == "P":
    image = Image.fromarray(letters // 255, "L")
    image.putpalette([0, 0, 0] * 2)
    return image
  image = Image.new(mode, (40, 24))
  image.putalpha(Image.fromarray(letters))
  return image


@pytest.mark.parametrize(
  ("mode", "kind", "options"),
  [
    ("RGBA", "PNG", {}),
    ("RGBA", "WEBP", EXACT),
    ("LA", "PNG", {}),
    ("P", "PNG", {"transparency": 0}),
    ("P", "PNG", {"transparency": bytes([0, 255])}),
  ],
)
def test_a_picture_in_its_transparency_alone_is_refused(mode, kind, options):
  """Nothing would be left of it: all its colors are the same."""
  data = encode(drawn_in_alpha(mode), kind, **options)

  with refused("in its transparency, which is not read: paint", DecodeError):
    decode_image(data)


@pytest.mark.parametrize("alpha", [0, 255])
def test_a_plain_picture_is_read_whatever_its_alpha_is(alpha):
  image = Image.new("RGBA", (40, 24), (9, 9, 9, alpha))

  assert (decode_image(encode(image, "PNG")) == 9).all()


def test_arrays_are_taken_as_pixels():
  for shape in (24, 40), (24, 40, 1), (24, 40, 3):
    pixels = np.resize(gradient(), shape)
    expected = np.broadcast_to(pixels.reshape(24, 40, -1), (24, 40, 3))
    np.testing.assert_array_equal(decode_image(pixels), expected)
  with refused("dtype float32"):
    decode_image(np.zeros((4, 4, 3), np.float32))
  for shape in (4,), (4, 4, 2), (0, 4, 3):
    with refused("shape"):
      decode_image(np.zeros(shape, np.uint8))
