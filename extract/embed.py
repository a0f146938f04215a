"""From images to embeddings: decode on threads, embed on the devices.

The host decodes and resizes ahead of the devices, which see one batch shape
only, sharded over all of them.
"""

import collections
import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, UInt8

from configs.errors import InputError
from configs.schema import ExtractConfig
from extract import preprocess
from extract.backbones.registry import Backbone, load_backbone
from extract.block_builder import Rows, Skipped
from extract.source import Source

_BATCHES_AHEAD = 2
# More images at once leave a CPU's caches: at 64 a ViT-Ti/16 is 1.4 times
# slower than at 16.
_IMAGES_PER_DEVICE = {"cpu": 16}
_IMAGES_PER_ACCELERATOR = 256


class Embedder:
  """A backbone on the local devices: parameters replicated, batches sharded.

  Attributes:
    backbone: what it runs.
    batch_size: images per call: the size asked for, rounded up to a multiple of
      the number of devices.
  """

  def __init__(self, backbone: Backbone, batch_size: int | None):
    devices = jax.local_devices()
    per_device = (
      _IMAGES_PER_DEVICE.get(devices[0].platform, _IMAGES_PER_ACCELERATOR)
      if batch_size is None
      else -(-batch_size // len(devices))
    )
    self.backbone = backbone
    self.batch_size = per_device * len(devices)
    mesh = Mesh(np.array(devices), ("data",))
    self._rows = NamedSharding(mesh, PartitionSpec("data"))
    replicated = NamedSharding(mesh, PartitionSpec())
    self._params = jax.device_put(backbone.params, replicated)
    self._apply = jax.jit(
      backbone.apply,
      in_shardings=(replicated, self._rows),
      out_shardings=self._rows,
    )

  def __call__(
    self, images: UInt8[np.ndarray, "rows h w 3"]
  ) -> Float[Array, "batch d"]:
    """Starts one batch; the result arrives asynchronously.

    Args:
      images: [rows ≤ batch_size, h, w, 3]; padded with zeros to the batch size.

    Returns:
      [batch_size, d] float32, whose first `rows` rows count.
    """
    padding = [(0, self.batch_size - len(images))] + [(0, 0)] * 3
    batch = jax.device_put(np.pad(images, padding), self._rows)
    return self._apply(self._params, batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddedBatch:
  """What one device call gave.

  Attributes:
    rows: embeddings in float32, padding gone, in the order of the source.
    skipped: examples among them that could not be decoded.
    image_bytes: encoded bytes read, of both.
  """

  rows: Rows
  skipped: tuple[Skipped, ...]
  image_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Prepared:
  """One example on its way to the device; `image` is None if it is skipped."""

  example_id: int
  label: int
  image: np.ndarray | None
  image_bytes: int


def load_embedder(config: ExtractConfig) -> Embedder:
  """Loads the backbone of a job onto the local devices."""
  backbone = load_backbone(config.backbone, config.preprocess)
  return Embedder(backbone, config.batch_size)


def decode_pool(config: ExtractConfig) -> concurrent.futures.ThreadPoolExecutor:
  """The threads that decode and resize; one per core unless configured."""
  threads = config.decode_threads or os.cpu_count() or 1
  return concurrent.futures.ThreadPoolExecutor(threads, "decode")


def embed_range(
  source: Source,
  indices: range,
  embedder: Embedder,
  config: ExtractConfig,
  pool: concurrent.futures.ThreadPoolExecutor,
) -> Iterator[EmbeddedBatch]:
  """Embeds a range of a source, in order, each example once.

  Args:
    source: the images.
    indices: which of them.
    embedder: the backbone on its devices.
    config: preprocessing, and what to do with an undecodable image.
    pool: threads that decode ahead.

  Yields:
    One item per device batch; the last may have no rows.

  Raises:
    InputError: an image cannot be decoded and the job is to fail on it.
  """

  def prepare(index: int) -> _Prepared:
    return _prepare(source, index, config)

  pending = collections.deque()
  ahead = embedder.batch_size * (_BATCHES_AHEAD + 1)
  for batch in _batches(_in_order(prepare, indices, pool, ahead), embedder):
    images = [p.image for p in batch if p.image is not None]
    result = embedder(np.stack(images)) if images else None
    pending.append((batch, result))
    if len(pending) > 1:
      yield _collect(*pending.popleft(), embedder.backbone.feature_dim)
  while pending:
    yield _collect(*pending.popleft(), embedder.backbone.feature_dim)


def _prepare(source: Source, index: int, config: ExtractConfig) -> _Prepared:
  example = source[index]
  try:
    image = preprocess.prepare(example.image, config.preprocess)
  except preprocess.DecodeError as error:
    if config.on_decode_error == "fail":
      raise InputError(
        f"{source.where(index)} (example_id={example.example_id}) cannot be"
        f" decoded: {error}. Mend or remove it, or pass"
        " --on-decode-error skip."
      ) from error
    image = None
  size = (
    len(example.image)
    if isinstance(example.image, bytes)
    else example.image.nbytes
  )
  return _Prepared(
    example_id=example.example_id,
    label=example.label,
    image=image,
    image_bytes=size,
  )


def _in_order(
  prepare: Callable[[int], _Prepared],
  indices: range,
  pool: concurrent.futures.ThreadPoolExecutor,
  ahead: int,
) -> Iterator[_Prepared]:
  """`map` over a pool that runs at most `ahead` items before the consumer."""
  waiting = collections.deque()
  try:
    for index in indices:
      waiting.append(pool.submit(prepare, index))
      if len(waiting) >= ahead:
        yield waiting.popleft().result()
    while waiting:
      yield waiting.popleft().result()
  finally:
    for future in waiting:
      future.cancel()


def _batches(
  prepared: Iterator[_Prepared], embedder: Embedder
) -> Iterator[list[_Prepared]]:
  """Groups with one device batch of decodable images each, the last smaller."""
  batch, images = [], 0
  for item in prepared:
    batch.append(item)
    images += item.image is not None
    if images == embedder.batch_size:
      yield batch
      batch, images = [], 0
  if batch:
    yield batch


def _collect(
  batch: list[_Prepared], result: Array | None, feature_dim: int
) -> EmbeddedBatch:
  """Waits for the device; padding ends here."""
  kept = [p for p in batch if p.image is not None]
  embedding = (
    np.empty((0, feature_dim), np.float32)
    if result is None
    else np.asarray(result)[: len(kept)]
  )
  return EmbeddedBatch(
    rows=Rows(
      embedding=embedding,
      label=np.array([p.label for p in kept], np.int64),
      example_id=np.array([p.example_id for p in kept], np.int64),
    ),
    skipped=tuple(Skipped(p.example_id) for p in batch if p.image is None),
    image_bytes=sum(p.image_bytes for p in batch),
  )
