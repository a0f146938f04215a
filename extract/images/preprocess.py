"""From the bytes of an image to the square of pixels a backbone is shown.

Decoding, resizing and cropping run on the host with Pillow, on uint8; only
`normalize` runs on the device, so that a quarter of the bytes travel.
"""

import dataclasses
import io
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Float32, UInt8
from PIL import Image, ImageOps

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import PreprocessConfig, Resample

# A closed list: Pillow's other readers (PostScript, PDF, …) run more code on
# bytes that nobody has looked at than a data set of photographs needs.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")

Box = tuple[int | float, int | float, int | float, int | float]

PILLOW_FILTER = {
  "bilinear": Image.Resampling.BILINEAR,
  "bicubic": Image.Resampling.BICUBIC,
  "lanczos": Image.Resampling.LANCZOS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
  """From an image of any size to the square that a backbone takes.

  >>> small = Preprocessing(image_size=32)
  >>> prepare(np.zeros((48, 64, 3), np.uint8), small).shape
  (32, 32, 3)
  >>> small.changed(PreprocessConfig(image_size=64)).image_size
  64

  Attributes:
    image_size: side of the square, pixels.
    resize: a number: the shorter side is resized to it, then the central
      square is cropped. "square": both sides are resized to `image_size`.
    keep_aspect: whether a numeric `resize` keeps the aspect ratio; if not, both
      sides are resized to it before the crop.
    resample: the filter.
    antialias: whether it is widened when shrinking.
    mean, std: per-channel, in units of [0, 1]; (x/255 - mean)/std. The
      defaults are the ViT papers' x/127.5 - 1.
  """

  image_size: int = 224
  resize: int | Literal["square"] = "square"
  keep_aspect: bool = True
  resample: Resample = "bicubic"
  antialias: bool = True
  mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
  std: tuple[float, float, float] = (0.5, 0.5, 0.5)

  def changed(self, config: PreprocessConfig) -> "Preprocessing":
    """This preprocessing with what `config` asks for, if that makes sense."""
    # A config file may give lists, but what is compiled is found by value.
    given: dict[str, Any] = {
      name: tuple(value) if isinstance(value, list) else value
      for name, value in vars(config).items()
      if value is not None
    }
    side = given.get("image_size", self.image_size)
    if given.get("resize") == "crop":
      given["resize"] = round(side * 8 / 7)
      if isinstance(self.resize, int):
        del given["resize"]
    if isinstance(self.resize, int):
      in_proportion = round(self.resize * side / self.image_size)
      given = {"resize": in_proportion} | given
    result = dataclasses.replace(self, **given)
    if isinstance(result.resize, int) and result.resize < result.image_size:
      raise InputError(
        f"resize={result.resize} is smaller than"
        f" image_size={result.image_size}, so no such square could be cropped."
      )
    # (Pillow's other bicubic filter is nobody's reference.)
    if result.resample != "bilinear" and not result.antialias:
      raise InputError(
        f"resample={result.resample} always antialiases: leave out"
        " antialias=False, or use bilinear."
      )
    return result


class DecodeError(ValueError):
  """Why these bytes are not an image that can be read in full."""


def decode_image(image: bytes | np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
  """RGB pixels of an encoded image, or of an array that holds pixels already.

  Semantics, the same as torchvision's and TFDS's loaders where they agree:

  * EXIF orientation is applied.
  * Transparency is dropped, not blended: a transparent pixel keeps the colour
    that is stored under it.
  * 16 bits per channel become 8 by keeping the high byte.
  * Palette, grayscale, 1-bit and CMYK images are converted to RGB; colour
    profiles are not applied. Of an animation, the first frame is read.

  Args:
    image: an encoded JPEG, PNG, WebP, BMP or GIF; or uint8 pixels [h, w, 3]
      (returned as they are, uncopied), [h, w, 1] or [h, w].

  Raises:
    DecodeError: the bytes are of another format, damaged, cut short, or claim
      more pixels than Pillow's limit against decompression bombs.
    InputError: an array of another dtype or shape: a fault of the data set,
      not of one image.
  """
  if isinstance(image, np.ndarray):
    return _check_pixels(image)
  try:
    with Image.open(io.BytesIO(image), formats=_FORMATS) as opened:
      opened.load()
      return np.asarray(_to_rgb(_upright(opened)))
  except MemoryError:
    raise  # this machine's trouble, not the image's
  except Image.UnidentifiedImageError as error:
    raise DecodeError(
      f"{len(image)} bytes that are not a readable {', '.join(_FORMATS)} image"
    ) from error
  # Pillow's readers let through whatever their parsing of damaged bytes
  # stumbles on: OSError, SyntaxError, struct.error, IndexError, zlib.error, …
  except Exception as error:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    raise DecodeError(f"image cannot be decoded: {reason}") from error


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
  box = None
  if isinstance(small, int):
    scale = small / min(height, width)
    full = (
      (round(width * scale), round(height * scale))
      if config.keep_aspect
      else (small, small)
    )
    left, top = (full[0] - side) // 2, (full[1] - side) // 2
    if full == (width, height):
      return image[top : top + side, left : left + side]
    box = (
      left * width / full[0],
      top * height / full[1],
      (left + side) * width / full[0],
      (top + side) * height / full[1],
    )
  elif (height, width) == (side, side):
    return image
  return resize_box(image, box or (0, 0, width, height), config)


def resize_box(
  image: UInt8[np.ndarray, "h w 3"], box: Box, config: Preprocessing
) -> UInt8[np.ndarray, "s s 3"]:
  """Resizes a rectangle (left, top, right, bottom; pixels) to the square."""
  size = (config.image_size, config.image_size)
  how = PILLOW_FILTER[config.resample]
  pixels = Image.fromarray(image)
  if config.antialias:
    return np.asarray(pixels.resize(size, how, box))
  return np.asarray(pixels.transform(size, Image.Transform.EXTENT, box, how))


def prepare(
  image: bytes | np.ndarray, config: Preprocessing
) -> UInt8[np.ndarray, "s s 3"]:
  """Decodes, resizes and crops; see `decode_image` and `resize_and_crop`."""
  return resize_and_crop(decode_image(image), config)


def normalize(
  images: UInt8[Array, "b s s 3"] | UInt8[np.ndarray, "b s s 3"],
  config: Preprocessing,
) -> Float32[Array, "b s s 3"]:
  """(x/255 − mean)/std on the device, to be called inside a jitted function."""
  mean, std = np.array(config.mean), np.array(config.std)
  # Constants in float64 first: one rounding instead of four.
  scale = (1 / (255 * std)).astype(np.float32)
  shift = (-mean / std).astype(np.float32)
  return jax.numpy.asarray(images, jax.numpy.float32) * scale + shift


def _check_pixels(image: np.ndarray) -> np.ndarray:
  if image.dtype != np.uint8:
    raise InputError(
      f"image of dtype {image.dtype}: pixels must be uint8, 0 to 255; convert "
      "the data set."
    )
  if image.ndim == 2:
    image = image[:, :, None]
  if image.ndim != 3 or image.shape[2] not in (1, 3) or not image.size:
    raise InputError(
      f"image of shape {list(image.shape)}: pixels must be [h, w, 3], "
      "[h, w, 1] or [h, w], and not empty."
    )
  return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def _upright(image: Image.Image) -> Image.Image:
  try:
    return ImageOps.exif_transpose(image)
  except SyntaxError:  # damaged EXIF says nothing; the pixels are sound
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
  if image.mode.startswith("I"):
    # Pillow's own conversion of 16-bit grayscale clips at 255.
    high_byte = (np.asarray(image) >> 8).astype(np.uint8)
    image = Image.fromarray(high_byte)
  # Otherwise Pillow warns that convert() will not blend, which is the intent.
  image.info.pop("transparency", None)
  return image.convert("RGB")
