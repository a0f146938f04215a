"""Noisy counts of what weights get right that others do not."""

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.linear_dp.statistics.gains import (
  SecretGains,
  count_gains,
  gain_sensitivity,
  release_gains,
)
from tests.linear_dp.blocks import random_block, steps_of

N, D, K = 200, 6, 4


@pytest.mark.parametrize("float64", [True, False])
@pytest.mark.parametrize("devices", [1, 8])
def test_against_numpy(devices, float64, small_chunks, monkeypatch):
  platforms = ("cpu",) if float64 else ()
  monkeypatch.setattr(unit_norm_rows, "FLOAT64_PLATFORMS", platforms)
  block = random_block(N, D, K)
  block.embedding[:20] = 0  # null rows, and labels that all weights give them
  block.embedding_norm[:20] = 0
  block.label[:20] = 0
  kernels = np.random.default_rng(1).standard_normal((4, D, K))
  right = (block.embedding @ kernels).argmax(axis=2) == block.label
  gains = right[1:].astype(int).sum(axis=1) - right[0].sum()
  secret = count_gains(steps_of(block, devices, num_classes=K), kernels)
  assert len(set(gains.tolist())) == 3
  assert (secret.secret_gains.tolist(), secret.count_steps) == (
    gains.tolist(),
    1,
  )
  assert release_gains(secret, 1.0, None).tolist() == gains.tolist()


@pytest.mark.parametrize("steps", [1, 2**20])
def test_noise_is_of_the_deviation_in_units(steps):
  given = SecretGains(
    secret_gains=np.full(40_000, 7 * steps), count_steps=steps
  )
  noise = release_gains(given, 30.0, NoiseSource(1)) - 7
  assert not (noise * steps % 1).any()
  assert noise.std() == pytest.approx(30, rel=0.02)
  assert abs(noise.mean()) < 0.6


def test_sensitivity():
  """A row that all new weights get right and the old do not, or the reverse."""
  special, replace = (
    gain_sensitivity(NeighboringRelation[name], 9)
    for name in ("REPLACE_SPECIAL", "REPLACE_ONE")
  )
  assert replace == 2 * special
  assert 3 <= special == pytest.approx(3)
