"""From the bytes of an image file to the square that a backbone is shown.

All of it runs on the host with Pillow, on uint8: a backbone normalizes on the
device, so that a quarter of the bytes travel.

Instead of its center an image may be shown by random views. The one step of
`linear_dp` is linear in an example's embedding as long as its gradient is
clipped as one, so averaging the gradient over augmented views of an example
(augmentation multiplicity) is averaging its embedding over them: once, when the
cache is made.

Source: crop and flip: Szegedy et al., "Going Deeper with Convolutions" (CVPR
2015), section 6; augmentation multiplicity: De et al., "Unlocking
High-Accuracy Differentially Private Image Classification through Scale"
(2022), section 3.4.
"""

import dataclasses
import io
import math
from typing import Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from oneshot_dp.configs.errors import InputError, one_line
from oneshot_dp.configs.extract_config import PreprocessConfig

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif")
"""What the names of image files end in, in lower case."""
# A closed list: Pillow's other readers (PostScript, PDF, …) run more code on
# bytes that nobody has looked at than a data set of photographs needs.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_ATTEMPTS = 10
_MAX_ASPECT = 4 / 3
_DRAWS_PER_ATTEMPT = 4


class DecodeError(ValueError):
  """Why some bytes are not an image that can be read in full."""


def decode_image(image: bytes | np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
  """RGB pixels of an encoded image, or of an array that holds pixels already.

  The same as torchvision's and TFDS's loaders where they agree:

  * EXIF orientation is applied.
  * Transparency is dropped, not blended: a transparent pixel keeps the color
    that is stored under it.
  * 16 bits per channel become 8 by keeping the high byte.
  * Palette, grayscale, 1-bit and CMYK images are converted to RGB; color
    profiles are not applied. Of an animation, the first frame is read.

  Args:
    image: an encoded JPEG, PNG, WebP, BMP or GIF; or uint8 pixels [h, w, 3]
      (returned as they are, uncopied), [h, w, 1] or [h, w].

  Returns:
    uint8 pixels [h, w, 3].

  Raises:
    DecodeError: the bytes are of another format, damaged, cut short, or claim
      more pixels than Pillow's limit against decompression bombs.
    InputError: an array of another dtype or shape: a fault of the data set, not
      of one image.
  """
  if isinstance(image, np.ndarray):
    return _rgb_of_pixels(image)
  try:
    with Image.open(io.BytesIO(image), formats=_FORMATS) as opened:
      opened.load()
      return np.asarray(_to_rgb(_upright(opened)))
  except MemoryError:
    raise  # this machine's trouble, not the image's
  except Image.UnidentifiedImageError as error:
    raise _unreadable(image) from error
  # Pillow's readers let through whatever their parsing of damaged bytes
  # stumbles on: OSError, SyntaxError, struct.error, IndexError, zlib.error, …
  except Exception as error:
    message = f"image cannot be decoded: {one_line(error)}"
    raise DecodeError(message) from error


def _rgb_of_pixels(pixels: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
  shape = pixels.shape
  if len(shape) == 2:
    shape = (*shape, 1)
  is_image = len(shape) == 3 and shape[2] in (1, 3) and 0 not in shape
  if pixels.dtype != np.uint8 or not is_image:
    raise InputError(
      f"image of dtype {pixels.dtype}, shape {list(pixels.shape)}: pixels must"
      " be uint8 [h, w, 3], [h, w, 1] or [h, w], and not empty."
    )
  pixels = pixels.reshape(shape)
  if shape[2] == 3:
    return pixels
  return np.repeat(pixels, 3, axis=2)


def _upright(image: Image.Image) -> Image.Image:
  """The image, turned as its EXIF orientation says."""
  try:
    return ImageOps.exif_transpose(image)
  except SyntaxError:  # damaged EXIF says nothing; the pixels are sound
    return image


def _unreadable(image: bytes) -> DecodeError:
  """Says that bytes are of no format that is read, and of which if known."""
  message = (
    f"{len(image)} bytes that are not a readable {', '.join(_FORMATS)} image"
  )
  is_heic_or_avif = image[4:8] == b"ftyp"
  is_tiff = image[:4] in (b"II*\0", b"MM\0*")
  if is_heic_or_avif or is_tiff:
    message += " (HEIC, AVIF or TIFF: convert it to JPEG or PNG)"
  return DecodeError(message)


def _to_rgb(image: Image.Image) -> Image.Image:
  if image.mode.startswith("I"):
    # Pillow's own conversion of 16-bit grayscale clips at 255.
    high_byte = (np.asarray(image) >> 8).astype(np.uint8)
    image = Image.fromarray(high_byte)
  # Otherwise Pillow warns that convert() will not blend, which is the intent.
  image.info.pop("transparency", None)
  return image.convert("RGB")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
  """From an image of any size to the square that a backbone takes.

  Attributes:
    image_size: side of the square, pixels.
    resize: a number: the shorter side is resized to it, then the central
      square is cropped. "square": both sides are resized to `image_size`.
    keep_aspect: if not, both sides are resized to a numeric `resize`.
    resample: the filter, widened when shrinking.
    mean, std: per channel, in units of [0, 1]; (x/255 - mean)/std. The
      defaults are the ViT papers' x/127.5 - 1.
  """

  image_size: int = 224
  resize: int | Literal["square"] = "square"
  keep_aspect: bool = True
  resample: Literal["bilinear", "bicubic"] = "bicubic"
  mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
  std: tuple[float, float, float] = (0.5, 0.5, 0.5)

  def changed(self, config: PreprocessConfig) -> "Preprocessing":
    """This preprocessing with the changes that `config` asks for.

    A crop stays in proportion to the image, unless `config` sets it.
    InputError: the image would be smaller than the square.
    """
    side = config.image_size or self.image_size
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
    return dataclasses.replace(self, image_size=side, resize=resize)


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
  """The square, of all or a rectangle (left, top, right, bottom; pixels)."""
  size = (config.image_size, config.image_size)
  resample = Image.Resampling[config.resample.upper()]
  return np.asarray(Image.fromarray(image).resize(size, resample, box))


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
