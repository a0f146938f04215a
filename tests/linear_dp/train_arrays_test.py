import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, StepsConfig, called
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.registry import METHODS
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import release
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer, one_step
from oneshot_dp.linear_dp.private_head import evaluate_heads
from oneshot_dp.linear_dp.rows.arrays import ArrayRows
from oneshot_dp.linear_dp.train_arrays import train_head, train_heads
from tests.linear_dp.watched import WatchedSource

N, D, K = 400, 6, 4
DELTA = 1e-4
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL


@pytest.fixture(autouse=True)
def little_work(small_chunks, monkeypatch):
  """Small chunks, and few steps."""
  monkeypatch.setattr(WhiteningRule, "num_steps", 10)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
  """Four clusters around 0; some rows are long enough to be clipped."""
  rng = np.random.default_rng(3)
  label = rng.integers(0, K, N)
  embedding = np.eye(K, D)[label] + 0.1 * rng.standard_normal((N, D))
  embedding -= embedding.mean(axis=0)
  embedding *= np.exp(0.3 * rng.standard_normal((N, 1)))
  return embedding.astype(np.float32), label


def train(data, **changes: Any):
  embedding, label = data
  given: dict[str, Any] = {
    "num_classes": K,
    "epsilons": (2.0,),
    "delta": DELTA,
  }
  return train_heads(embedding, label, **given | changes)


def test_is_the_release_of_the_door(data):
  embedding, label = data
  epsilons = (1.0, 8.0, 2.0)
  heads = train(data, epsilons=epsilons, source=NoiseSource(7))
  rows = ArrayRows.of(embedding, label, num_classes=K)
  grid = ClippedGradientGrid(num_classes=K, feature_dim=D)
  secret = exact_clipped_sum([rows], grid, num_examples=N)
  plan = ReleasePlan(epsilons=epsilons, delta=DELTA)
  released = release(
    secret, plan, NoiseSource(7), charge=lambda plan, source: None
  )
  expected = {each.statement.epsilon: each for each in released}
  assert [head.statement.epsilon for head in heads] == list(epsilons)
  for head in heads:
    each = expected[head.statement.epsilon]
    assert head.statement == each.statement
    np.testing.assert_array_equal(
      head.head.kernel, one_step(each, OneStepOptimizer()).kernel
    )


@pytest.mark.parametrize("head", METHODS)
def test_learns_and_says_what_in_one_line(data, head, capfd):
  embedding, label = data
  asked = head
  if head == "multi-step":
    asked = HeadConfig(head=head, steps=StepsConfig(epochs=10))
  strict, loose = train(data, epsilons=(2.0, 50.0), head=asked)
  assert (loose.predict(embedding) == label).mean() > 0.9
  assert strict.statement.epsilon == 2.0
  receipt = json.loads(json.dumps(loose.receipt()))
  assert receipt["private"]
  assert receipt["privacy"]["noise_source"] == "os.urandom"
  assert receipt["training"]["head"] == head
  assert not receipt["composition"]["charged"]
  composed = receipt["composition"]["composed_epsilon"]
  shares_noise = head not in ("whitened", "multi-step")
  assert receipt["composition"]["order"] == (
    "nested" if shares_noise else "independent"
  )
  assert math.isclose(composed, 50.0, rel_tol=1e-6) == shares_noise
  assert repr(loose).startswith(f"PrivateHead({called(head)}, feature_dim=6")
  out, err = capfd.readouterr()
  (line,) = err.splitlines()
  assert (out, line.startswith(f"head: {called(head)}, ")) == ("", True)


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("one", [True, False])
def test_defaults_are_said_before_the_charge(data, one, units, capfd):
  """One ε has the most accurate head, where it can; many have the paper's."""
  said = []

  def charge(*_):
    said.append(capfd.readouterr().err)

  given: dict[str, Any] = {"num_classes": K, "delta": DELTA, "charge": charge}
  given["unit_ids"] = np.arange(N) // 2 if units else None
  if one:
    trained = train_head(*data, epsilon=2.0, **given)
  else:
    trained, _ = train_heads(*data, epsilons=(2.0, 4.0), **given)
  head = "whitened" if one else "lamb"
  assert trained.receipt()["training"]["head"] == head
  (line,) = said
  assert line.startswith(f"head: {called(head)}, ")
  assert line.count("\n") == 1
  assert capfd.readouterr().err == ""


@pytest.mark.parametrize("head", ["lamb", "least-squares", "whitened"])
def test_charges_once_and_before_any_noise(data, head):
  events = []

  def charge(plan, source):
    events.append(plan.epsilons)

  heads = train(
    data,
    epsilons=(1.0, 2.0),
    head=head,
    source=WatchedSource(events),
    charge=charge,
  )
  assert events[0] == (1.0, 2.0)
  assert set(events[1:]) == {"noise"}
  assert all(head.receipt()["composition"]["charged"] for head in heads)
  events.clear()

  def refuse(plan, source):
    raise InputError("the cap is 1.")

  with pytest.raises(InputError, match="the cap is 1"):
    train(data, head=head, source=WatchedSource(events), charge=refuse)
  assert not events


class Ledger(list):
  """A list of what was charged; empty, and so false, until it is."""

  def __call__(self, plan, source):
    self.append(plan.epsilons)


def test_an_empty_ledger_is_charged_and_the_receipt_says_so(data):
  ledger = Ledger()
  assert not ledger
  (trained,) = train(data, epsilons=(50.0,), charge=ledger)
  assert ledger == [(50.0,)]
  assert trained.receipt()["composition"]["charged"] is True


class EmptySource(NoiseSource):
  """A seeded source that is false."""

  def __len__(self):
    return 0


def test_a_source_is_used_whatever_its_truth(data):
  one, other = (train(data, source=EmptySource(5))[0] for _ in range(2))
  assert not one.receipt()["private"]
  assert "NOT PRIVATE" in repr(one)
  np.testing.assert_array_equal(one.head.kernel, other.head.kernel)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"epsilons": (0.0,)}, r"epsilon=0\.0 must be positive"),
    ({"epsilons": (-1.0,)}, r"epsilon=-1\.0 must be positive"),
    ({"epsilons": (math.nan,)}, r"epsilon=nan must be positive and finite"),
    ({"epsilons": (math.inf,)}, r"epsilon=inf must be positive and finite"),
    ({"epsilons": ()}, r"epsilons is empty"),
    ({"epsilons": (1.0, 1.0)}, r"an epsilon twice"),
    ({"delta": 0.0}, r"delta=0\.0 must lie strictly between 0 and 1"),
    ({"delta": 1.0}, r"delta=1\.0 must lie"),
    ({"head": HeadConfig(eps=-1.0)}, r"eps=-1\.0 must be finite"),
    (
      {"neighboring_relation": NeighboringRelation.ADD_OR_REMOVE_ONE},
      r"neighboring_relation=ADD_OR_REMOVE_ONE: n is published",
    ),
    ({"num_classes": 1}, r"num_classes=1"),
    ({"num_classes": 2}, r"labels\[\d+\] is not one of the num_classes=2"),
    ({"head": "svm"}, r"head='svm' must be one of lamb, adam, momentum, least"),
  ],
)
def test_refuses_in_one_line_and_charges_nothing(data, changes, message):
  charges = []

  def charge(plan, source):
    charges.append(plan)

  with pytest.raises(InputError, match=message) as error:
    train(data, **changes, charge=charge)
  assert "\n" not in str(error.value)
  assert not charges


def test_a_large_delta_is_insisted_on(data):
  with pytest.raises(InputError, match=r"delta=0\.0025 is not below 1/n"):
    train(data, delta=1 / N)
  assert train(data, delta=1 / N, large_delta=True)


def test_one_head_is_the_heads_of_one_epsilon(data):
  given: dict[str, Any] = {
    "head": "momentum",
    "unit_ids": np.arange(N) // 2,
    "neighboring_relation": NeighboringRelation.REPLACE_ONE,
    "charge": lambda plan, source: None,
  }
  (other,) = train(data, source=NoiseSource(1), **given)
  given |= {"num_classes": K, "epsilon": 2.0, "delta": DELTA}
  one = train_head(*data, source=NoiseSource(1), **given)
  np.testing.assert_array_equal(one.head.kernel, other.head.kernel)
  assert one.receipt() == other.receipt()


def test_predictions_are_those_that_are_evaluated(data):
  embedding, label = data
  # In float32 a bias of -10 has no room for logits that small.
  config = HeadConfig(head="momentum", learning_rate=1e-6)
  (head,) = train(data, epsilons=(1e4,), head=config)
  rows = ArrayRows.of(embedding, label, num_classes=K)
  accuracy, same = evaluate_heads([head, head.head], [rows])
  assert accuracy.top1 == (head.predict(embedding) == label).mean() > 0.9
  assert accuracy == same


@pytest.mark.parametrize("shape", [(2, D + 1), (D,), (1, 2, D)])
def test_predicts_for_rows_of_its_own_width(data, shape):
  (head,) = train(data)
  with pytest.raises(InputError, match=r"the head takes \[n, 6\]"):
    head.predict(np.zeros(shape, np.float32))


@pytest.mark.parametrize("unit_norm", [False, True])
def test_predicts_nothing_for_a_row_that_is_not_finite(data, unit_norm):
  embedding, _ = data
  (trained,) = train(data, head="momentum")
  head = dataclasses.replace(trained.head, unit_norm=unit_norm)
  trained = dataclasses.replace(
    trained, trained=dataclasses.replace(trained.trained, head=head)
  )
  assert trained.predict(np.zeros((0, D))).shape == (0,)
  for value in (np.nan, np.inf, -np.inf, 7.7e300):
    rows = embedding[:5].astype(np.float64)
    rows[3] = value
    for answer in (trained.predict, trained.logits):
      with pytest.raises(InputError, match=r"embeddings\[3\] is") as error:
        answer(rows)
      assert "\n" not in str(error.value)
      assert str(value) not in str(error.value).partition("is not finite")[0]
      assert "7.7" not in str(error.value)
