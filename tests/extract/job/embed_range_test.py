import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  ArraysSource,
  ExtractConfig,
  PreprocessConfig,
)
from oneshot_dp.extract.backbones.registry import load_backbone
from oneshot_dp.extract.cache.content_keys import image_key
from oneshot_dp.extract.images.preprocess import Preprocessing
from oneshot_dp.extract.images.views import random_view
from oneshot_dp.extract.job.embed_range import (
  EmbeddedBatch,
  check_decodes,
  decode_pool,
  embed_range,
)
from oneshot_dp.extract.job.embedder import Embedder
from oneshot_dp.extract.sources.example import Example
from oneshot_dp.extract.sources.open_source import open_source
from tests.extract.embedders import first_pixel, mean_colour
from tests.extract.image_jobs import array_job, pixels

pytestmark = pytest.mark.usefixtures("quick_compilation")

UNREADABLE = b"not an image"


class Memory:
  """A source of 4 x 4 images, each filled with its index."""

  name: str = "memory"
  version: str = ""
  class_names: tuple[str, ...] = ("even", "odd")
  privacy_unit: str = "example"
  id_source: str = "position"
  listing = b""

  def __init__(
    self,
    n: int,
    bad: frozenset[int] = frozenset(),
    on_read: Callable[[int], object] = lambda index: None,
  ):
    self._n, self._bad, self._on_read = n, bad, on_read

  def __len__(self) -> int:
    return self._n

  def __getitem__(self, index: int) -> Example:
    self._on_read(index)
    image = np.full((4, 4, 3), index % 256, np.uint8)
    return Example(
      example_id=10 * index,
      label=index % 2,
      image=UNREADABLE if index in self._bad else image,
    )

  def where(self, index: int) -> str:
    return f"memory[{index}]"


def config(**changes: Any) -> ExtractConfig:
  fields: dict[str, Any] = {
    "source": ArraysSource(path="-"),
    "preprocess": PreprocessConfig(image_size=4),
    "decode_threads": 3,
  }
  return ExtractConfig(**fields | changes)


@pytest.fixture(scope="module")
def embedder() -> Embedder:
  return Embedder(first_pixel(), batch_size=8)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
  with decode_pool(config()) as threads:
    yield threads


@pytest.mark.parametrize("batch_size", [8, 24, 64])
def test_embeddings_do_not_depend_on_the_batch_size(tmp_path, batch_size):
  images = pixels(37)  # a multiple of none of them
  path = tmp_path / "images.npz"
  np.savez(path, image=images, label=np.zeros(37, int), class_names=["a", "b"])
  job = array_job(path, batch_size=batch_size)
  backbone = load_backbone(job.backbone, job.preprocess)
  with decode_pool(job) as threads:
    found = list(
      embed_range(
        open_source(job.source, "train"),
        range(37),
        Embedder(backbone, batch_size),
        job,
        threads,
      )
    )
  one_by_one = jax.jit(backbone.apply)
  expected = [
    np.asarray(one_by_one(backbone.params, images[i : i + 1])[0])
    for i in range(37)
  ]
  embedding = np.concatenate([batch.rows.embedding for batch in found])
  np.testing.assert_allclose(embedding, expected, rtol=0, atol=2e-6)


@hypothesis.given(
  start=st.integers(0, 40),
  length=st.integers(0, 40),
  bad=st.frozensets(st.integers(0, 80)),
  views=st.sampled_from([None, 1, 5]),
)
@hypothesis.example(start=0, length=4, bad=frozenset(range(4)), views=None)
@hypothesis.example(start=0, length=11, bad=frozenset([0, 3, 4, 10]), views=5)
@hypothesis.settings(max_examples=30, deadline=None)
def test_every_example_once_and_in_order(embedder, start, length, bad, views):
  indices = range(start, start + length)
  job = config(on_decode_error="skip", views=views)
  with decode_pool(job) as threads:
    found = list(embed_range(Memory(100, bad), indices, embedder, job, threads))
  good = [i for i in indices if i not in bad]
  skipped = [s.example_id for batch in found for s in batch.skipped]
  assert skipped == [10 * i for i in indices if i in bad]
  assert joined(found, "example_id") == [10 * i for i in good]
  assert joined(found, "label") == [i % 2 for i in good]
  assert joined(found, "embedding") == [[i, 1] for i in good]
  size = sum(len(UNREADABLE) if i in bad else 48 for i in indices)
  assert sum(batch.image_bytes for batch in found) == size


def joined(batches: list[EmbeddedBatch], name: str) -> list:
  return [row for b in batches for row in getattr(b.rows, name).tolist()]


def test_an_undecodable_image_is_named(embedder, pool):
  source = Memory(20, frozenset([13]))
  with pytest.raises(InputError) as error:
    list(embed_range(source, range(20), embedder, config(), pool))
  assert str(error.value).startswith(
    "memory[13] (example_id=130) cannot be decoded: 12 bytes that are not"
  )
  assert "--on-decode-error skip" in str(error.value)


def test_of_many_broken_images_the_first_are_named():
  with pytest.raises(InputError) as error:
    check_decodes(Memory(30, frozenset(range(25))), config())
  said = str(error.value)
  assert said.startswith("25 of 30 images cannot be decoded: 'memory[0]', ")
  assert "'memory[19]', … (25 in all). Mend" in said
  assert "`oneshot-dp inspect`" in said


@pytest.mark.parametrize("views", [None, 64])
def test_it_decodes_on_many_threads_at_once(embedder, pool, views):
  together = threading.Barrier(3, timeout=20)
  names = set()

  def read(index: int) -> None:
    names.add(threading.current_thread().name)
    if index < 3:
      together.wait()  # raises, unless three are in here at the same time

  source, job = Memory(8, on_read=read), config(views=views)
  assert list(embed_range(source, range(8), embedder, job, pool))
  assert all(name.startswith("decode") for name in names)


@pytest.mark.parametrize("views", [None, 8])
def test_it_decodes_ahead_but_not_without_bound(embedder, pool, views):
  read, job = [], config(views=views)
  source = Memory(400, on_read=read.append)
  batches = embed_range(source, range(400), embedder, job, pool)
  next(batches)
  # Nobody asks for more, yet more is decoded; wait until no more comes. (On a
  # busy machine none may come for a while.)
  batch = embedder.batch_size // (views or 1)  # of images
  deadline = time.monotonic() + 60
  while not settled(read) or (
    len(read) < 3 * batch and time.monotonic() < deadline
  ):
    pass
  assert 3 * batch <= len(read) <= 6 * batch + 3 * (views is not None)
  assert isinstance(batches, Generator)
  batches.close()


def settled(read: list[int]) -> bool:
  before = len(read)
  time.sleep(0.2)
  return len(read) == before


def test_an_abandoned_range_stops_decoding(embedder):
  read = []

  def slowly(index: int) -> None:
    read.append(index)
    time.sleep(0.01)

  source = Memory(400, on_read=slowly)
  with decode_pool(config()) as threads:
    batches = embed_range(source, range(400), embedder, config(), threads)
    next(batches)
    assert isinstance(batches, Generator)
    batches.close()
    at_close = len(read)
  assert len(read) <= at_close + 3  # one may be in each thread's hands


def test_one_compilation_however_many_ranges_and_odd_batches(pool):
  traces = []
  backbone = first_pixel(lambda: traces.append(1))
  embedder = Embedder(backbone, batch_size=16)
  source = Memory(50, frozenset([20, 21]))
  skip = config(on_decode_error="skip")
  # The last batches have 16, 8 (one row for each device), 5 and no rows.
  for indices in (range(16), range(24, 48), range(13, 36), range(20, 22)):
    list(embed_range(source, indices, embedder, skip, pool))
  assert len(traces) == 1


def test_a_row_is_the_mean_over_the_views_of_its_image(pool):
  """Whatever the batches: 3 views of 7 images do not fill batches of 8."""
  images = pixels(7, 12)
  source = Images(images)
  backbone = mean_colour()
  job = config(views=3, view_min_area=0.2)
  expected = [
    np.mean(
      [
        random_view(image, image_key(image), v, 0.2, SQUARE).mean(axis=(0, 1))
        for v in range(3)
      ],
      axis=0,
    )
    for image in images
  ]
  for batch_size in (8, 16, 64):
    found = list(
      embed_range(source, range(7), Embedder(backbone, batch_size), job, pool)
    )
    assert joined(found, "example_id") == list(range(7))
    np.testing.assert_allclose(joined(found, "embedding"), expected, rtol=1e-6)
    assert sum(batch.image_bytes for batch in found) == images.nbytes


def test_it_says_where_the_time_went(embedder, pool):
  def slowly(index: int) -> None:
    time.sleep(0.005)

  shares = [0.0]
  # On a busy machine a thread may wait its turn between two stages.
  while max(shares) <= 0.8 and len(shares) <= 20:
    source = Memory(64, on_read=slowly)
    batches = embed_range(source, range(64), embedder, config(), pool)
    start = time.perf_counter()
    found = list(batches)
    seconds = time.perf_counter() - start
    read = sum(batch.times.read for batch in found)
    rest = sum(batch.times.decode + batch.times.backbone for batch in found)
    assert read > 0.05
    shares.append((read + rest) / seconds)
  assert max(shares) <= 1
  assert max(shares) > 0.8


SQUARE = Preprocessing(image_size=4)


class Images(Memory):
  """A source of given images."""

  def __init__(self, images: np.ndarray):
    super().__init__(len(images))
    self._images = images

  def __getitem__(self, index: int) -> Example:
    return Example(example_id=index, label=0, image=self._images[index])
