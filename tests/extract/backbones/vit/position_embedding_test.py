import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from oneshot_dp.extract.backbones.vit.position_embedding import (
  bicubic_weights,
  is_square,
  resize_grid,
)

WAYS = ("bilinear", "bicubic", "bicubic_antialias")


@pytest.mark.parametrize("how", WAYS)
def test_positions_of_the_same_size_are_untouched(how):
  positions = np.ones((9, 2), np.float32)
  assert resize_grid(positions, 9, how) is positions


@pytest.mark.parametrize("new", [2, 5, 7])
def test_bilinear_keeps_the_corners_on_the_corners(new):
  def surfaces(side: int) -> np.ndarray:
    y, x = np.mgrid[:side, :side] / (side - 1)
    planes = np.stack([x, y, x * y, 1 - x, x + 2 * y, x - y], axis=-1)
    return planes.reshape(-1, 6).astype(np.float32)

  # A bilinear surface is reproduced exactly between its own corners.
  got = resize_grid(surfaces(3), new**2, "bilinear")
  np.testing.assert_allclose(got, surfaces(new), atol=1e-6)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("old", "new"), [(1, 4), (4, 1), (3, 8), (37, 16)])
def test_rows_stay_rows(how, old, new):
  positions = np.zeros((old, old, 2), np.float32)
  positions[..., 0], positions[..., 1] = 5, np.arange(old)[:, None]
  got = resize_grid(positions.reshape(-1, 2), new**2, how)
  assert got.shape == (new**2, 2)
  assert got.dtype == np.float32
  grid = got.reshape(new, new, 2)
  np.testing.assert_allclose(grid[..., 0], 5, rtol=1e-5)
  rows = np.repeat(grid[:, :1, 1], new, axis=1)
  np.testing.assert_allclose(grid[..., 1], rows, atol=1e-5)
  assert old == 1 or (np.diff(grid[:, 0, 1]) > 0).all()


SIDES = st.integers(1, 40)


@given(SIDES, SIDES, st.booleans())
def test_weights_sum_to_one_and_are_symmetric(old, new, antialias):
  weights = bicubic_weights(old, new, antialias)
  np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
  np.testing.assert_allclose(weights, weights[::-1, ::-1], atol=1e-12)


def test_bicubic_is_keys_kernel_with_pytorch_s_constant():
  # Half way between two samples; at the edge the outermost counts twice.
  inner = np.array([-3, 19, 19, -3]) / 32
  weights = bicubic_weights(8, 4, antialias=False)
  np.testing.assert_allclose(weights[1, 1:5], inner)
  np.testing.assert_allclose(weights[0, :3], [16 / 32, 19 / 32, -3 / 32])


@given(SIDES, SIDES)
def test_antialiased_bicubic_is_pillow_s(old, new):
  grid = np.random.default_rng(0).standard_normal((old, old), np.float32)
  bicubic = Image.Resampling.BICUBIC
  expected = np.asarray(Image.fromarray(grid).resize((new, new), bicubic))
  got = resize_grid(grid.reshape(-1, 1), new**2, "bicubic_antialias")
  np.testing.assert_allclose(got.reshape(new, new), expected, atol=2e-5)


def test_squares():
  squares = [n for n in range(-3, 30) if is_square(n)]
  assert squares == [1, 4, 9, 16, 25]
