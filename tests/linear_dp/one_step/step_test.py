import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.release import Release
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer, one_step

K, D, N = 6, 15, 1000


def make_release(train_bias=False, noise_sd=3e6, seed=0, zeros=0):
  grid = ClippedGradientGrid(
    num_classes=K, feature_dim=D, train_bias=train_bias
  )
  rng = np.random.default_rng(seed)
  noisy = np.rint(rng.standard_normal((K, grid.row_dim)) * 3e7).astype(np.int64)
  noisy[:, :zeros] = 0
  return Release(
    noisy_sum=noisy,
    grid=grid,
    num_examples=N,
    draw=0,
    statement=PrivacyStatement(
      epsilon=1.0,
      delta=1e-6,
      noise_multiplier=3.0 if noise_sd else 0.0,
      sensitivity=1e6,
      noise_sd=noise_sd,
      neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
      noise_source="os.urandom" if noise_sd else "none: NOT PRIVATE",
      is_private=noise_sd > 0,
    ),
  )


@pytest.mark.parametrize("name", ["lamb", "adam"])
@pytest.mark.parametrize("multiple", [0.5, 2.0])
def test_eps_in_units_of_the_noise(name, multiple):
  release = make_release()
  sd = release.statement.noise_sd * release.grid.step / N
  assert release.gradient_noise_sd == pytest.approx(sd, rel=1e-12)
  in_sds = one_step(
    release, OneStepOptimizer(name=name, eps=123.0, eps_in_noise_sds=multiple)
  )
  plain = one_step(release, OneStepOptimizer(name=name, eps=multiple * sd))
  np.testing.assert_array_equal(in_sds.kernel, plain.kernel)
  mean = release.mean_gradient.T
  expected = -mean / (np.abs(mean) + multiple * sd)
  np.testing.assert_allclose(in_sds.kernel, expected, rtol=2e-5)


@pytest.mark.parametrize("name", ["lamb", "adam"])
@pytest.mark.parametrize(
  "options",
  [{"eps": 0.0}, {"eps_in_noise_sds": 2.0}, {"eps_in_noise_sds": 0.0}],
)
def test_no_eps_is_the_sign_and_a_zero_gradient_stays(name, options):
  """A feature that is always zero, and a baseline, which has no noise."""
  release = make_release(noise_sd=0.0, zeros=3)
  head = one_step(release, OneStepOptimizer(name=name, **options))
  assert not head.kernel[:3].any()
  expected = -np.sign(release.mean_gradient.T)
  np.testing.assert_allclose(head.kernel, expected, rtol=1e-5)


@pytest.mark.parametrize(
  ("field", "value"),
  [
    ("learning_rate", 0.0),
    ("learning_rate", -1.0),
    ("learning_rate", math.nan),
    ("learning_rate", math.inf),
    ("eps", -1e-9),
    ("eps", math.nan),
    ("eps", math.inf),
    ("eps_in_noise_sds", -1.0),
    ("eps_in_noise_sds", math.nan),
  ],
)
def test_bad_values_are_refused(field, value):
  with pytest.raises(InputError, match=f"{field}={value} must be"):
    OneStepOptimizer(**{field: value})
