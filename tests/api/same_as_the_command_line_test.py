"""What a notebook trains is what the command line trains, bit for bit."""

from typing import Any, get_args

import numpy as np
import pytest

import oneshot_dp
from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  RelationName,
  StepsConfig,
)
from oneshot_dp.linear_dp.heads.registry import METHODS
from oneshot_dp.pipeline.training.train_heads import (
  RELATIONS,
  plan_heads,
  train_heads,
)

N, D, K = 300, 7, 3
DELTA, SEED = 1e-4, 11
EPSILONS = (4.0, 1.0)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(5)
  lengths = np.exp(rng.standard_normal((N, 1)))
  embedding = rng.standard_normal((N, D)) * lengths
  return embedding.astype(np.float16), rng.integers(0, K, N)


def check_same(
  data, folder, config, relation: RelationName = "replace-special", units=False
):
  embedding, label = data
  unit_ids = np.arange(N) // 3 if units else None
  cache = oneshot_dp.write_cache(
    folder / "cache",
    embedding,
    label,
    dataset="pets",
    num_classes=K,
    unit_ids=unit_ids,
    unit_name="owner" if units else None,
  )
  privacy = PrivacyConfig(
    delta=DELTA, neighboring_relation=relation, noise_seed=SEED
  )
  plan = plan_heads(config, N, EPSILONS, privacy)
  expected = {
    trained.statement.epsilon: trained
    for trained in train_heads(
      cache, plan, config, privacy, ledger_dir=folder, aloud=False
    )
  }
  given: dict[str, Any] = {
    "num_classes": K,
    "epsilons": EPSILONS,
    "delta": DELTA,
    "head": config,
    "unit_ids": unit_ids,
    "neighboring_relation": RELATIONS[relation],
    "source": oneshot_dp.NoiseSource(SEED),
  }
  heads = oneshot_dp.train_heads(embedding, label, **given)
  for epsilon, head in zip(EPSILONS, heads, strict=True):
    there = expected[epsilon]
    np.testing.assert_array_equal(head.head.kernel, there.head.kernel)
    np.testing.assert_array_equal(head.head.bias, there.head.bias)
    assert head.head.unit_norm == there.head.unit_norm
    assert head.statement == there.statement
    assert head.plan == there.plan
    assert head.receipt()["training"] == there.settings


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_heads_of_every_kind(data, tmp_path, name):
  """Both doors have the same."""
  steps: dict[str, Any] = {}
  if name == "multi-step":
    steps["steps"] = StepsConfig(epochs=3)
  check_same(data, tmp_path, HeadConfig(head=name, **steps))


@pytest.mark.parametrize(
  "settings",
  [
    {"l2_clip_norm": 0.25, "train_bias": True, "eps_in_noise_sds": 2.0},
    {"head": "adam", "initial_bias": -2.0, "eps": 1e-3, "learning_rate": 0.5},
  ],
)
def test_settings_of_one_step(data, tmp_path, settings):
  check_same(data, tmp_path, HeadConfig(**settings))


@pytest.mark.parametrize("relation", get_args(RelationName))
def test_neighbours(data, tmp_path, relation):
  check_same(data, tmp_path, HeadConfig(), relation)


def test_units_of_several_rows(data, tmp_path):
  check_same(data, tmp_path, HeadConfig(), units=True)
