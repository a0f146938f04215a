import dataclasses

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  StepsConfig,
)
from oneshot_dp.extract.cache.identity import BackboneIdentity, CacheIdentity
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.linear_dp.heads.registry import make_trainer
from oneshot_dp.linear_dp.trainer import TrainingRows
from oneshot_dp.pipeline.training.request import estimate
from oneshot_dp.pipeline.training.train_heads import plan_heads

INFO = CacheInfo.of(
  CacheIdentity(
    dataset="pets",
    split="train",
    source_num_examples=1_000_000,
    feature_dim=999,
    class_names=tuple(map(str, range(100))),
    num_classes_source="flag",
    backbone=BackboneIdentity(name="mine"),
    embedding_dtype="float16",
  ),
  num_examples=1_000_000,
  skipped_example_ids=(),
)
EPOCHS = StepsConfig(epochs=5)


def estimated(config: HeadConfig, num_draws: int, d: int = 999) -> str:
  rows = TrainingRows(
    blocks=list, feature_dim=d, num_classes=100, num_examples=1_000_000
  )
  info = dataclasses.replace(INFO, feature_dim=d)
  privacy = PrivacyConfig(delta=1e-8)
  plan = plan_heads(config, 10**6, (1.0, 2.0), privacy, num_draws=num_draws)
  return estimate([(make_trainer(rows, [config]), plan)], info)


@pytest.mark.parametrize(
  ("config", "num_draws", "said"),
  [
    (
      HeadConfig(head="lamb"),
      3,
      "asks for 6 releases of 999 x 100 weights: about 2.4 MB of memory for"
      " them, 9.64 MB of disk",
    ),
    # 10 passes of 10^6 x 999 x (200 + 70) multiply-adds: 270 s.
    (
      HeadConfig(head="multi-step", steps=EPOCHS),
      1,
      "asks for 2 releases of 999 x 100 weights, 10 steps over at most"
      " 1,000,000 rows: about 800 kB of memory for them, 25.7 MB of disk, 4"
      " minutes on two CPU cores",
    ),
    # Other devices, or more hosts, may do it sooner: it is said, not refused.
    (
      HeadConfig(head="multi-step", steps=StepsConfig(epochs=10**6)),
      100,
      "asks for 200 releases of 999 x 100 weights, 200,000,000 steps over at"
      " most 1,000,000 rows: about 80 MB of memory for them, 161 TB of disk,"
      " 171 years on two CPU cores",
    ),
  ],
)
def test_what_is_asked_for_is_said(config, num_draws, said):
  assert estimated(config, num_draws) == said


def test_more_than_the_memory_is_refused():
  with pytest.raises(InputError, match="would take 20 TB of memory, of "):
    estimated(HeadConfig(), 25_000, 10**6 - 1)
