"""One unit of work: a range of the source becomes one shard of the cache.

Threads decode and resize ahead of the devices, which see one batch shape only.
An image's place in a batch is that of its index, and what cannot be decoded
leaves its place empty.
"""

import importlib.metadata
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, UInt8

from oneshot_dp.configs.errors import BrokenImageError
from oneshot_dp.configs.extract_config import EXAMPLE, ExtractConfig
from oneshot_dp.extract.backbones.backbone import Backbone, load_backbone
from oneshot_dp.extract.cache.format import Rows, Shard, image_key
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  checked,
  encode_shard,
  load_existing_shard,
  put_shard,
)
from oneshot_dp.extract.images import (
  DecodeError,
  decode_image,
  random_view,
  resize_and_crop,
)
from oneshot_dp.extract.sources.source import Source
from oneshot_dp.extract.threads import prefetch_map

# More images at once leave the fast memory: on a CPU a ViT-Ti/16 is 1.4 times
# slower at 64 than at 16, measured; of a v5e the compiler expects 1.2 times as
# many images/s of a ViT-B/16 at 64 as at 256.
IMAGES_PER_DEVICE = {"cpu": 16, "tpu": 64, "gpu": 256}
_BATCHES_AHEAD = 3
VIEW_MIN_AREA = 0.08
"""The smallest share of an image that a view may show."""
_AT_ONCE = 8
"""Images of one task of a thread."""
_LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "pillow")
HOW_MENDED = (
  "mend what is broken (`oneshot-dp inspect` names it all), or remove it and"
  " what is at --out, or pass --on-decode-error skip."
)


class Embedder:
  """A backbone on all local devices, the images sharded over them.

  Attributes:
    backbone: what it runs.
    batch_size: images per call: the size asked for (`IMAGES_PER_DEVICE` for
      each device where none is), rounded up to a multiple of the devices.
  """

  def __init__(self, backbone: Backbone, batch_size: int | None = None):
    devices = jax.local_devices()
    each = IMAGES_PER_DEVICE.get(devices[0].platform, 256)
    if batch_size is not None:
      each = -(-batch_size // len(devices))
    self.backbone, self.batch_size = backbone, each * len(devices)
    mesh = Mesh(np.array(devices), ("data",))
    self._rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    self._params = jax.device_put(backbone.params, everywhere)
    self._apply = jax.jit(
      backbone.apply,
      in_shardings=(everywhere, self._rows),
      out_shardings=self._rows,
    )

  def __call__(
    self, images: UInt8[np.ndarray, "rows h w 3"]
  ) -> Float[Array, "batch d"]:
    """Starts one batch of up to `batch_size`; the result arrives later.

    Only the first rows of it count: the rest is of padding.
    """
    padding = [(0, self.batch_size - len(images))] + [(0, 0)] * 3
    batch = jax.device_put(np.pad(images, padding), self._rows)
    return self._apply(self._params, batch)


class Batch(NamedTuple):
  """What was made of some images, in the order of the source.

  Attributes:
    rows: columns embedding f32 [r, d], label, example_id (the index in the
      source), image_key, and unit_id where the source has units.
    broken: index, place and fault of each that cannot be decoded.
  """

  rows: Rows
  broken: tuple[tuple[int, str, str], ...]


def embed(
  source: Source, indices: range, embedder: Embedder, views: int | None = None
) -> Iterator[Batch]:
  """Embeds a range of a source, in order, each example once.

  Formal guarantees: an embedding is a function of its image alone, of its
  index and of the machine: which images are beside it, or are missing, changes
  no bit of it. With `views` it is the mean over so many random views, instead
  of the centre.
  """
  shown_as, each = embedder.backbone.preprocessing, views or 1
  blank = np.zeros((shown_as.image_size, shown_as.image_size, 3), np.uint8)

  def prepare(index: int) -> tuple[list[Any], list[np.ndarray], Any]:
    """Columns, images, and why they are blank, if they are."""
    label, image, unit = source[index]
    key = image_key(image)
    row, fault = [index, label, key, unit], None
    try:
      pixels = decode_image(image)
      if views is None:
        return row, [resize_and_crop(pixels, shown_as)], None
      number = int.from_bytes(key.tobytes(), "little")
      shown = [
        random_view(pixels, number, v, VIEW_MIN_AREA, shown_as)
        for v in range(views)
      ]
    except DecodeError as e:
      shown, fault = [blank] * each, (index, source.display_path(index), str(e))
    return row, shown, fault

  size, count = embedder.batch_size, max(1, embedder.batch_size // each)

  def started() -> Iterator[tuple[list[Any], list[jax.Array]]]:
    most, threads = _BATCHES_AHEAD * count, os.cpu_count() or 1
    some = max(1, min(_AT_ONCE, most // (2 * threads)))
    prepared = prefetch_map(prepare, indices, most, threads, some)
    while group := list(itertools.islice(prepared, count)):
      images = np.stack([image for _, some, _ in group for image in some])
      starts = range(0, len(images), size)
      yield group, [embedder(images[at : at + size]) for at in starts]

  # A result is waited for once the next batch is on its way.
  waiting: Iterator[Any] = itertools.chain(started(), [None])
  for (group, results), _ in itertools.pairwise(waiting):
    made = np.concatenate([np.asarray(result) for result in results])
    made = made[: len(group) * each].reshape(len(group), each, -1)
    mean = made.mean(axis=1, dtype=np.float64).astype(np.float32)
    whole = [fault is None for *_, fault in group]
    kept = [row for row, _, fault in group if fault is None]
    ids, labels, keys, units = zip(*kept, strict=True) if kept else [()] * 4
    rows = {
      "embedding": mean[whole],
      "label": np.array(labels, np.int32),
      "example_id": np.array(ids, np.int64),
      "image_key": np.array(keys, np.uint64).reshape(-1, 2),
    }
    if source.unit != EXAMPLE:
      rows["unit_id"] = np.array(units, np.int64)
    yield Batch(rows, tuple(f for *_, f in group if f is not None))


def embed_images(source: Source, backbone: Backbone) -> Iterator[Batch]:
  """Embeds all of a source on the local devices; see `embed`."""
  return embed(source, range(len(source)), Embedder(backbone))


class Job(NamedTuple):
  """A job as a process knows it."""

  out: str
  config: ExtractConfig
  cache: CacheJob
  source: Source
  embedder: Embedder


def embedder_of(config: ExtractConfig) -> Embedder:
  """The backbone of a job, on this process's devices."""
  backbone = load_backbone(
    config.backbone,
    config.weights,
    config.weights_sha256,
    config.embedding,
    config.compute_dtype,
    config.preprocess,
  )
  return Embedder(backbone, config.batch_size)


def computed_by(backbone: Backbone, config: ExtractConfig) -> dict[str, Any]:
  """What decides the rounding of embeddings, beside the kind of device."""
  return {
    "compute_dtype": backbone.compute_dtype,
    "batch_size": config.batch_size,
    "libraries": {n: importlib.metadata.version(n) for n in _LIBRARIES},
  }


def extract_shard(
  job: Job, index: int, after_each: Callable[[], None] = lambda: None
) -> Shard:
  """Makes a shard unless it is there, and says what it is.

  `after_each` is called after each batch. BrokenImageError: an image cannot be
  decoded, and is not to be skipped. InputError, RunError: as `run_extraction`.
  """
  info, parts = job.cache.info, []
  if kept := load_existing_shard(job.out, job.cache, info.shard_name(index)):
    return kept
  indices = info.shard_range(index)
  for rows, broken in embed(
    job.source, indices, job.embedder, job.config.views
  ):
    if broken and job.config.on_decode_error == "fail":
      _, where, fault = broken[0]
      raise BrokenImageError(
        f"{where} cannot be decoded: {fault}; {HOW_MENDED}"
      )
    parts.append(rows)
    after_each()
  rows = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
  rows = checked(rows, info, f"{info.dataset}, {info.split}")
  made, data = encode_shard(rows, job.cache, index)
  return put_shard(job.out, job.cache, made, data)
