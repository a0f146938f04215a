import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from configs.errors import InputError
from configs.schema import (
  ArraysSource,
  BackboneConfig,
  ExtractConfig,
  PreprocessConfig,
)
from extract.backbones.registry import Backbone, load_backbone
from extract.embed import (
  EmbeddedBatch,
  Embedder,
  decode_pool,
  embed_range,
)
from extract.source import Example, open_source
from tests.extract.image_jobs import array_job, pixels

DEVICES = 8
UNREADABLE = b"not an image"


class Memory:
  """A source of 4 x 4 images, each filled with its index."""

  name: str = "memory"
  version: str = ""
  class_names: tuple[str, ...] = ("even", "odd")

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


def first_pixel(on_trace: Callable[[], object] = lambda: None) -> Backbone:
  """An embedding that tells which image it is of: (index, 1)."""

  def apply(params: dict, images: jax.Array) -> jax.Array:
    on_trace()
    value = images[:, 0, 0, :1].astype(jnp.float32)
    return jnp.concatenate([value, jnp.ones_like(value)], axis=1) * params["a"]

  return Backbone(
    name="first_pixel",
    layer="-",
    feature_dim=2,
    weights_sha256="-",
    params={"a": np.float32(1)},
    apply=apply,
  )


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


@pytest.mark.parametrize(
  ("asked", "used"), [(1, 8), (8, 8), (9, 16), (64, 64), (None, 128)]
)
def test_batches_divide_among_the_devices(asked, used):
  assert jax.local_device_count() == DEVICES
  assert Embedder(first_pixel(), asked).batch_size == used


@pytest.mark.parametrize("size", [0, -8])
def test_no_batch_at_all_is_refused(size):
  with pytest.raises(InputError, match=rf"batch_size={size} must be"):
    config(batch_size=size)


def test_rows_are_sharded_over_all_devices(embedder):
  result = embedder(np.zeros((5, 4, 4, 3), np.uint8))
  assert {s.data.shape for s in result.addressable_shards} == {(1, 2)}
  assert len({s.device for s in result.addressable_shards}) == DEVICES


@pytest.mark.parametrize("make", ["random_patches", "attention"])
def test_eight_devices_equal_one(make):
  backbone = attention() if make == "attention" else random_patches()
  images = pixels(16)
  alone = jax.jit(backbone.apply)(backbone.params, images)
  assert len(alone.devices()) == 1
  many = Embedder(backbone, 16)(images)
  np.testing.assert_allclose(many, alone, rtol=0, atol=2e-6)


def random_patches() -> Backbone:
  return load_backbone(
    BackboneConfig(name="random_patches"), PreprocessConfig(image_size=8)
  )


def attention() -> Backbone:
  """Mixes everything within an image, and nothing between images."""

  def apply(params: dict, images: jax.Array) -> jax.Array:
    tokens = images.reshape(len(images), 64, 3) / 255 @ params["in"]
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", tokens, tokens))
    return jnp.einsum("bqk,bkd->bqd", weights, tokens).mean(axis=1)

  kernel = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
  return Backbone(
    name="attention",
    layer="-",
    feature_dim=32,
    weights_sha256="-",
    params={"in": kernel},
    apply=apply,
  )


@pytest.mark.parametrize("batch_size", [8, 24, 64])
def test_embeddings_do_not_depend_on_batch_size_or_padding(
  tmp_path, batch_size
):
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
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_every_example_once_and_in_order(embedder, start, length, bad):
  indices = range(start, start + length)
  with decode_pool(config()) as threads:
    found = list(
      embed_range(
        Memory(100, bad),
        indices,
        embedder,
        config(on_decode_error="skip"),
        threads,
      )
    )
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


def test_it_decodes_on_many_threads_at_once(embedder, pool):
  together = threading.Barrier(3, timeout=20)
  names = set()

  def read(index: int) -> None:
    names.add(threading.current_thread().name)
    if index < 3:
      together.wait()  # raises, unless three are in here at the same time

  assert list(
    embed_range(Memory(8, on_read=read), range(8), embedder, config(), pool)
  )
  assert all(name.startswith("decode") for name in names)


def test_it_decodes_ahead_of_the_consumer_but_not_without_bound(embedder, pool):
  read = []
  source = Memory(400, on_read=read.append)
  batches = embed_range(source, range(400), embedder, config(), pool)
  next(batches)
  # Nobody asks for more, yet more is decoded; wait until no more comes.
  while not settled(read):
    pass
  batch = embedder.batch_size
  assert 3 * batch <= len(read) <= 6 * batch
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


def test_threads_are_as_configured():
  with decode_pool(config(decode_threads=5)) as threads:
    assert threads._max_workers == 5


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


def test_a_batch_without_any_image_needs_no_device(embedder, pool):
  source = Memory(4, frozenset(range(4)))
  skip = config(on_decode_error="skip")
  (batch,) = embed_range(source, range(4), embedder, skip, pool)
  assert batch.rows.embedding.shape == (0, 2)
  assert len(batch.skipped) == 4
