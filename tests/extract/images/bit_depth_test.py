"""PNG files of 16 bits per sample, of which a camera may use fewer."""

import struct
import zlib

import numpy as np
import pytest

from oneshot_dp.extract.images import DecodeError, decode_image
from tests.extract.refusals import refused

COLOR_TYPES = {"gray": 0, "RGB": 2, "gray and alpha": 4, "RGB and alpha": 6}
CHANNELS = {"gray": 1, "RGB": 3, "gray and alpha": 2, "RGB and alpha": 4}


def _chunk(kind: bytes, data: bytes) -> bytes:
  checksum = struct.pack(">I", zlib.crc32(kind + data))
  return struct.pack(">I", len(data)) + kind + data + checksum


def encode_png16(samples: np.ndarray, color_type: int) -> bytes:
  """A PNG of uint16 samples [h, w, channels], which Pillow does not write."""
  height, width, _ = samples.shape
  header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
  rows = b""
  for row in samples:
    rows += b"\0" + row.astype(">u2").tobytes()
  return (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", header)
    + _chunk(b"IDAT", zlib.compress(rows))
    + _chunk(b"IEND", b"")
  )


def samples_of(bits: int, kind: str = "gray") -> np.ndarray:
  """Random samples [h, w, channels], of which one is the largest there is."""
  rng = np.random.default_rng(bits)
  shape = (20, 30, CHANNELS[kind])
  samples = rng.integers(0, 2**bits, shape, dtype=np.uint16)
  samples[3, 4] = 2**bits - 1
  if "alpha" in kind:
    samples[..., -1] = 65535
  return samples


def as_rgb(samples: np.ndarray, kind: str, bits: int) -> np.ndarray:
  """The highest eight of so many bits, as uint8 [h, w, 3]."""
  if "alpha" in kind:
    samples = samples[..., :-1]
  high = (samples >> (bits - 8)).astype(np.uint8)
  return np.broadcast_to(high, (*samples.shape[:2], 3))


@pytest.mark.parametrize("kind", COLOR_TYPES)
@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_a_16_bit_file_that_may_hold_fewer_bits_is_refused(bits, kind):
  data = encode_png16(samples_of(bits, kind), COLOR_TYPES[kind])
  with refused("give --bit-depth 8, 10, 12 or 14 if", DecodeError):
    decode_image(data)


@pytest.mark.parametrize("kind", COLOR_TYPES)
@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_the_highest_eight_of_the_bits_that_are_used_are_kept(bits, kind):
  samples = samples_of(bits, kind)
  decoded = decode_image(encode_png16(samples, COLOR_TYPES[kind]), bits)
  np.testing.assert_array_equal(decoded, as_rgb(samples, kind, bits))


@pytest.mark.parametrize("kind", COLOR_TYPES)
def test_a_file_that_uses_16_bits_needs_no_flag(kind):
  samples = samples_of(16, kind)
  decoded = decode_image(encode_png16(samples, COLOR_TYPES[kind]))
  np.testing.assert_array_equal(decoded, as_rgb(samples, kind, 16))


def test_a_dark_file_of_16_bits_is_read_where_somebody_says_so():
  data = encode_png16(samples_of(12), 0)
  expected = as_rgb(samples_of(12), "gray", 16)
  np.testing.assert_array_equal(decode_image(data, 16), expected)


def test_a_black_file_is_black_at_every_depth():
  data = encode_png16(np.zeros((4, 5, 1), np.uint16), 0)
  assert not decode_image(data).any()


@pytest.mark.parametrize("kind", COLOR_TYPES)
def test_a_sample_above_the_depth_that_is_said_is_refused(kind):
  data = encode_png16(samples_of(14, kind), COLOR_TYPES[kind])
  with refused("samples of more than --bit-depth 12 bits", DecodeError):
    decode_image(data, 12)


def with_a_white_frame(samples: np.ndarray) -> np.ndarray:
  """White of 16 bits in a few pixels, as a dead pixel or a drawn letter is."""
  framed = samples.copy()
  framed[0, :15] = 65535
  return framed


def test_a_12_bit_file_with_some_white_of_16_bits_is_refused():
  data = encode_png16(with_a_white_frame(samples_of(12)), 0)
  with refused("hardly any sample is above 2", DecodeError):
    decode_image(data)


def test_some_white_of_16_bits_is_white_at_the_depth_that_is_said():
  samples = with_a_white_frame(samples_of(12))
  decoded = decode_image(encode_png16(samples, 0), 12)
  expected = as_rgb(samples_of(12), "gray", 12).copy()
  expected[0, :15] = 255
  np.testing.assert_array_equal(decoded, expected)


def test_a_depth_says_nothing_about_files_of_8_bits():
  pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
  np.testing.assert_array_equal(decode_image(pixels, 12), pixels)
