"""Whitened heads for classes of very different sizes."""

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.registry import make_trainer, mechanism_of
from oneshot_dp.linear_dp.heads.whitened import releases, training
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.arrays import ArrayRows
from oneshot_dp.linear_dp.trainer import Released, TrainingRows
from tests.linear_dp.watched import recorded

COUNTS = (600, 60, 12)
K, D = len(COUNTS), 6


def rows(seed: int, counts=COUNTS) -> tuple[np.ndarray, np.ndarray]:
  """Clusters that touch, so that large ones take from small ones."""
  rng = np.random.default_rng(seed)
  label = np.repeat(np.arange(K), counts)
  centre = 1.2 * np.eye(K, D)[label]
  noise = 0.6 * rng.standard_normal((len(label), D))
  return (centre + noise).astype(np.float32), label


def trained(balanced: bool, of_users: bool = False, **changes: Any):
  """A head, and all that it let out."""
  unit_ids = np.arange(sum(COUNTS)) if of_users else None
  arrays = ArrayRows.of(*rows(1), num_classes=K, unit_ids=unit_ids)
  given = TrainingRows(
    blocks=lambda: [arrays],
    feature_dim=D,
    num_classes=K,
    num_examples=sum(COUNTS),
    privacy_unit="user" if of_users else EXAMPLE_UNIT,
  )
  trainer = make_trainer(
    given, [HeadConfig(head="whitened", balanced=balanced)]
  )
  fields: dict[str, Any] = {"epsilons": (8.0,), "delta": 1e-4}
  plan = ReleasePlan(**fields | {"order": "independent"} | changes)
  released: list[Released] = []
  trainer.read()
  (head,) = trainer.release(
    plan, NoiseSource(5), lambda *_: None, released.append
  )
  return head, released


@pytest.mark.parametrize("relation", ["REPLACE_SPECIAL", "REPLACE_ONE"])
@pytest.mark.parametrize(
  ("balanced", "of_users"), [(True, False), (False, False), (True, True)]
)
def test_all_that_leaves_costs_what_the_plan_says(
  balanced, of_users, relation, monkeypatch
):
  counts = recorded(monkeypatch, releases, "release_counts")
  of_units = recorded(monkeypatch, training, "release_units")
  neighbours = NeighboringRelation[relation]
  head, released = trained(balanced, of_users, neighboring_relation=neighbours)
  precision = sum(each.noise_multiplier**-2 for each in released)
  assert precision**-0.5 == pytest.approx(
    head.statement.noise_multiplier, rel=1e-9
  )
  assert precision**-0.5 >= head.statement.noise_multiplier
  noisy = {each.name: each for each in released}
  moved = 2 if relation == "REPLACE_ONE" else 1
  for name, calls, expected in (
    ("class counts", counts, balanced),
    ("units", of_units, of_users),
  ):
    assert (name in noisy) == len(calls) == expected
    for args, _, value in calls:
      assert args[1] >= moved * noisy[name].noise_multiplier
      np.testing.assert_array_equal(value, noisy[name].value)
  if balanced:
    of_counts = noisy["class counts"]
    assert not np.array_equal(of_counts.value, COUNTS)  # there is noise
    # Steps know the counts by what was released of them alone.
    prior = np.maximum(of_counts.value, max(counts[0][0][1], 1.0))
    expected = np.log(prior / prior.sum())
    np.testing.assert_allclose(released[-1].at["log_prior"], expected)


def test_its_section_says_so_and_is_recomputed():
  for balanced in (True, False):
    head, _ = trained(balanced)
    section = head.mechanism.as_json()
    assert mechanism_of(section) == head.mechanism
    assert ("count_noise_multiplier" in section) == balanced
    assert head.mechanism.training().items() <= head.settings.items()
  rule = head.mechanism
  assert isinstance(rule, WhiteningRule)
  shares = rule.mean_share + rule.moment_share + rule.count_share
  assert math.isclose(rule.step_share + shares, 1)


def test_small_classes_are_found():
  embedding, label = rows(2, (300, 300, 300))
  recalls = []
  for balanced in (False, True):
    head, _ = trained(balanced)
    unit = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
    answer = (unit @ head.head.kernel + head.head.bias).argmax(axis=1)
    recalls.append([(answer[label == c] == c).mean() for c in range(K)])
  plain, balanced = recalls
  assert np.mean(balanced) > np.mean(plain) + 0.05
