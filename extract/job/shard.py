"""Makes a shard of the cache from a range of the source: one unit of work.

Threads decode and resize ahead of the devices, which see one shape of batch
only. The place of an image in its batch follows from its index, and an image
that cannot be decoded leaves its place empty: so no image moves another's bits.
"""

import importlib.metadata
import itertools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, UInt8

from oneshot_dp.configs.errors import BrokenImageError
from oneshot_dp.configs.extract_config import (
  DISTINCT_IMAGE,
  EXAMPLE,
  MAX_PIXELS,
  ExtractConfig,
)
from oneshot_dp.extract.backbones.backbone import Backbone, load_backbone
from oneshot_dp.extract.cache.format import CacheInfo, Rows, Shard
from oneshot_dp.extract.cache.keys import image_units
from oneshot_dp.extract.cache.row_values import validate_and_cast_rows
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  encode_shard,
  load_existing_shard,
  put_shard,
)
from oneshot_dp.extract.images import (
  DecodeError,
  Preprocessing,
  decoded,
  image_key,
  random_view,
  resize_and_crop,
)
from oneshot_dp.extract.sources.source import Source
from oneshot_dp.extract.threads import prefetch_map

# Larger batches do not fit into the fast memory. On a CPU, a ViT-Ti/16 is 1.4
# times slower at 64 than at 16, measured. On a v5e, the compiler expects 1.2
# times as many images/s from a ViT-B/16 at 64 as at 256.
IMAGES_PER_DEVICE = {"cpu": 16, "tpu": 64, "gpu": 256}
_BATCHES_AHEAD = 3
_MAX_CHUNK = 8
"""Images per task of a thread, at most."""
VIEW_MIN_AREA = 0.08
"""The smallest share of an image that a view may show."""
_LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "pillow", "simplejpeg")
BROKEN_IMAGE_ADVICE = (
  "fix or remove what is broken (`oneshot-dp inspect` names it all) and remove"
  " what is at --out, or pass --on-decode-error skip."
)


class Embedder:
  """A backbone on all local devices, with the images sharded over them.

  Attributes:
    backbone: what it runs.
    batch_size: images per call: the size asked for (by default what
      `IMAGES_PER_DEVICE` says for each device), rounded up to a multiple of the
      number of devices.
  """

  def __init__(self, backbone: Backbone, batch_size: int | None = None):
    devices = jax.local_devices()
    if batch_size is None:
      per_device = IMAGES_PER_DEVICE.get(devices[0].platform, 256)
    else:
      per_device = -(-batch_size // len(devices))
    self.backbone = backbone
    self.batch_size = per_device * len(devices)
    mesh = Mesh(np.array(devices), ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    self._sharded = NamedSharding(mesh, PartitionSpec("data"))
    self._params = jax.device_put(backbone.params, replicated)
    self._apply = jax.jit(
      backbone.apply,
      in_shardings=(replicated, self._sharded),
      out_shardings=self._sharded,
    )

  def __call__(
    self, images: UInt8[np.ndarray, "rows h w 3"]
  ) -> Float[Array, "batch d"]:
    """Starts one batch of up to `batch_size` images, and does not wait for it.

    Args:
      images: resized images; fewer than `batch_size` are padded with zeros.

    Returns:
      Embeddings, of which only the first `rows` count.
    """
    num_missing = self.batch_size - len(images)
    padded = np.pad(images, [(0, num_missing), (0, 0), (0, 0), (0, 0)])
    batch = jax.device_put(padded, self._sharded)
    return self._apply(self._params, batch)


class BrokenImage(NamedTuple):
  """An image that cannot be decoded.

  Attributes:
    index: its place in the source.
    display_path: which image it is, for messages.
    fault: what is wrong with it.
  """

  index: int
  display_path: str
  fault: str


class Batch(NamedTuple):
  """The embeddings of some images, in the order of the source.

  Attributes:
    rows: columns embedding f32 [r, d], label, example_id (the index in the
      source), image_key, and unit_id where the source has units.
    broken: those that cannot be decoded; they have no row.
  """

  rows: Rows
  broken: tuple[BrokenImage, ...]


class _Prepared(NamedTuple):
  """One example, ready for the devices; `images` are blank if it is broken."""

  index: int
  label: int
  key: np.ndarray
  unit: int | list[int] | None
  divisor: int | None
  images: list[np.ndarray]
  broken: BrokenImage | None


def embed(
  source: Source,
  indices: range,
  embedder: Embedder,
  views: int | None = None,
  max_pixels: int = MAX_PIXELS,
) -> Iterator[Batch]:
  """Embeds a range of a source, in order, each example once.

  *Formal guarantees*: an embedding is a function of its image, its index and
  the machine alone. No bit of it depends on other images, or on whether one of
  them is missing.

  Args:
    source: where the examples are.
    indices: which of them to embed.
    embedder: the backbone on this process's devices.
    views: how many random views of each image to average over; None: the
      center of each.
    max_pixels: images that have more are broken.

  Yields:
    Rows and broken images, in the order of the indices.
  """
  # Two levels of work overlap here. Threads decode and resize the images of the
  # next few batches (in `_start_batches`), and the devices compute a batch
  # while the host turns the results of the one before it into rows: so a
  # result is waited for only once the next batch was started.
  pending = None
  for started in _start_batches(source, indices, embedder, views, max_pixels):
    if pending is not None:
      yield _collect(*pending, source.unit)
    pending = started
  if pending is not None:
    yield _collect(*pending, source.unit)


def _start_batches(
  source: Source,
  indices: range,
  embedder: Embedder,
  views: int | None,
  max_pixels: int,
) -> Iterator[tuple[list[_Prepared], list[jax.Array]]]:
  """Examples, and the embeddings of all their images, as yet uncomputed."""
  # All views of an example are in one group, since a row is their mean. A group
  # of one example may take several batches.
  images_per_example = views or 1
  batch_size = embedder.batch_size
  group_size = max(1, batch_size // images_per_example)
  max_ahead = _BATCHES_AHEAD * group_size
  num_threads = os.cpu_count() or 1
  preprocessing = embedder.backbone.preprocessing

  def prepare(index: int) -> _Prepared:
    return _prepare(source, index, preprocessing, views, max_pixels)

  prepared = prefetch_map(
    prepare,
    indices,
    max_ahead,
    num_threads,
    items_per_task=max(1, min(_MAX_CHUNK, max_ahead // (2 * num_threads))),
  )
  while True:
    group = list(itertools.islice(prepared, group_size))
    if not group:
      return
    images = np.stack([image for example in group for image in example.images])
    results = []
    for start in range(0, len(images), batch_size):
      results.append(embedder(images[start : start + batch_size]))
    yield group, results


def _prepare(
  source: Source,
  index: int,
  preprocessing: Preprocessing,
  views: int | None,
  max_pixels: int,
) -> _Prepared:
  """Reads, decodes and resizes one example."""
  label, image, unit, divisor = source[index]
  key = image_key(image)
  images: list[np.ndarray] = []
  broken = None
  try:
    with decoded(image, preprocessing.bit_depth, max_pixels) as result:
      if views is None:
        images.append(resize_and_crop(result.pixels, preprocessing))
      seed = int.from_bytes(key.tobytes(), "little")
      for view in range(views or 0):
        images.append(
          random_view(result.pixels, seed, view, VIEW_MIN_AREA, preprocessing)
        )
      del result  # while it counts: the next image is decoded at once
  except DecodeError as e:
    size = preprocessing.image_size
    images = [np.zeros((size, size, 3), np.uint8)] * (views or 1)
    broken = BrokenImage(index, source.display_path(index), str(e))
  return _Prepared(index, label, key, unit, divisor, images, broken)


def _collect(
  group: list[_Prepared], results: list[jax.Array], unit: str
) -> Batch:
  """Waits for the embeddings of a group, and makes rows of them."""
  embedding = np.concatenate([np.asarray(result) for result in results])
  num_views = len(group[0].images)
  # Without the padding; the mean over views is taken in float64.
  by_view = embedding[: len(group) * num_views]
  by_view = by_view.reshape(len(group), num_views, -1)
  mean = by_view.mean(axis=1, dtype=np.float64).astype(np.float32)
  rows = {
    "embedding": mean,
    "label": np.array([example.label for example in group], np.int32),
    "example_id": np.array([example.index for example in group], np.int64),
    "image_key": np.array([example.key for example in group], np.uint64),
  }
  if unit == DISTINCT_IMAGE:
    # The owner of a row is its image, which is known only now that it was read.
    rows["unit_id"] = image_units(rows["image_key"])
  elif unit != EXAMPLE:
    rows["unit_id"] = np.array([example.unit for example in group], np.int64)
  if group[0].divisor is not None:
    rows["weight_divisor"] = np.array([e.divisor for e in group], np.uint32)
  is_whole = [example.broken is None for example in group]
  rows = {name: column[is_whole] for name, column in rows.items()}
  broken = [example.broken for example in group if example.broken is not None]
  return Batch(rows, tuple(broken))


def embed_images(
  source: Source, backbone: Backbone, max_pixels: int = MAX_PIXELS
) -> Iterator[Batch]:
  """Embeds all images of a source in order, on the local devices; see `embed`.

  Args:
    source: where the images are.
    backbone: the network, from `load_backbone`.
    max_pixels: images that have more are broken.
  """
  embedder = Embedder(backbone)
  return embed(source, range(len(source)), embedder, max_pixels=max_pixels)


class Job(NamedTuple):
  """An extraction job, as a process that has a part in it knows it.

  Attributes:
    out: the directory of the cache.
    config: the request.
    cache: what identifies the job in the directory.
    source: the images.
    embedder: the backbone on this process's devices.
    read_part: reads the part of the source that belongs to a shard, in a
      process where `source` has no examples; None where it has all of them.
  """

  out: str
  config: ExtractConfig
  cache: CacheJob
  source: Source
  embedder: Embedder
  read_part: Callable[[int], Source] | None = None


def load_embedder(config: ExtractConfig) -> Embedder:
  """Loads the backbone of a job onto this process's devices."""
  backbone = load_backbone(
    config.backbone,
    config.weights,
    config.weights_sha256,
    config.embedding,
    config.compute_dtype,
    config.preprocess,
  )
  return Embedder(backbone, config.batch_size)


def compute_environment(
  backbone: Backbone, config: ExtractConfig
) -> dict[str, Any]:
  """Returns what decides how embeddings are rounded, beside the device."""
  versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
  return {
    "compute_dtype": backbone.compute_dtype,
    "batch_size": config.batch_size,
    "libraries": versions,
  }


def shard_order(info: CacheInfo) -> list[int]:
  """All shards of a cache, in a random order.

  Two jobs at once share the work: each looks whether a shard exists before it
  makes it. In the same order both would make every shard at the same time.
  """
  order = list(range(info.num_shards))
  random.SystemRandom().shuffle(order)
  return order


def extract_shard(
  job: Job, index: int, after_batch: Callable[[], object] = lambda: None
) -> Shard:
  """Makes a shard, unless it exists, and describes it.

  Args:
    job: the job.
    index: the number of the shard.
    after_batch: called after each batch; it may raise to stop the work.

  Returns:
    The description of what is in the directory now.

  Raises:
    BrokenImageError: an image cannot be decoded, and is not to be skipped.
    InputError: the source or `out` is at fault.
    RunError: a store or a disk failed, or `out` is another job's.
  """
  # The same shard may be asked for twice, by another worker or after a crash:
  # what is there is described again, and nothing is computed.
  info = job.cache.info
  existing = load_existing_shard(job.out, job.cache, info.shard_name(index))
  if existing is not None:
    return existing
  source = job.source
  if job.read_part is not None:
    source = job.read_part(index)
  parts = []
  indices = info.shard_range(index)
  batches = embed(
    source, indices, job.embedder, job.config.views, job.config.max_pixels
  )
  for batch in batches:
    if batch.broken and job.config.on_decode_error == "fail":
      first = batch.broken[0]
      raise BrokenImageError(
        f"{first.display_path} cannot be decoded: {first.fault};"
        f" {BROKEN_IMAGE_ADVICE}"
      )
    parts.append(batch.rows)
    after_batch()
  rows = {}
  for name in parts[0]:
    rows[name] = np.concatenate([part[name] for part in parts])
  rows = validate_and_cast_rows(rows, info, f"{info.dataset}, {info.split}")
  shard, data = encode_shard(rows, job.cache, index)
  return put_shard(job.out, job.cache, shard, data)
