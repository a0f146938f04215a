"""From images to embeddings: decode on threads, embed on the devices.

The host decodes and resizes ahead of the devices, which see one batch shape
only. Images flow in the order of the source; with views, the views of an
image follow one another, and a batch may end between them.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from oneshot_dp.configs.errors import BrokenImageError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT, ExtractConfig
from oneshot_dp.configs.split_part import SplitPart
from oneshot_dp.extract.cache.checked_rows import Outside, Rows, Skipped
from oneshot_dp.extract.cache.content_keys import image_key, image_keys, in_part
from oneshot_dp.extract.images.preprocess import (
  DecodeError,
  decode_image,
  resize_and_crop,
)
from oneshot_dp.extract.images.views import random_view
from oneshot_dp.extract.job.embedder import Embedder
from oneshot_dp.extract.job.stage_times import StageTimes
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.extract.sources.example import Source, shortened

_BATCHES_AHEAD = 2
_AT_ONCE = 16
"""Images of one task, at most: a task costs what a tiny image does."""
_LOOKED_AT = 100_000  # for other broken images: minutes, not days
_WHAT_TO_DO = (
  "Mend what is broken (`oneshot-dp inspect` of a folder, or of a Parquet,"
  " Arrow or tar file, names it all); or remove it, and --out with it; or pass"
  " --on-decode-error skip."
)
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddedBatch:
  """What one device call gave, in the order of the source, padding gone.

  `times` say where the time went since the batch before.
  """

  rows: Rows
  skipped: tuple[Skipped, ...]
  outside: Outside
  image_bytes: int
  times: StageTimes


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Prepared:
  """One example, with its centre or views; none if it is not to be embedded."""

  example_id: int
  label: int
  unit_id: int | None
  key: int
  is_outside: bool
  images: tuple[np.ndarray, ...]
  image_bytes: int
  read_seconds: float
  decode_seconds: float


_Batch = tuple[list[np.ndarray], list[_Prepared]]
"""Images of one device call, and the examples that are complete with it."""


def decode_pool(config: ExtractConfig) -> concurrent.futures.ThreadPoolExecutor:
  """The threads that decode and resize; one per core unless configured."""
  return concurrent.futures.ThreadPoolExecutor(_threads(config), "decode")


def _threads(config: ExtractConfig) -> int:
  return config.decode_threads or os.cpu_count() or 1


def embed_range(
  source: Source,
  indices: range,
  embedder: Embedder,
  config: ExtractConfig,
  pool: concurrent.futures.ThreadPoolExecutor,
) -> Iterator[EmbeddedBatch]:
  """Embeds a range of a source, in order, each example once.

  Yields one item per device batch, some without rows; raises BrokenImageError
  where an image cannot be decoded and the job is to fail on it.
  """
  part = SplitPart.of(config.split)
  preprocessing = embedder.backbone.preprocessing
  square = (preprocessing.image_size, preprocessing.image_size, 3)
  views = config.views or 1
  ahead = max(
    -(-embedder.batch_size * (_BATCHES_AHEAD + 1) // views), _threads(config)
  )
  waited = 0.0

  def prepare(index: int) -> _Prepared:
    start = time.perf_counter()
    example = source[index]
    read = time.perf_counter()
    image, key, whose = example.image, image_key(example.image), None
    if example.unit_id is not None:
      whose = np.array([example.unit_id], np.int64)
    is_in = part.is_whole or in_part(part, image_keys([key]), whose)[0]
    try:
      images = shown(image, key) if is_in else ()
    except DecodeError as error:
      if config.on_decode_error == "fail":
        raise BrokenImageError(
          f"{source.where(index)} (example_id={example.example_id}) cannot be"
          f" decoded: {error}. {_WHAT_TO_DO}"
        ) from error
      images = ()
    return _Prepared(
      example_id=example.example_id,
      label=example.label,
      unit_id=example.unit_id,
      key=key,
      is_outside=not is_in,
      images=images,
      image_bytes=len(image) if isinstance(image, bytes) else image.nbytes,
      read_seconds=read - start,
      decode_seconds=time.perf_counter() - read,
    )

  def shown(image: bytes | np.ndarray, key: int) -> tuple[np.ndarray, ...]:
    pixels = decode_image(image)
    if config.views is None:
      return (resize_and_crop(pixels, preprocessing),)
    return tuple(
      random_view(pixels, key, view, config.min_area, preprocessing)
      for view in range(config.views)
    )

  def on_the_devices() -> Iterator[tuple[_Batch, jax.Array]]:
    nonlocal waited
    prepared = _in_order(prepare, indices, pool, ahead, _threads(config))
    batches = _batches(prepared, embedder.batch_size)
    while True:
      start = time.perf_counter()
      batch = next(batches, None)
      waited += time.perf_counter() - start
      if batch is None:
        return
      images = np.array(batch[0], np.uint8).reshape(-1, *square)
      yield batch, embedder(images)

  partial = np.empty((0, embedder.backbone.feature_dim), np.float32)
  start = time.perf_counter()
  # A result is waited for once the next batch is on its way.
  on_their_way: Iterator[Any] = itertools.chain(on_the_devices(), [None])
  for ((images, finished), result), _ in itertools.pairwise(on_their_way):
    made = np.concatenate([partial, np.asarray(result)[: len(images)]])
    whole = len(made) // views * views
    partial = made[whole:]
    of_views = made[:whole].reshape(-1, views, made.shape[1])
    seconds = time.perf_counter() - start
    kept = [example for example in finished if example.images]
    units = None
    if source.privacy_unit != EXAMPLE_UNIT:
      units = np.array([e.unit_id for e in kept], np.int64)
    yield EmbeddedBatch(
      rows=Rows(
        embedding=of_views.mean(axis=1, dtype=np.float64).astype(np.float32),
        label=np.array([e.label for e in kept], np.int64),
        example_id=np.array([e.example_id for e in kept], np.int64),
        unit_id=units,
        image_key=image_keys([e.key for e in kept]),
      ),
      skipped=tuple(
        Skipped(e.example_id)
        for e in finished
        if not (e.images or e.is_outside)
      ),
      outside=Outside(sum(e.is_outside for e in finished)),
      image_bytes=sum(e.image_bytes for e in finished),
      times=StageTimes.waiting(
        seconds=waited,
        read=sum((e.read_seconds for e in finished), 0.0),
        decode=sum((e.decode_seconds for e in finished), 0.0),
        backbone=seconds - waited,
      ),
    )
    waited, start = 0.0, time.perf_counter()


def check_decodes(source: Source, config: ExtractConfig) -> None:
  """Raises BrokenImageError that names them, where several are broken.

  Ctrl-C ends the search with those that were found.
  """

  def is_broken(index: int) -> bool:
    try:
      decode_image(source[index].image)
    except DecodeError:
      return True
    return False

  indices, broken = range(len(source))[:_LOOKED_AT], []
  with (
    contextlib.suppress(KeyboardInterrupt),
    decode_pool(config) as pool,
    step_bar("look for other broken images", "image", len(indices)) as bar,
  ):
    threads = _threads(config)
    looks = _in_order(is_broken, indices, pool, 2 * threads, threads)
    for index, found in enumerate(looks):
      broken += [source.where(index)] * found
      bar.update()
  if broken[1:]:
    raise BrokenImageError(
      f"{len(broken):,} of {len(indices):,} images cannot be decoded:"
      f" {shortened(broken)}. {_WHAT_TO_DO}"
    )


def _in_order(
  prepare: Callable[[int], _T],
  indices: range,
  pool: concurrent.futures.ThreadPoolExecutor,
  ahead: int,
  threads: int,
) -> Iterator[_T]:
  """`map` over a pool that runs at most `ahead` items before the consumer."""
  # Four tasks for each thread, or more: none waits for the longest.
  size = min(ahead, len(indices)) // (4 * threads)
  size = max(1, min(_AT_ONCE, size))

  def prepare_some(start: int) -> list[_T]:
    return [prepare(index) for index in indices[start : start + size]]

  waiting = collections.deque()
  try:
    for start in range(0, len(indices), size):
      waiting.append(pool.submit(prepare_some, start))
      if len(waiting) >= ahead // size:
        yield from waiting.popleft().result()
    while waiting:
      yield from waiting.popleft().result()
  finally:
    for future in waiting:
      future.cancel()


def _batches(prepared: Iterator[_Prepared], size: int) -> Iterator[_Batch]:
  """Groups of `size` images each, the last smaller."""
  images, finished = [], []
  for example in prepared:
    for number, image in enumerate(example.images, start=1):
      images.append(image)
      if number == len(example.images):
        finished.append(example)
      if len(images) == size:
        yield images, finished
        images, finished = [], []
    if not example.images:
      finished.append(example)
  if images or finished:
    yield images, finished
