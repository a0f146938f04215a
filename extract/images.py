"""From the bytes of an image file to the square that a backbone is shown.

All of it runs on the host with Pillow, on uint8: a backbone normalises on the
device, so that a quarter of the bytes travel.

Instead of its centre an image may be shown by random views. The one step of
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

_ATTEMPTS = 10
_MAX_ASPECT = 4 / 3
_DRAWS_PER_ATTEMPT = 4
# A closed list: Pillow's other readers (PostScript, PDF, …) run more code on
# bytes that nobody has looked at than a data set of photographs needs.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")


class DecodeError(ValueError):
  """Why these bytes are not an image that can be read in full."""


def decode_image(image: bytes | np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
  """RGB pixels of an encoded image, or of an array that holds pixels already.

  The same as torchvision's and TFDS's loaders where they agree:

  * EXIF orientation is applied.
  * Transparency is dropped, not blended: a transparent pixel keeps the colour
    that is stored under it.
  * 16 bits per channel become 8 by keeping the high byte.
  * Palette, grayscale, 1-bit and CMYK images are converted to RGB; colour
    profiles are not applied. Of an animation, the first frame is read.

  `image` is an encoded JPEG, PNG, WebP, BMP or GIF; or uint8 pixels [h, w, 3]
  (returned as they are, uncopied), [h, w, 1] or [h, w]. DecodeError: the bytes
  are of another format, damaged, cut short, or claim more pixels than Pillow's
  limit against decompression bombs. InputError: an array of another dtype or
  shape: a fault of the data set, not of one image.
  """
  if isinstance(image, np.ndarray):
    shape = image.shape + (1,) * (image.ndim == 2)
    fits = len(shape) == 3 and shape[2] in (1, 3) and 0 not in shape
    if image.dtype != np.uint8 or not fits:
      raise InputError(
        f"image of dtype {image.dtype}, shape {list(image.shape)}: pixels must"
        " be uint8 [h, w, 3], [h, w, 1] or [h, w], and not empty."
      )
    pixels = image.reshape(shape)
    return pixels if shape[2] == 3 else np.repeat(pixels, 3, axis=2)
  try:
    with Image.open(io.BytesIO(image), formats=_FORMATS) as opened:
      opened.load()
      try:
        upright = ImageOps.exif_transpose(opened)
      except SyntaxError:  # damaged EXIF says nothing; the pixels are sound
        upright = opened
      return np.asarray(_to_rgb(upright))
  except MemoryError:
    raise  # this machine's trouble, not the image's
  except Image.UnidentifiedImageError as error:
    is_photo = image[4:8] == b"ftyp" or image[:4] in (b"II*\0", b"MM\0*")
    advice = " (HEIC, AVIF or TIFF: convert it to JPEG or PNG)" * is_photo
    raise DecodeError(
      f"{len(image)} bytes that are not a readable {', '.join(_FORMATS)}"
      f" image{advice}"
    ) from error
  # Pillow's readers let through whatever their parsing of damaged bytes
  # stumbles on: OSError, SyntaxError, struct.error, IndexError, zlib.error, …
  except Exception as error:
    said = f"image cannot be decoded: {one_line(error)}"
    raise DecodeError(said) from error


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
    """This with what `config` asks for, a crop in proportion to the image.

    InputError: the image would be smaller than the square.
    """
    side = config.image_size or self.image_size
    resize = config.resize or self.resize
    if config.resize is None and isinstance(resize, int):
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
  """Resizes to the backbone's square, as `config` says.

  Where `resize` is a number the result equals resizing the whole image so that
  its shorter side is `resize`, then cropping the central square; but only the
  pixels of that square are computed, so that a very long image cannot take
  memory in proportion to its length. What is that square already is not copied.
  """
  side, small = config.image_size, config.resize
  height, width = image.shape[:2]
  if not isinstance(small, int):
    if (height, width) == (side, side):
      return image
    return _resized(image, config)
  scale = small / min(height, width)
  full = (round(width * scale), round(height * scale))
  full = full if config.keep_aspect else (small, small)
  left, top = (full[0] - side) // 2, (full[1] - side) // 2
  if full == (width, height):
    return image[top : top + side, left : left + side]
  x0, x1 = left * width / full[0], (left + side) * width / full[0]
  y0, y1 = top * height / full[1], (top + side) * height / full[1]
  return _resized(image, config, (x0, y0, x1, y1))


def _resized(
  image: UInt8[np.ndarray, "h w 3"],
  config: Preprocessing,
  box: tuple[float, float, float, float] | None = None,
) -> UInt8[np.ndarray, "s s 3"]:
  """The square, of all or a rectangle (left, top, right, bottom; pixels)."""
  size = (config.image_size, config.image_size)
  how = Image.Resampling[config.resample.upper()]
  return np.asarray(Image.fromarray(image).resize(size, how, box))


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
  after ten the largest central one with a legal aspect ratio is taken. The
  flip is a coin.

  *Formal guarantee*: a function of its arguments, of which `key` is `image_key`
  and `view` counts from 0; the random draws are the same on every platform and
  NumPy version.
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
  for share, log_aspect, x, y in attempts:
    area = (min_area + (1 - min_area) * share) * width * height
    aspect = _MAX_ASPECT ** (2 * log_aspect - 1)
    w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
    if 0 < w <= width and 0 < h <= height:
      left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
      return left, top, left + w, top + h
  w = min(width, max(1, round(height * _MAX_ASPECT)))
  h = min(height, max(1, round(width * _MAX_ASPECT)))
  left, top = (width - w) // 2, (height - h) // 2
  return left, top, left + w, top + h
