"""What is charged, drawn and said of heads that share no noise."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.own_noise import (
  Door,
  OwnNoiseTrainer,
  StepsRule,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import TrainingRows

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
POISSON = PoissonSampling(probability=0.01, num_steps=5)


def plan_of(*epsilons: float, **changes: Any) -> ReleasePlan:
  options: dict[str, Any] = {"delta": 1e-5, "order": "independent"}
  return ReleasePlan(epsilons=epsilons or (1.0,), **options | changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule(StepsRule):
  """Tells heads apart."""

  KIND = "noise"
  sigma: float

  @property
  def num_steps(self) -> int:
    return 1

  def as_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  def in_words(self, training: Mapping[str, Any]) -> str:
    return "nothing but noise"


class NoiseTrainer(OwnNoiseTrainer[Rule]):
  """Makes heads of nothing but noise, and writes down what it was asked."""

  def __init__(self):
    rows = TrainingRows(
      blocks=list, feature_dim=3, num_classes=2, num_examples=1
    )
    super().__init__(rows, [HeadConfig(head="whitened")])
    self.asked: list[tuple[float, NoiseSource | None]] = []
    self.relations: set[NeighboringRelation] = set()

  def read(self) -> None:
    pass

  def rule(self, sigma: float) -> Rule:
    return Rule(sigma=sigma)

  def train(self, rule: Rule, door: Door) -> LinearHead:
    self.asked.append((rule.sigma, door.source))
    self.relations.add(door.relation)
    noise = np.zeros(6)
    if door.source is not None:
      noise = door.source.words(6) / 2.0**64
    return LinearHead(
      kernel=noise.reshape(3, 2).astype(np.float32),
      bias=np.zeros(2, np.float32),
    )


def uncharged(plan: ReleasePlan, source: NoiseSource) -> None:
  del plan, source


def test_what_is_trained_is_what_is_charged():
  """One mechanism of each σ in the charge, with bits of its own."""
  plan, train = plan_of(1.0, 8.0, num_draws=3), NoiseTrainer()
  source = NoiseSource(2)
  heads = list(train.release(plan, source, uncharged))
  assert [(h.draw, h.statement.epsilon) for h in heads] == [
    *itertools.product((0, 1, 2), (8.0, 1.0))
  ]
  assert tuple(s for s, _ in train.asked) == plan.charged_noise_multipliers
  assert all(given is source for _, given in train.asked)
  sigmas = plan.charged_noise_multipliers
  assert [h.mechanism for h in heads] == [Rule(sigma=s) for s in sigmas]
  assert train.relations == {REPLACE_SPECIAL}
  assert len({h.head.kernel.tobytes() for h in heads}) == 6


@pytest.mark.parametrize(
  ("relation", "sampling", "seed"),
  [
    (REPLACE_SPECIAL, None, 5),
    (NeighboringRelation.REPLACE_ONE, None, None),
    (REPLACE_SPECIAL, POISSON, None),
  ],
)
def test_statement(relation, sampling, seed):
  plan = plan_of(
    2.0, delta=1e-6, neighboring_relation=relation, sampling=sampling
  )
  source = NoiseSource(seed)
  (head,) = NoiseTrainer().release(plan, source, uncharged)
  found = head.statement
  sigma = (
    sampling.noise_multiplier(2.0, 1e-6)
    if sampling
    else noise_multiplier(2.0, 1e-6)
  )
  assert (found.epsilon, found.delta) == (2.0, 1e-6)
  assert found.noise_multiplier == found.noise_sd == sigma
  assert found.sensitivity == 1
  assert found.neighboring_relation is relation
  assert found.is_private is (seed is None)
  assert ("NOT PRIVATE" in found.noise_source) is (seed is not None)
  train = NoiseTrainer()
  baseline = train.baseline(plan)
  assert train.asked == [(0.0, None)]
  assert baseline.statement.is_private is False
  assert baseline.statement.epsilon == math.inf
