"""Turns the bytes of an image file into the square that a backbone takes.

All of it runs on the host, on uint8: the backbone normalizes on the device, so
that only a quarter of the bytes travel.

Random views of an image may be embedded instead of its center. The one step of
`linear_dp` is linear in an example's embedding as long as its gradient is
clipped as one, so averaging the gradient over augmented views of an example
(augmentation multiplicity) is averaging its embedding over them: once, when the
cache is made.

Source: crop and flip: Szegedy et al., "Going Deeper with Convolutions" (CVPR
2015), section 6; augmentation multiplicity: De et al., "Unlocking
High-Accuracy Differentially Private Image Classification through Scale"
(2022), section 3.4.
"""

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from jaxtyping import UInt8, UInt64
from PIL import Image

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import MAX_PIXELS, PreprocessConfig
from oneshot_dp.extract.image_files import (
  MAX_SIDE,
  DecodedImage,
  decode_file,
  peak_bytes,
)
from oneshot_dp.extract.image_files import (
  DecodeError as DecodeError,
)
from oneshot_dp.extract.threads import MemoryBudget

# The crop of Inception as torchvision has it: ten attempts, each with an area,
# an aspect ratio between 3/4 and 4/3, and two coordinates of the corner.
_ATTEMPTS = 10
_MAX_ASPECT = 4 / 3
_DRAWS_PER_ATTEMPT = 4
# All threads together: with the program and a backbone, less than 1.5 GB.
_memory = MemoryBudget(MAX_PIXELS * 16)
_RESIZED_AT_ONCE = 1 << 24  # pixels
_ROWS_AT_ONCE = 1024


@contextlib.contextmanager
def decoded(
  image: bytes | np.ndarray,
  bit_depth: int | None = None,
  max_pixels: int = MAX_PIXELS,
) -> Iterator[DecodedImage]:
  """Decodes an image; its memory counts as taken until the body ends.

  What an image unfolds to is known from its header. Threads whose images would
  take more than 1 GiB together wait for each other.

  Args:
    image: see `decode_image`.
    bit_depth: see `decode_image`.
    max_pixels: see `decode_image`.

  Yields:
    The image, RGB and upright. Pixels that came as an array take no part in
    the account of memory.

  Raises:
    DecodeError: see `decode_image`.
  """
  if isinstance(image, np.ndarray):
    yield DecodedImage(_rgb_of_pixels(image))
    return
  with _memory.take(peak_bytes(image, max_pixels)):
    yield decode_file(image, bit_depth)


def decode_image(
  image: bytes | np.ndarray,
  bit_depth: int | None = None,
  max_pixels: int = MAX_PIXELS,
) -> UInt8[np.ndarray, "h w 3"]:
  """Decodes an image to RGB pixels; arrays of pixels are converted.

  The result is that of torchvision's and TFDS's loaders where they agree:

  * EXIF orientation is applied.
  * Transparency is dropped, not blended: a transparent pixel keeps the color
    that is stored under it.
  * 16 bits per channel become 8 by keeping the high byte. Where only the low
    8, 10, 12 or 14 of them are used, `bit_depth` has to say so.
  * Palette, grayscale, 1-bit and CMYK images are converted to RGB; color
    profiles are not applied. Of an animation, the first frame is read.

  Args:
    image: an encoded JPEG, PNG, WebP, BMP, GIF or AVIF, or HEIC where
      pillow-heif is installed; or uint8 pixels [h, w, 3] (returned as they are,
      uncopied), [h, w, 1] or [h, w].
    bit_depth: how many bits of 16-bit samples are used: 8, 10, 12, 14 or
      16.
    max_pixels: images that have more are refused by their header.

  Returns:
    uint8 pixels [h, w, 3].

  Raises:
    DecodeError: the bytes are of another format, damaged, cut short, claim too
      many pixels, or hold 16-bit samples of another depth.
    InputError: an array of another dtype or shape: a fault of the data set, not
      of one image.
  """
  with decoded(image, bit_depth, max_pixels) as result:
    return result.pixels


def _rgb_of_pixels(pixels: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
  shape = pixels.shape
  if len(shape) == 2:
    shape = (*shape, 1)
  is_image = len(shape) == 3 and shape[2] in (1, 3) and 0 not in shape
  is_image = is_image and max(shape) <= MAX_SIDE
  if pixels.dtype != np.uint8 or not is_image:
    raise InputError(
      f"image of dtype {pixels.dtype}, shape {list(pixels.shape)}: pixels must"
      " be uint8 [h, w, 3], [h, w, 1] or [h, w], not empty and of at most"
      f" {MAX_SIDE:,} pixels per side."
    )
  pixels = pixels.reshape(shape)
  if shape[2] == 3:
    return pixels
  return np.repeat(pixels, 3, axis=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
  """How an image of any size becomes the square that a backbone takes.

  Attributes:
    image_size: side of the square, pixels.
    resize: a number: the shorter side is resized to it, then the central
      square is cropped. "square": both sides are resized to `image_size`.
    keep_aspect: if not, both sides are resized to a numeric `resize`.
    resample: the filter, widened when shrinking.
    mean, std: per channel, in units of [0, 1]; (x/255 - mean)/std. The
      defaults are the ViT papers' x/127.5 - 1.
    bit_depth: how many bits of 16-bit samples are used; None: all of them.
  """

  image_size: int = 224
  resize: int | Literal["square"] = "square"
  keep_aspect: bool = True
  resample: Literal["bilinear", "bicubic"] = "bicubic"
  mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
  std: tuple[float, float, float] = (0.5, 0.5, 0.5)
  bit_depth: int | None = None

  def changed(self, config: PreprocessConfig) -> "Preprocessing":
    """This preprocessing with the changes that `config` asks for.

    A crop stays in proportion to the image, unless `config` sets it.
    InputError: the image would be smaller than the square.
    """
    side = config.image_size or self.image_size
    # Another size is another resolution of the same view: what the crop cuts
    # off stays the same share of the image.
    resize = config.resize
    if resize is None:
      resize = self.resize
      if isinstance(resize, int):
        resize = round(resize * side / self.image_size)
    if isinstance(resize, int) and resize < side:
      raise InputError(
        f"--resize {resize} is smaller than the image size of {side}, so no"
        " such square could be cropped."
      )
    return dataclasses.replace(
      self, image_size=side, resize=resize, bit_depth=config.bit_depth
    )


def resize_and_crop(
  image: UInt8[np.ndarray, "h w 3"], config: Preprocessing
) -> UInt8[np.ndarray, "s s 3"]:
  """Resizes an image to the square that a backbone takes.

  Where `resize` is a number the result equals resizing the whole image so that
  its shorter side is `resize`, then cropping the central square. Only the
  pixels of that square are computed, so that a very long image cannot take
  memory in proportion to its length.

  Args:
    image: RGB pixels, uint8 [h, w, 3].
    config: the size of the square, and how the image becomes it.

  Returns:
    uint8 [s, s, 3]; the image itself, uncopied, where it is that square.
  """
  side = config.image_size
  height, width = image.shape[:2]
  if config.resize == "square":
    if (height, width) == (side, side):
      return image
    return _resized(image, config)
  # The size that the whole image would have, and where the crop lies in it.
  full_width = full_height = config.resize
  if config.keep_aspect:
    scale = config.resize / min(height, width)
    full_width = round(width * scale)
    full_height = round(height * scale)
  left = (full_width - side) // 2
  top = (full_height - side) // 2
  if (full_width, full_height) == (width, height):
    return image[top : top + side, left : left + side]
  # The same crop in pixels of the image.
  box = (
    left * width / full_width,
    top * height / full_height,
    (left + side) * width / full_width,
    (top + side) * height / full_height,
  )
  return _resized(image, config, box)


def _resized(
  image: UInt8[np.ndarray, "h w 3"],
  config: Preprocessing,
  box: tuple[float, float, float, float] | None = None,
) -> UInt8[np.ndarray, "s s 3"]:
  """The square, of all or a rectangle (left, top, right, bottom; pixels).

  Pillow resizes rows first, rounds, and then resizes columns. A large image is
  given to it some rows at a time, with the same result, as it would make a copy
  of four bytes per pixel.
  """
  side = config.image_size
  resample = Image.Resampling[config.resample.upper()]
  height, width = image.shape[:2]
  if height * width <= _RESIZED_AT_ONCE:
    return np.asarray(
      Image.fromarray(image).resize((side, side), resample, box)
    )
  left, top, right, bottom = box or (0, 0, width, height)
  narrow: list[np.ndarray] = []
  for start in range(0, height, _ROWS_AT_ONCE):
    rows = Image.fromarray(image[start : start + _ROWS_AT_ONCE])
    edges = (left, 0, right, rows.height)
    narrow.append(np.asarray(rows.resize((side, rows.height), resample, edges)))
  columns = Image.fromarray(np.concatenate(narrow))
  edges = (0, top, side, bottom)
  return np.asarray(columns.resize((side, side), resample, edges))


def image_key(image: bytes | np.ndarray) -> UInt64[np.ndarray, "2"]:
  """128 bits that identify an image; its random views are seeded by them, too.

  *Formal guarantee*: a function of the image alone.

  Args:
    image: the encoded file, or pixels [h, w, channels] uint8.

  Returns:
    Two words of 64 bits.
  """
  data = image if isinstance(image, bytes) else image.tobytes()
  digest = hashlib.blake2b(data, digest_size=16).digest()
  return np.frombuffer(digest, "<u8")


def random_view(
  pixels: UInt8[np.ndarray, "h w 3"],
  key: int,
  view: int,
  min_area: float,
  preprocessing: Preprocessing,
) -> UInt8[np.ndarray, "s s 3"]:
  """A random rectangle of an image, resized to the square, flipped or not.

  The rectangle has a share of the area uniform in [min_area, 1] and an aspect
  ratio log-uniform in [3/4, 4/3]; one that does not fit is drawn again, and
  after ten the largest central one with a legal aspect ratio is taken. Half of
  the views are flipped.

  *Formal guarantee*: a function of its arguments; the random draws are the same
  on every platform and NumPy version.

  Args:
    pixels: RGB, uint8 [h, w, 3].
    key: the image's `image_key`, as an integer of 128 bits.
    view: the number of the view, from 0.
    min_area: the smallest share of the image's area.
    preprocessing: has the size of the square, and the filter.

  Returns:
    uint8 [s, s, 3].
  """
  # All numbers that any attempt may need are drawn at once: which rectangle is
  # taken then moves no other draw, and a view is the same in every version.
  uniform = _uniforms(key, view, _ATTEMPTS * _DRAWS_PER_ATTEMPT + 1)
  height, width = pixels.shape[:2]
  left, top, right, bottom = _inception_box(
    width, height, min_area, uniform[1:].reshape(_ATTEMPTS, -1)
  )
  square = _resized(pixels[top:bottom, left:right], preprocessing)
  return square[:, ::-1] if uniform[0] < 0.5 else square


def _uniforms(key: int, view: int, count: int) -> np.ndarray:
  """float64 [count] in [0, 1).

  Only the raw stream of Philox is used, which NumPy promises to keep. Views
  take turns on its 256-bit counter, far apart.
  """
  philox = np.random.Philox(key=key, counter=[0, 0, 0, view])
  return (philox.random_raw(count) >> np.uint64(11)) / 2.0**53


def _inception_box(
  width: int, height: int, min_area: float, attempts: np.ndarray
) -> tuple[int, int, int, int]:
  """A rectangle (left, top, right, bottom) of an image, in pixels.

  Each row of `attempts` has four numbers in [0, 1): of the area, of the aspect
  ratio, and of the place. The first rectangle that fits is taken.
  """
  for share, log_aspect, x, y in attempts:
    area = (min_area + (1 - min_area) * share) * width * height
    aspect = _MAX_ASPECT ** (2 * log_aspect - 1)
    w = round(math.sqrt(area * aspect))
    h = round(math.sqrt(area / aspect))
    if 0 < w <= width and 0 < h <= height:
      left = int(x * (width - w + 1))
      top = int(y * (height - h + 1))
      return left, top, left + w, top + h
  # None fits: the largest central one, of an image that is very long.
  w = min(width, max(1, round(height * _MAX_ASPECT)))
  h = min(height, max(1, round(width * _MAX_ASPECT)))
  left = (width - w) // 2
  top = (height - h) // 2
  return left, top, left + w, top + h
