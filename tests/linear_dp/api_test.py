"""Heads of arrays in memory equal those of `train`, and are charged first."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest
from scipy import special

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadOptions
from oneshot_dp.linear_dp.accounting import epsilon_of, mu_squared_from_epsilon
from oneshot_dp.linear_dp.api import (
  dataset_from_arrays,
  train_head,
  train_heads,
)
from oneshot_dp.linear_dp.evaluate import evaluate_heads
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.train import cost, train
from tests.pipeline.image_heads import digits, embeddings, glyph_vit
from tests.sample_caches import clusters

N, D, K = 400, 6, 4
DELTA = 1e-4
ROWS, LABEL = clusters((N // K,) * K, D)


def log_loss(chances, label):
  return -np.log(chances[np.arange(len(label)), label]).mean()


def heads(**changes: Any):
  given: dict[str, Any] = {"num_classes": K, "epsilons": (2.0,), "delta": DELTA}
  return train_heads(ROWS, LABEL, **given | changes)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["lamb", "auto"])
@pytest.mark.parametrize("units", [False, True])
def test_train_heads_equals_train_and_keeps_the_order_of_epsilons(head, units):
  epsilons = (1.0, 8.0, 2.0)
  unit_ids = np.arange(N) // 2 if units else None
  source = NoiseSource(7)
  found = heads(epsilons=epsilons, head=head, source=source, unit_ids=unit_ids)
  data = dataset_from_arrays(ROWS, LABEL, num_classes=K, unit_ids=unit_ids)
  how: dict[str, Any] = {"head": head, "epsilons": epsilons, "delta": DELTA}
  how |= {"mu_squared_budget": cost(epsilons, DELTA), "source": NoiseSource(7)}
  made = train(HEADS[head].prepare_rows(data), **how)
  expected = {each.epsilon: each for each in made}
  assert [each.trained.epsilon for each in found] == list(epsilons)
  for each in found:
    same = expected[each.trained.epsilon]
    np.testing.assert_array_equal(each.head.kernel, same.head.kernel)
    assert each.trained.releases == same.releases
    assert each.privacy_unit == ("unit" if units else "example")


@pytest.mark.parametrize("head", ["lamb", "auto"])
def test_receipt_states_the_guarantee_of_what_was_released(head):
  strict, loose = heads(epsilons=(2.0, 18.0), head=head)
  assert loose.score(ROWS, LABEL) > 0.9
  receipt = json.loads(json.dumps(loose.receipt()))
  stated = receipt["stated"]
  follows = receipt["follows"]
  assert (stated["private"], stated["noise_source"]) == (True, "os.urandom")
  assert (stated["head"], stated["num_examples"]) == (head, N)
  assert stated["neighboring_relation"] == "REPLACE_SPECIAL"
  assert stated["charged"] is False
  cost = sum(each["noise_multiplier"] ** -2 for each in stated["releases"])
  assert epsilon_of(cost, DELTA) <= follows["epsilon"] == 18.0
  assert follows["mu_squared"] == pytest.approx(cost)
  replaced = epsilon_of(4 * follows["mu_squared"], DELTA)
  assert follows["epsilon_if_replaced"] == replaced > 18
  assert repr(loose) == (
    f"PrivateHead({head}, feature_dim=6, num_classes=4, epsilon=18.0,"
    " delta=0.0001)"
  )
  assert strict.trained.epsilon == 2.0


class WatchedSource(NoiseSource):
  def __init__(self, events):
    super().__init__()
    self.events = events

  def words(self, count):
    self.events.append("noise")
    return super().words(count)


@pytest.mark.parametrize("head", ["lamb", "auto"])
def test_train_heads_charges_once_and_before_any_noise(head):
  events: list[Any] = []
  source = WatchedSource(events)

  def charge(mu2, of):
    events.append((mu2, of))

  epsilons = (1.0, 2.0)
  found = heads(epsilons=epsilons, head=head, source=source, charge=charge)
  assert events[0] == (mu_squared_from_epsilon(2.0, DELTA), source)
  assert set(events[1:]) == {"noise"}
  assert all(each.receipt()["stated"]["charged"] for each in found)
  events.clear()

  def refuse(mu2, of):
    raise InputError("the cap is 1.")

  with pytest.raises(InputError, match="the cap is 1"):
    heads(head=head, source=source, charge=refuse)
  assert not events


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"epsilons": (0.0,)}, r"epsilon=0 must be positive"),
    ({"epsilons": (1.0, 1.0)}, r"give one or more, each once"),
    ({"epsilons": (400.0,)}, r"weak-privacy"),
    ({"delta": 0.0}, r"delta=0\.0 must lie strictly between 0 and 1"),
    ({"delta": 1 / N}, r"delta=0\.0025 is not below 1/n"),
    ({"num_classes": 2}, r"labels\[\d+\] is not one of the num_classes=2"),
    ({"head": "lamb", "balanced": True}, r"balanced is for head 'auto', not"),
    ({"start": np.ones((K, D))}, r"one vector for all classes"),
    ({"class_names": ["a", "b", "b", "c"]}, r"must be 4 different names"),
  ],
)
def test_train_heads_refuses_bad_arguments_before_a_charge(changes, message):
  charges = []
  with pytest.raises(InputError, match=message) as error:
    heads(**changes, charge=lambda *given: charges.append(given))
  assert "\n" not in str(error.value)
  assert not charges
  assert heads(epsilons=(400.0,), delta=1 / N, weak_privacy=True)


def test_train_heads_takes_strings_as_unit_ids():
  numbered = np.arange(N) // 2
  named = [f"user {index}" for index in numbered]
  (by_name,) = heads(unit_ids=named, source=NoiseSource(3))
  (by_number,) = heads(unit_ids=numbered, source=NoiseSource(3))
  np.testing.assert_array_equal(by_name.head.kernel, by_number.head.kernel)


def test_train_heads_states_its_options():
  (balanced,) = heads(balanced=True, class_names=list("abcd"))
  assert balanced.receipt()["stated"]["options"] == {"balanced": True}
  assert balanced.class_names == ("a", "b", "c", "d")
  assert balanced.num_classes_source == "class_names"
  (started,) = heads(start=np.eye(K, D))
  assert "start_sha256" in started.receipt()["stated"]["options"]
  how: dict[str, Any] = {"num_classes": K, "delta": DELTA}
  one = train_head(ROWS, LABEL, epsilon=2.0, source=NoiseSource(1), **how)
  (other,) = heads(source=NoiseSource(1))
  assert not one.receipt()["stated"]["private"]
  assert "NOT PRIVATE" in repr(one)
  assert one.receipt() == other.receipt()
  np.testing.assert_array_equal(one.head.kernel, other.head.kernel)
  assert one.trained.options == HeadOptions().as_json()


def test_predictions_are_those_that_evaluate_heads_counts():
  (head,) = heads(head="momentum", epsilons=(18.0,))
  rows = {"embedding": ROWS, "label": LABEL}
  accuracy, same = evaluate_heads([head, head.head], [rows])
  assert accuracy == same
  assert accuracy.top1 == head.score(ROWS, LABEL) > 0.9
  chances = head.predict_proba(ROWS)
  np.testing.assert_allclose(chances.sum(axis=1), 1)
  np.testing.assert_array_equal(chances.argmax(axis=1), head.predict(ROWS))


@pytest.mark.long
@pytest.mark.parametrize("head", ["auto", "lamb"])
def test_predict_proba_is_about_as_sure_as_the_head_is_right(head):
  """Within a third of the log-loss at the best constant, not near uniform."""
  images, label = digits("train")
  rows = embeddings(glyph_vit(), images)
  test_images, test_label = digits("test")
  test_rows = embeddings(glyph_vit(), test_images)
  trained = train_head(
    rows, label, num_classes=10, epsilon=4.0, delta=1e-4, head=head
  )

  found = log_loss(trained.predict_proba(test_rows), test_label)

  logits = np.log(trained.predict_proba(test_rows))
  best = min(
    log_loss(special.softmax(scale * logits, axis=1), test_label)
    for scale in np.geomspace(0.1, 10, 40)
  )
  assert found < 1.34 * best + 0.01
  assert found < 0.2 < log_loss(np.full((1, 10), 0.1), test_label[:1])


def test_predict_proba_of_a_row_of_zeros_is_finite():
  for head in ("auto", "lamb"):
    (trained,) = heads(head=head)
    chances = trained.predict_proba(np.zeros((2, D)))
    np.testing.assert_allclose(chances.sum(axis=1), 1)


@pytest.mark.parametrize("head", ["momentum", "auto"])
def test_predict_refuses_rows_of_another_width_or_not_finite(head):
  (trained,) = heads(head=head)
  for shape in (2, D + 1), (D,), (1, 2, D):
    with pytest.raises(InputError, match=r"the head takes \[n, 6\]"):
      trained.predict(np.zeros(shape, np.float32))
  assert trained.predict(np.zeros((0, D))).shape == (0,)
  for value in (np.nan, np.inf, -np.inf, 7.7e300):
    rows = ROWS[:5].astype(float)
    rows[3] = value
    with pytest.raises(InputError, match=r"embeddings\[3\] is") as error:
      trained.predict(rows)
    assert "\n" not in str(error.value)
    assert "7.7" not in str(error.value)
  assert not dataclasses.fields(trained)[0].repr or "array" not in repr(trained)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"embeddings": np.ones((2, 3), int)}, "embeddings are int64"),
    ({"embeddings": np.array([["a"]], object)}, "embeddings are object"),
    ({"embeddings": np.ones(3)}, r"embeddings are float64 \(3,\)"),
    ({"embeddings": np.ones((0, 3))}, "at least one row"),
    ({"embeddings": np.ones((3, 0))}, "at least one row"),
    ({"embeddings": np.full((2, 3), np.nan)}, r"embeddings\[0\] is not finite"),
    ({"embeddings": np.full((2, 3), 3e38)}, "too long for float32"),
    ({"labels": np.ones(2)}, "labels are float64"),
    ({"labels": np.ones(3, int)}, r"labels are int64 \(3,\)"),
    ({"labels": np.ones((2, 1), int)}, "give 2 integers, one a row"),
    ({"labels": np.array([0, 4])}, r"labels\[1\] is not one of the num_"),
    ({"labels": np.array([-1, 0])}, r"labels\[0\] is not one"),
    ({"num_classes": 0}, "is not one of the num_classes=0"),
    ({"unit_ids": np.ones(2)}, "unit_ids are float64"),
    ({"unit_ids": np.array(["a", None])}, "unit_ids are object"),
    ({"unit_ids": np.zeros(1, int)}, "unit_ids are int64"),
  ],
)
def test_dataset_from_arrays_refuses_invalid_arrays(given, message):
  right = {"embeddings": np.ones((2, 3), np.float32), "num_classes": 4}
  with pytest.raises(InputError, match=message) as refused:
    dataset_from_arrays(**(right | {"labels": np.zeros(2, int)} | given))
  assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_dataset_from_arrays_uses_float16_without_a_copy():
  x = jax.numpy.ones((3, 2))
  data = dataset_from_arrays(x, np.array([0, 1, 1], np.uint8), num_classes=2)
  assert (data.n, data.feature_dim, data.num_classes) == (3, 2, 2)
  assert not data.has_units
  half = np.ones((3, 2), np.float16)
  (block,) = dataset_from_arrays(half, np.zeros(3, int), num_classes=1).blocks()
  assert block["embedding"] is half


@pytest.mark.parametrize("has_units", [False, True])
def test_train_heads_of_zeros_alone_charges_nothing(has_units):
  charged = []
  with pytest.raises(InputError, match="all embeddings are zeros"):
    train_heads(
      np.zeros((200, 4), np.float32),
      np.arange(200) % 2,
      num_classes=2,
      epsilons=(1.0,),
      delta=1e-5,
      unit_ids=np.arange(200) // 2 if has_units else None,
      charge=lambda *_: charged.append(1),
    )
  assert not charged
