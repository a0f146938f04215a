"""Images in memory through a backbone: a job without a cache."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float32, UInt8

from oneshot_dp.configs.errors import InputError, check_positive
from oneshot_dp.configs.extract_config import BackboneConfig, PreprocessConfig
from oneshot_dp.extract.backbones.registry import load_backbone
from oneshot_dp.extract.images.preprocess import DecodeError, prepare
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
  check_positive("batch_size", batch_size)
  if not len(images):
    raise InputError("images is empty: give at least one.")
  config = (
    BackboneConfig(name=backbone) if isinstance(backbone, str) else backbone
  )
  loaded = load_backbone(config, preprocess or PreprocessConfig())
  embedder = Embedder(loaded, batch_size)

  def prepared(place: int) -> UInt8[np.ndarray, "s s 3"]:
    try:
      return prepare(images[place], loaded.preprocessing)
    except (DecodeError, InputError) as error:
      raise InputError(f"images[{place}]: {error}") from error

  places, embeddings = range(len(images)), []
  for start in range(0, len(images), embedder.batch_size):
    batch = [prepared(i) for i in places[start : start + embedder.batch_size]]
    # The device works on it while the next is prepared.
    embeddings.append(embedder(np.stack(batch))[: len(batch)])
  return np.concatenate(jax.device_get(embeddings))
