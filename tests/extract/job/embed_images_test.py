import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from oneshot_dp.configs.extract_config import (
  ArraysSource,
  BackboneConfig,
  ExtractConfig,
  PreprocessConfig,
)
from oneshot_dp.extract.backbones import random_patches
from oneshot_dp.extract.job.embed_images import embed_images
from oneshot_dp.extract.job.job import run_extraction
from tests.extract.image_jobs import columns
from tests.extract.refusals import refused
from tests.extract.tables import png

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 21


@pytest.fixture(scope="module")
def images() -> np.ndarray:
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (N, 10, 12, 3), np.uint8)


@pytest.fixture(scope="module")
def embedded(images) -> np.ndarray:
  return embed_images(images, "random_patches")


def test_is_the_backbone_of_what_pillow_makes_of_each_image(images, embedded):
  squares = np.stack(
    [
      np.asarray(Image.fromarray(i).resize((8, 8), Image.Resampling.BICUBIC))
      for i in images
    ]
  )
  normalised = jnp.asarray(squares, jnp.float32) / 127.5 - 1
  expected = random_patches.apply(random_patches.make_params(), normalised)
  assert embedded.dtype == np.float32
  np.testing.assert_allclose(embedded, expected, atol=1e-5)


def test_is_what_a_job_stores(images, embedded, tmp_path):
  np.savez(tmp_path / "a.npz", image=images, label=np.zeros(N, int))
  config = ExtractConfig(
    source=ArraysSource(path=str(tmp_path / "a.npz"), num_classes=2),
    backbone=BackboneConfig(name="random_patches"),
    embedding_dtype="float32",
  )
  stored = columns(run_extraction(config, tmp_path / "cache").cache)
  np.testing.assert_allclose(embedded, stored["embedding"], atol=1e-6)


@pytest.mark.parametrize("batch_size", [8, 100])
def test_no_image_is_lost_or_moved_by_batches(images, embedded, batch_size):
  found = embed_images(images, "random_patches", batch_size=batch_size)
  assert found.shape == (N, random_patches.FEATURE_DIM)
  np.testing.assert_allclose(found, embedded, atol=1e-5)


def test_takes_encoded_images_and_pixels_of_any_size(images, embedded):
  mixed = [png(images[0]), images[1], images[2][:9, :, :1]]
  found = embed_images(mixed, BackboneConfig(name="random_patches"))
  np.testing.assert_allclose(found[:2], embedded[:2], atol=1e-5)
  assert found.shape == (3, random_patches.FEATURE_DIM)


def test_preprocessing_can_be_changed(images, embedded):
  larger = PreprocessConfig(image_size=12)
  found = embed_images(images, "random_patches", preprocess=larger)
  assert np.abs(found - embedded).max() > 0.01


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"images": []}, "images is empty"),
    ({"images": np.zeros((2, 8, 8, 3))}, r"images\[0\]: .*float64.*uint8"),
    ({"images": np.zeros((2, 8, 8, 4), np.uint8)}, r"images\[0\]: .*8, 4\]"),
    ({"images": [np.zeros((8, 8), np.uint8), b"none"]}, r"\[1\]: 4 bytes that"),
    ({"backbone": "vitt_b16"}, "'vitt_b16' is unknown: did you mean"),
    ({"backbone": "vit_b16"}, "vit_b16 needs pretrained weights"),
    ({"batch_size": 0}, "batch_size=0 must be at least 1"),
  ],
)
def test_refuses_in_one_line(images, changes, message):
  given = {"images": images, "backbone": "random_patches"}
  with refused(message):
    embed_images(**given | changes)
