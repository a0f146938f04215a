"""`--head lamb`, `adam` and `momentum`: one step, a whole sweep for its ε."""

import math

from oneshot_dp.configs.head_config import HeadConfig
from tests.head_contract import SECOND_DRAW, HeadContract, Kind


class TestLamb(HeadContract):
  kind = Kind(config=HeadConfig(), flags="--head lamb", mechanism="one-step")


def test_the_noise_by_hand(train_cache, sweeps):
  """From first principles: σ, and at least the sensitivity of a row."""
  receipt = sweeps(TestLamb.kind).receipt(SECOND_DRAW)
  p0 = 1 / (1 + math.exp(10))
  residual = math.hypot(1 - p0, p0, p0, p0)
  least = 2**20 * residual + math.sqrt(4 * train_cache.info.feature_dim)
  assert receipt["privacy"]["sensitivity_steps"] >= least
