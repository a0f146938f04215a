"""A choice among heads: what rows touch, what it costs, what it refuses."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, MethodName, StepsConfig
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads import chosen
from oneshot_dp.linear_dp.heads.chosen import COUNTS, ChoosingTrainer
from oneshot_dp.linear_dp.heads.registry import Chosen, mechanism_of
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.arrays import ArrayRows
from oneshot_dp.linear_dp.trainer import TrainingRows

N, D, K = 120, 6, 4
HELD_OUT = np.arange(N) % 10 == 3
HELD, TRAINED_ON = 3, 4
OWNER = np.arange(N) // 4
RANDOM = StepsConfig(batch_size=9, sampling="poisson")
METHODS: tuple[MethodName, ...] = ("lamb", "adam", "least-squares")


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(1)
  label = rng.integers(0, K, N)
  rows = np.eye(K, D)[label] + 0.3 * rng.standard_normal((N, D))
  return rows.astype(np.float32), label


def trainer(
  data, methods: Sequence[MethodName] = METHODS, unit: str = "example"
) -> ChoosingTrainer:
  owner = None if unit == "example" else OWNER
  arrays = ArrayRows.of(*data, num_classes=K, unit_ids=owner)
  rows = TrainingRows(
    blocks=lambda: [arrays],
    feature_dim=D,
    num_classes=K,
    num_examples=N,
    privacy_unit=unit,
  )
  configs = [HeadConfig(head=method) for method in methods]
  held_out = HELD_OUT if owner is None else HELD_OUT[owner]
  return ChoosingTrainer(rows, configs, held_out)


def plan(**changes: Any) -> ReleasePlan:
  fields: dict[str, Any] = {"epsilons": (4.0,), "delta": 1e-4}
  return ReleasePlan(**fields | {"order": "independent"} | changes)


def run(data, monkeypatch, unit: str = "example", **changes: Any):
  """The head, all that was released, and the exact counts; of one noise."""
  counts = []

  def noisy(secret, sigma, source, steps):
    counts.append((secret / steps, sigma))
    return chosen_with_noise(secret, sigma, source, steps)

  chosen_with_noise = chosen.with_noise
  with monkeypatch.context() as patch:
    patch.setattr(chosen, "with_noise", noisy)
    trains, released = trainer(data, unit=unit), []
    trains.read()
    (head,) = trains.release(
      plan(**changes), NoiseSource(7), lambda *_: None, released.append
    )
  return head, released, counts


def changed(data, rows: np.ndarray, null: bool):
  embedding, label = data[0].copy(), data[1].copy()
  embedding[rows] = 0 if null else -2 * embedding[rows]
  label[rows] = (label[rows] + 1) % K
  return embedding, label


@pytest.mark.parametrize("null", [True, False])
@pytest.mark.parametrize("unit", ["example", "user"])
def test_a_unit_touches_heads_or_counts_and_never_both(
  data, monkeypatch, unit, null
):
  """And no count by more than 1; of 4 rows one of zeros counts for nothing."""
  units = np.arange(N) if unit == "example" else OWNER
  data[0][12:16], data[1][12:16] = np.eye(K, D)[1], 1
  data[0][13], data[1][13] = 0, 0  # the answer to a tie
  _, before, ((counts, _),) = run(data, monkeypatch, unit)
  for at in (HELD, TRAINED_ON):
    others = changed(data, units == at, null)
    _, after, ((others, _),) = run(others, monkeypatch, unit)
    same = [
      np.array_equal(one.value, other.value)
      for one, other in zip(before, after, strict=True)
      if one.name != COUNTS
    ]
    assert all(same) == (at == HELD)
    if at == HELD:
      moved = np.abs(counts - others)
      most = 1 if unit == "example" else 0.75
      assert 0 < moved.max() <= most


def test_counts_are_of_rows_held_out_and_the_first_of_the_best_is_given(
  data, monkeypatch
):
  head, released, ((counts, _),) = run(data, monkeypatch)
  assert max(counts) <= HELD_OUT.sum()
  noisy = released[-1].value.tolist()
  assert isinstance(head.mechanism, Chosen)
  assert head.mechanism.noisy_counts == tuple(noisy) != tuple(counts)
  assert head.settings["head"] == METHODS[noisy.index(max(noisy))]
  embedding, label = data
  logits = embedding[HELD_OUT] @ head.head.kernel + head.head.bias
  right = (logits.argmax(axis=1) == label[HELD_OUT]).sum()
  assert counts[noisy.index(max(noisy))] == right


@pytest.mark.parametrize("relation", ["REPLACE_SPECIAL", "REPLACE_ONE"])
def test_all_of_it_is_one_mechanism_of_the_plan(data, monkeypatch, relation):
  """Heads alone and counts alone; both, halved, where a row changes sides."""
  neighbours = NeighboringRelation[relation]
  head, _, ((_, sigma),) = run(
    data, monkeypatch, neighboring_relation=neighbours
  )
  whole = head.plan.noise_multipliers[4.0]
  factor = 2 if relation == "REPLACE_ONE" else 1
  assert sigma == factor * whole
  (part,) = trainer(data)._parts(head.plan).values()
  (of_group,) = part.noise_multipliers.values()
  assert 2 / of_group**2 <= 1 / whole**2 < 2.001 / of_group**2  # two groups
  assert part.neighboring_relation is neighbours
  assert head.statement.epsilon == 4.0
  assert head.statement.noise_multiplier == whole


def test_everything_is_charged_before_any_noise(data):
  trains, released = trainer(data), []
  trains.read()
  charged = []

  def refuse(asked, source):
    charged.append(asked)
    raise InputError("no")

  with pytest.raises(InputError, match="no"):
    list(trains.release(plan(), NoiseSource(7), refuse, released.append))
  assert charged == [plan()]
  assert not released


def test_its_section_is_recomputed(data, monkeypatch):
  head, _, _ = run(data, monkeypatch)
  section = head.mechanism.as_json()
  found = mechanism_of(section)
  assert isinstance(found, Chosen)
  assert found.as_json() == section
  assert found.training()["head"] == head.settings["head"]
  assert section["candidates"] == list(METHODS)


@pytest.mark.parametrize(
  ("configs", "message"),
  [
    ([HeadConfig()], "two heads or more"),
    (
      [HeadConfig(head="multi-step", steps=RANDOM), HeadConfig()],
      "random batches",
    ),
  ],
)
def test_refuses(data, configs, message):
  with pytest.raises(InputError, match=message):
    ChoosingTrainer(trainer(data)._rows, configs, HELD_OUT)
