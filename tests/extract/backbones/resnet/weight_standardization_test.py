import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.extract.backbones.resnet.weight_standardization import (
  standardize,
)


@hypothesis.given(
  seed=st.integers(0, 2**16),
  mean=st.floats(-100, 100),
  spread=st.floats(1e-2, 100),
  gain=st.floats(0.1, 10),
)
def test_every_output_channel_has_mean_0_and_variance_gain_squared(
  seed, mean, spread, gain
):
  rng = np.random.default_rng(seed)
  kernel = rng.normal(mean, spread, size=(3, 3, 4, 5)).astype(np.float32)
  got = standardize(kernel, 1e-10, gain).astype(np.float64)
  np.testing.assert_allclose(got.mean(axis=(0, 1, 2)), 0, atol=1e-5 * gain)
  np.testing.assert_allclose(got.std(axis=(0, 1, 2)), gain, rtol=1e-4)


def test_epsilon_is_added_to_the_variance():
  kernel = np.array([[-0.5, -2.0], [0.5, 2.0]], np.float32)
  got = standardize(kernel, 0.75)
  want = kernel / np.sqrt([0.25 + 0.75, 4 + 0.75])
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_gain_is_per_output_channel():
  kernel = np.random.default_rng(0).normal(size=(1, 1, 6, 3))
  gain = np.array([1.0, -2.0, 0.0])
  got = standardize(kernel, 1e-5, gain)
  np.testing.assert_allclose(got, standardize(kernel, 1e-5) * gain, rtol=1e-6)


def test_a_constant_channel_becomes_0():
  assert not standardize(np.full((3, 3, 2, 2), 0.1, np.float32), 1e-10).any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_dtypes_are_computed_in_float64(dtype):
  kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 4)).astype(dtype)
  got = standardize(kernel, 1e-5)
  assert got.dtype == np.float32
  assert got.flags.c_contiguous
  np.testing.assert_array_equal(
    got, standardize(kernel.astype(np.float64), 1e-5)
  )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so_to_be_refused(bad):
  kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 2))
  kernel[0, 0, 0, 1] = bad
  got = standardize(kernel, 1e-10)
  assert np.isfinite(got[..., 0]).all()
  assert np.isnan(got[..., 1]).all()
