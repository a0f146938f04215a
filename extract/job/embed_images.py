"""Images in memory through a backbone: a job without a cache."""

from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Float32, UInt8

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import BackboneConfig, PreprocessConfig
from oneshot_dp.extract.backbones.registry import load_backbone, resolved
from oneshot_dp.extract.images.preprocess import (
  DecodeError,
  Preprocessing,
  prepare,
)
from oneshot_dp.extract.job.embedder import Embedder


def embed_images(
  images: Sequence[bytes | np.ndarray] | np.ndarray,
  backbone: str | BackboneConfig,
  *,
  preprocess: PreprocessConfig | None = None,
  batch_size: int | None = None,
) -> Float32[np.ndarray, "n d"]:
  """Embeds images in the order given; what a job would store in float32.

  For what fits in memory and need not be resumed; the rest is for
  `oneshot-dp extract`. Every call loads the weights and compiles.

  >>> import numpy as np
  >>> import oneshot_dp
  >>> images = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
  >>> embeddings = oneshot_dp.embed_images(images, "random_patches")
  >>> embeddings.shape, embeddings.dtype
  ((2, 256), dtype('float32'))

  Args:
    images: uint8 pixels [n, h, w, 3] or [n, h, w, 1]; or a sequence of pixels
      of any sizes and of encoded images (JPEG, PNG, WebP, BMP, GIF).
    backbone: a name of `backbone_names` that needs no weights, or a
      `oneshot_dp.configs.extract_config.BackboneConfig(name=..., weights=...)`.
    preprocess: changes to the preprocessing that the weights were made for.
    batch_size: images per device call; None is what suits the devices.

  Returns:
    [n, d] float32.

  Raises:
    InputError: no images, or one that cannot be decoded (named by its place);
      a backbone that `load_backbone` refuses.
    RunError: a download failed.
  """
  if batch_size is not None and batch_size < 1:
    raise InputError(f"batch_size={batch_size} must be at least 1.")
  if not len(images):
    raise InputError("images is empty: give at least one.")
  config = (
    BackboneConfig(name=backbone) if isinstance(backbone, str) else backbone
  )
  loaded = load_backbone(resolved(config), preprocess or PreprocessConfig())
  embedder = Embedder(loaded, batch_size)
  # The device works on one batch while the next is prepared.
  batches = [
    embedder(batch)[: len(batch)]
    for batch in _batches(images, loaded.preprocessing, embedder.batch_size)
  ]
  return np.concatenate(jax.device_get(batches))


def _batches(
  images: Sequence[bytes | np.ndarray] | np.ndarray,
  preprocessing: Preprocessing,
  size: int,
) -> Iterator[UInt8[np.ndarray, "rows s s 3"]]:
  for start in range(0, len(images), size):
    places = range(start, min(start + size, len(images)))
    yield np.stack([_prepared(images[i], i, preprocessing) for i in places])


def _prepared(
  image: bytes | np.ndarray, place: int, preprocessing: Preprocessing
) -> UInt8[np.ndarray, "s s 3"]:
  try:
    return prepare(image, preprocessing)
  except (DecodeError, InputError) as error:
    raise InputError(f"images[{place}]: {error}") from error
