"""Heads of arrays in memory equal those of `train`, and are charged first."""

import json
from typing import Any

import numpy as np
import pytest
from scipy import special

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadOptions
from oneshot_dp.linear_dp.accounting import epsilon_of, mu_squared_from_epsilon
from oneshot_dp.linear_dp.api import train_head, train_heads
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
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
@pytest.mark.parametrize(
  ("unit_ids", "unit"), [(None, "example"), (np.arange(N) // 2, "unit")]
)
def test_train_heads_equals_train_and_keeps_the_order_of_epsilons(
  head, unit_ids, unit
):
  epsilons = (1.0, 8.0, 2.0)
  data = dataset_from_arrays(ROWS, LABEL, num_classes=K, unit_ids=unit_ids)
  expected = {}
  for trained in train(
    HEADS[head].prepare_rows(data),
    head=head,
    epsilons=epsilons,
    delta=DELTA,
    mu_squared_budget=cost(epsilons, DELTA),
    source=NoiseSource(7),
  ):
    expected[trained.epsilon] = trained

  made = heads(
    epsilons=epsilons, head=head, source=NoiseSource(7), unit_ids=unit_ids
  )

  assert [each.trained.epsilon for each in made] == list(epsilons)
  for private_head in made:
    same = expected[private_head.trained.epsilon]
    np.testing.assert_array_equal(private_head.head.kernel, same.head.kernel)
    assert private_head.trained.releases == same.releases
    assert private_head.privacy_unit == unit


# Receipts.


@pytest.fixture(scope="module", params=["lamb", "auto"])
def kind(request):
  return request.param


@pytest.fixture(scope="module")
def loose_head(kind):
  """The head of the larger of two epsilons, 2 and 18."""
  _, loose = heads(epsilons=(2.0, 18.0), head=kind)
  return loose


@pytest.fixture(scope="module")
def receipt(loose_head):
  """The receipt of `loose_head`, as JSON has it."""
  return json.loads(json.dumps(loose_head.receipt()))


def test_head_is_right_about_its_rows(loose_head):
  assert loose_head.score(ROWS, LABEL) > 0.9


def test_receipt_states_the_head_and_where_its_noise_came_from(receipt, kind):
  stated = receipt["stated"]

  assert (stated["private"], stated["noise_source"]) == (True, "os.urandom")
  assert (stated["head"], stated["num_examples"]) == (kind, N)
  assert stated["neighboring_relation"] == "REPLACE_SPECIAL"


def test_receipt_of_a_head_without_a_charge_says_so(receipt):
  assert receipt["stated"]["charged"] is False


def test_receipt_follows_from_the_releases_that_it_states(receipt):
  mu_squared = 0.0
  for release in receipt["stated"]["releases"]:
    mu_squared += release["noise_multiplier"] ** -2

  follows = receipt["follows"]
  assert follows["mu_squared"] == pytest.approx(mu_squared)
  assert epsilon_of(mu_squared, DELTA) <= follows["epsilon"] == 18.0


def test_receipt_states_a_larger_epsilon_if_an_example_is_replaced(receipt):
  follows = receipt["follows"]

  replaced = epsilon_of(4 * follows["mu_squared"], DELTA)
  assert follows["epsilon_if_replaced"] == replaced > 18


def test_repr_of_a_head_states_its_guarantee_and_shows_no_numbers_of_rows(
  loose_head, kind
):
  assert repr(loose_head) == (
    f"PrivateHead({kind}, feature_dim=6, num_classes=4, epsilon=18,"
    " delta=0.0001)"
  )


# Charges.


class WatchedSource(NoiseSource):
  """Notes in `events` when noise is drawn."""

  def __init__(self, events):
    super().__init__()
    self.events = events

  def words(self, count):
    self.events.append("noise")
    return super().words(count)


def test_train_heads_charges_once_and_before_any_noise(kind):
  events: list[Any] = []
  source = WatchedSource(events)

  def charge(mu_squared, noise_source):
    events.append((mu_squared, noise_source))

  made = heads(epsilons=(1.0, 2.0), head=kind, source=source, charge=charge)

  assert events[0] == (mu_squared_from_epsilon(2.0, DELTA), source)
  assert set(events[1:]) == {"noise"}
  for private_head in made:
    assert private_head.receipt()["stated"]["charged"]


def test_train_heads_draws_no_noise_where_the_charge_is_refused(kind):
  events: list[Any] = []

  def refuse(mu_squared, noise_source):
    raise InputError("the cap is 1.")

  with pytest.raises(InputError, match="the cap is 1"):
    heads(head=kind, source=WatchedSource(events), charge=refuse)

  assert not events


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"epsilons": (0.0,)}, r"epsilon=0 must be positive"),
    ({"epsilons": (1.0, 1.0)}, "give one or more, without duplicates"),
    ({"epsilons": (400.0,)}, r"with weak_privacy=True\."),
    ({"delta": 1 / N}, r"with weak_privacy=True\."),
    ({"num_classes": 2_000_000}, "num_classes makes 2000000 classes"),
    ({"delta": 0.0}, r"delta=0\.0 must lie strictly between 0 and 1"),
    ({"delta": 1 / N}, r"delta=0\.0025 is not below 1/n"),
    ({"num_classes": 2}, r"labels\[\d+\] is not one of the num_classes=2"),
    ({"head": "lamb", "balanced": True}, r"balanced is for head 'auto', not"),
    ({"start": np.ones((K, D))}, r"one vector for all classes"),
    ({"class_names": ["a", "b", "b", "c"]}, r"must be 4 different names"),
    ({"class_names": "abcd"}, "must be a list of names"),
  ],
)
def test_train_heads_refuses_bad_arguments_before_a_charge(changes, message):
  charges = []

  def charge(*given):
    charges.append(given)

  with pytest.raises(InputError, match=message) as error:
    heads(**changes, charge=charge)

  assert "\n" not in str(error.value)
  assert not charges


def test_train_heads_with_weak_privacy_allows_large_epsilon_and_delta():
  assert heads(epsilons=(400.0,), delta=1 / N, weak_privacy=True)


@pytest.mark.slow
def test_train_heads_takes_strings_as_unit_ids():
  numbered = np.arange(N) // 2
  named = [f"user {index}" for index in numbered]
  (by_name,) = heads(unit_ids=named, source=NoiseSource(3))
  (by_number,) = heads(unit_ids=numbered, source=NoiseSource(3))
  np.testing.assert_array_equal(by_name.head.kernel, by_number.head.kernel)


def test_head_states_that_it_is_balanced_and_has_its_class_names():
  (balanced,) = heads(balanced=True, class_names=list("abcd"))

  assert balanced.receipt()["stated"]["options"] == {"balanced": True}
  assert balanced.class_names == ("a", "b", "c", "d")
  assert balanced.num_classes_source == "class_names"


def test_head_states_the_digest_of_its_start():
  (started,) = heads(start=np.eye(K, D))

  assert "start_sha256" in started.receipt()["stated"]["options"]


@pytest.fixture(scope="module")
def seeded_head():
  """From `train_head`, the function for a single epsilon."""
  return train_head(
    ROWS,
    LABEL,
    num_classes=K,
    delta=DELTA,
    epsilon=2.0,
    source=NoiseSource(1),
  )


def test_train_head_equals_train_heads_of_one_epsilon(seeded_head):
  (other,) = heads(source=NoiseSource(1))

  assert seeded_head.receipt() == other.receipt()
  np.testing.assert_array_equal(seeded_head.head.kernel, other.head.kernel)


def test_head_of_seeded_noise_says_that_it_is_not_private(seeded_head):
  assert not seeded_head.receipt()["stated"]["private"]
  assert "NOT PRIVATE" in repr(seeded_head)


def test_head_without_options_states_the_usual_ones(seeded_head):
  assert seeded_head.trained.options == HeadOptions().as_json()


# Predictions.


@pytest.fixture(scope="module")
def momentum_head():
  (made,) = heads(head="momentum", epsilons=(18.0,))
  return made


def test_predictions_are_those_that_evaluate_heads_counts(momentum_head):
  rows = {"embedding": ROWS, "label": LABEL}

  accuracy, of_kernel = evaluate_heads(
    [momentum_head, momentum_head.head], [rows]
  )

  assert accuracy == of_kernel
  assert accuracy.top1 == momentum_head.score(ROWS, LABEL) > 0.9


def test_predict_proba_adds_up_to_one_and_is_largest_for_the_prediction(
  momentum_head,
):
  chances = momentum_head.predict_proba(ROWS)

  np.testing.assert_allclose(chances.sum(axis=1), 1)
  np.testing.assert_array_equal(
    chances.argmax(axis=1), momentum_head.predict(ROWS)
  )


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

  chances = trained.predict_proba(test_rows)

  found = log_loss(chances, test_label)
  best = np.inf
  for scale in np.geomspace(0.1, 10, 40):
    scaled = special.softmax(scale * np.log(chances), axis=1)
    best = min(best, log_loss(scaled, test_label))
  assert found < 1.34 * best + 0.01
  assert found < 0.2 < log_loss(np.full((1, 10), 0.1), test_label[:1])


def test_predict_proba_of_a_row_of_zeros_adds_up_to_one(loose_head):
  chances = loose_head.predict_proba(np.zeros((2, D)))

  np.testing.assert_allclose(chances.sum(axis=1), 1)


@pytest.mark.parametrize("shape", [(2, D + 1), (D,), (1, 2, D)])
def test_predict_refuses_rows_of_another_shape(loose_head, shape):
  with pytest.raises(InputError, match=r"the head takes \[n, 6\]"):
    loose_head.predict(np.zeros(shape, np.float32))


def test_predict_of_no_rows_is_no_classes(loose_head):
  assert loose_head.predict(np.zeros((0, D))).shape == (0,)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 7.7e300])
def test_predict_refuses_rows_that_are_not_finite_without_their_values(
  loose_head, value
):
  rows = ROWS[:5].astype(float)
  rows[3] = value

  with pytest.raises(InputError, match=r"embeddings\[3\] is") as error:
    loose_head.predict(rows)

  assert "\n" not in str(error.value)
  assert "7.7" not in str(error.value)


def test_train_heads_of_one_class_charges_nothing():
  charged = []

  def charge(*given):
    charged.append(given)

  with pytest.raises(InputError, match="num_classes=1 must be"):
    train_heads(
      np.eye(200, 4, dtype=np.float32),
      np.zeros(200, int),
      num_classes=1,
      epsilons=(1.0,),
      delta=1e-5,
      charge=charge,
    )

  assert not charged


@pytest.mark.parametrize("unit_ids", [None, np.arange(200) // 2])
@pytest.mark.parametrize(
  ("value", "reason"),
  [(0.0, "embeddings are zeros"), (0.5, "embeddings are the same")],
)
def test_train_heads_of_equal_rows_alone_charges_nothing(
  value, reason, unit_ids
):
  charged = []

  def charge(*given):
    charged.append(given)

  with pytest.raises(InputError, match=reason):
    train_heads(
      np.full((200, 4), value, np.float32),
      np.arange(200) % 2,
      num_classes=2,
      epsilons=(1.0,),
      delta=1e-5,
      unit_ids=unit_ids,
      charge=charge,
    )

  assert not charged


def test_too_few_rows_are_warned_of_before_the_charge():
  def stop(mu_squared, source):
    raise RuntimeError("charged")

  with (
    pytest.warns(UserWarning, match="about 5 rows of each class.*be weak"),
    pytest.raises(RuntimeError, match="charged"),
  ):
    train_heads(
      ROWS[::20],
      LABEL[::20],
      num_classes=K,
      epsilons=(1.0, 8.0),
      delta=DELTA,
      charge=stop,
    )


def test_warning_of_few_rows_follows_from_public_numbers_alone():
  one_class = np.zeros(40, int)
  with pytest.warns(UserWarning, match="about 10 rows") as of_balanced:
    heads_of(ROWS[::10], LABEL[::10])
  with pytest.warns(UserWarning, match="about 10 rows") as of_one_class:
    heads_of(ROWS[::10], one_class)

  texts = [str(said.message) for said in (*of_balanced, *of_one_class)]
  assert len(texts) == 2
  assert texts[0] == texts[1]


def heads_of(rows, label):
  return train_heads(
    rows, label, num_classes=K, epsilons=(2.0,), delta=DELTA, head="lamb"
  )
