"""From decoded pixels to the square that a backbone is shown.

Resizing and cropping run on the host with Pillow, on uint8; only `normalize`
runs on the device, so that a quarter of the bytes travel.
"""

import dataclasses
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Float32, UInt8
from PIL import Image

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import PreprocessConfig, Resample

Box = tuple[int | float, int | float, int | float, int | float]

_FILTERS = {
  "bilinear": Image.Resampling.BILINEAR,
  "bicubic": Image.Resampling.BICUBIC,
  "lanczos": Image.Resampling.LANCZOS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
  """From an image of any size to the square that a backbone takes.

  Attributes:
    image_size: side of the square, pixels.
    resize: a number: the shorter side is resized to it, then the central
      square is cropped. "square": both sides are resized to `image_size`.
    keep_aspect: if not, both sides are resized to a numeric `resize`.
    resample: the filter.
    antialias: whether it is widened when shrinking.
    mean, std: per channel, in units of [0, 1]; (x/255 - mean)/std. The
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
    """This with what `config` asks for; InputError: that makes no sense."""
    given: dict[str, Any] = {
      # What is compiled is found by value, so lists become tuples.
      name: tuple(value) if isinstance(value, list) else value
      for name, value in vars(config).items()
      if value is not None
    }
    side = given.get("image_size", self.image_size)
    if isinstance(self.resize, int):
      if given.get("resize", "crop") == "crop":
        given["resize"] = round(self.resize * side / self.image_size)
    elif given.get("resize") == "crop":
      given["resize"] = round(side * 8 / 7)
    result = dataclasses.replace(self, **given)
    if isinstance(result.resize, int) and result.resize < side:
      raise InputError(
        f"--resize {result.resize} is smaller than the image size of {side}, so"
        " no such square could be cropped."
      )
    # (Pillow's other bicubic filter is nobody's reference.)
    if result.resample != "bilinear" and not result.antialias:
      raise InputError(
        f"{result.resample} always antialiases: leave out --no-antialias, or"
        " use bilinear."
      )
    return result


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
    return resize_box(image, (0, 0, width, height), config)
  scale = small / min(height, width)
  full = (round(width * scale), round(height * scale))
  full = full if config.keep_aspect else (small, small)
  left, top = (full[0] - side) // 2, (full[1] - side) // 2
  if full == (width, height):
    return image[top : top + side, left : left + side]
  x0, x1 = left * width / full[0], (left + side) * width / full[0]
  y0, y1 = top * height / full[1], (top + side) * height / full[1]
  return resize_box(image, (x0, y0, x1, y1), config)


def resize_box(
  image: UInt8[np.ndarray, "h w 3"], box: Box, config: Preprocessing
) -> UInt8[np.ndarray, "s s 3"]:
  """Resizes a rectangle (left, top, right, bottom; pixels) to the square."""
  size = (config.image_size, config.image_size)
  how = _FILTERS[config.resample]
  pixels = Image.fromarray(image)
  if config.antialias:
    return np.asarray(pixels.resize(size, how, box))
  return np.asarray(pixels.transform(size, Image.Transform.EXTENT, box, how))


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
