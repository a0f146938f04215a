"""From decoded pixels to the square that a backbone is shown.

Resizing and cropping run on the host with Pillow, on uint8; only `normalize`
runs on the device, so that a quarter of the bytes travel.

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
import math
from typing import Literal

import jax
import numpy as np
from jaxtyping import Array, Float32, UInt8
from PIL import Image

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import PreprocessConfig

Box = tuple[int | float, int | float, int | float, int | float]
_ATTEMPTS = 10
_MAX_ASPECT = 4 / 3
_DRAWS_PER_ATTEMPT = 4


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
    return _resize_box(image, (0, 0, width, height), config)
  scale = small / min(height, width)
  full = (round(width * scale), round(height * scale))
  full = full if config.keep_aspect else (small, small)
  left, top = (full[0] - side) // 2, (full[1] - side) // 2
  if full == (width, height):
    return image[top : top + side, left : left + side]
  x0, x1 = left * width / full[0], (left + side) * width / full[0]
  y0, y1 = top * height / full[1], (top + side) * height / full[1]
  return _resize_box(image, (x0, y0, x1, y1), config)


def _resize_box(
  image: UInt8[np.ndarray, "h w 3"], box: Box, config: Preprocessing
) -> UInt8[np.ndarray, "s s 3"]:
  """Resizes a rectangle (left, top, right, bottom; pixels) to the square."""
  size = (config.image_size, config.image_size)
  how = Image.Resampling[config.resample.upper()]
  return np.asarray(Image.fromarray(image).resize(size, how, box))


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
  crop = pixels[top:bottom, left:right]
  square = _resize_box(crop, (0, 0, right - left, bottom - top), preprocessing)
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
