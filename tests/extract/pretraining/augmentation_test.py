import jax
import numpy as np
import pytest

from oneshot_dp.extract.pretraining import augmentation
from oneshot_dp.extract.pretraining.augmentation import (
  IMAGE_SIZE,
  augment,
  draw,
)
from oneshot_dp.extract.pretraining.glyphs import Glyphs, written_glyphs

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def glyphs() -> Glyphs:
  return written_glyphs(1, seed=0)


def images(glyphs: Glyphs, seed: int) -> np.ndarray:
  draws = draw(np.random.default_rng(seed), len(glyphs))
  return np.asarray(jax.jit(augment)(draws, glyphs.maps, glyphs.is_written))


def test_a_seed_fixes_the_images(glyphs):
  first = images(glyphs, 0)
  np.testing.assert_array_equal(images(glyphs, 0), first)
  assert (np.abs(images(glyphs, 1) - first).max(axis=(1, 2)) > 0.05).all()


def test_every_image_shows_a_glyph(glyphs):
  shown = images(glyphs, 0)
  assert shown.shape == (len(glyphs), IMAGE_SIZE, IMAGE_SIZE)
  assert shown.min() >= 0
  assert shown.max() <= 1
  assert (np.ptp(shown, axis=(1, 2)) > 0.15).all()


def test_reducing_keeps_the_mean():
  row = np.random.default_rng(0).random(IMAGE_SIZE)
  for side in set(augmentation.RESOLUTIONS):
    means = augmentation._means(IMAGE_SIZE, side)
    assert (means @ row).mean() == pytest.approx(row.mean())
