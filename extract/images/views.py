"""Random views of an image: inception crop and horizontal flip.

The one step of `linear_dp` is linear in an example's embedding as long as its
gradient is clipped as one, so averaging the gradient over augmented views of
an example (augmentation multiplicity) is averaging its embedding over them:
once, when the cache is made.

Source: crop and flip: Szegedy et al., "Going Deeper with Convolutions" (CVPR
2015), section 6; augmentation multiplicity: De et al., "Unlocking
High-Accuracy Differentially Private Image Classification through Scale"
(2022), section 3.4.
"""

import math

import numpy as np
from jaxtyping import UInt8

from oneshot_dp.extract.images.resize import Preprocessing, resize_box

_ATTEMPTS = 10
_MAX_ASPECT = 4 / 3
_DRAWS_PER_ATTEMPT = 4


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
  square = resize_box(crop, (0, 0, right - left, bottom - top), preprocessing)
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
