import itertools
import math

import numpy as np
import pytest
import scipy.stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.events import CHANGED_UNITS
from oneshot_dp.linear_dp.evaluate import SecretHits, count_hits
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.noisy_counts import CountPlan, release_accuracies
from oneshot_dp.linear_dp.rows.whole_units import count_rows
from tests.linear_dp.blocks import in_blocks, random_block
from tests.linear_dp.evaluate_test import make_head
from tests.linear_dp.rows.units_test import with_units
from tests.linear_dp.watched import WatchedSource

N = 10**9  # so many that no noise here is clipped


def secret(heads=2000, num_classes=10, n=N) -> SecretHits:
  """Counts that differ from head to head."""
  top1 = n // 2 + np.arange(heads)
  return SecretHits(
    num_examples=n, num_classes=num_classes, secret_hits=np.array([top1, top1])
  )


def free(*_: object) -> None:
  """A ledger that takes anything."""


def noise_of(hits, plan, seed) -> np.ndarray:
  """[2, heads]: what was added to each count."""
  found = release_accuracies(hits, plan, NoiseSource(seed), charge=free)
  n = hits.num_examples
  shares = np.array([(a.top1, a.top5) for a in found.accuracies]).T
  return np.rint(shares * n) - hits.secret_hits


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("relation", CHANGED_UNITS)
def test_the_noise_has_the_law_that_the_statement_says(epsilon, relation):
  hits, delta = secret(), 1e-6
  plan = CountPlan(epsilon=epsilon, delta=delta, neighboring_relation=relation)
  noise = noise_of(hits, plan, seed=1)
  sigma = accounting.noise_multiplier(epsilon, delta)
  sd = sigma * math.sqrt(noise.size)
  # Rounding to integers adds 1/12.
  expected = math.sqrt(sd**2 + 1 / 12)
  spread = 5 / math.sqrt(2 * noise.size)
  assert noise.std() == pytest.approx(expected, rel=spread)
  assert scipy.stats.kstest(noise.ravel() / sd, "norm").pvalue > 1e-4
  # Each count has noise of its own.
  assert abs(np.corrcoef(noise)[0, 1]) < 5 / math.sqrt(noise.shape[1])
  again = noise_of(hits, plan, seed=None)
  assert (noise != again).mean() > 0.9
  statement = release_accuracies(
    hits, plan, NoiseSource(1), charge=free
  ).statement
  assert not statement.is_private
  assert "NOT PRIVATE" in statement.noise_source
  assert statement.noise_sd == pytest.approx(sd, rel=1e-12)
  assert statement.noise_sd >= sigma * math.sqrt(noise.size)
  assert statement.epsilon == epsilon
  assert statement.neighboring_relation is relation


@pytest.mark.parametrize("num_classes", [2, 5, 6])
def test_the_sensitivity_is_the_largest_change_there_is(num_classes):
  """Over all ways in which one row may be right or wrong in three heads.

  Top-5 is only paid for where it says something.
  """
  hits = secret(heads=3, num_classes=num_classes)
  plan = CountPlan(epsilon=1.0, delta=1e-5)
  found = release_accuracies(hits, plan, NoiseSource(0), charge=free)
  rows = itertools.product((0, 1), repeat=found.num_counts)
  changes = [np.subtract(a, b) for a, b in itertools.product(rows, repeat=2)]
  largest = max(np.linalg.norm(change) for change in changes)
  assert found.num_counts == (6 if num_classes == 6 else 3)
  top5 = {accuracy.top5 for accuracy in found.accuracies}
  assert (top5 == {1.0}) is (num_classes <= 5)
  assert largest <= found.statement.sensitivity < largest * (1 + 1e-12)


def test_a_unit_changes_counts_by_no_more_than_one():
  """Units of 1, 3, 96 and 200 rows, all right for once; by numpy alone."""
  units = np.repeat([7, 8, 9, 2], [1, 3, 96, 200])
  units = np.random.default_rng(0).permutation(units)
  block = with_units(random_block(300, 12, 8, seed=3), units)
  heads = [make_head(12, 8, seed=seed) for seed in range(4)]
  sizes = count_rows([block])
  found = count_hits(heads, in_blocks(block, [64]), sizes=sizes)
  share = 2**20 // np.bincount(units)[units]
  assert found.steps == 2**20
  assert found.secret_class_hits is None
  assert found.num_examples == share.sum() <= 4 * found.steps
  for i, head in enumerate(heads):
    logits = block.embedding @ head.kernel + head.bias
    right = logits.argmax(axis=1) == block.label
    assert found.secret_hits[0, i] == share[right].sum()
  all_right = block.but(
    label=(block.embedding @ heads[0].kernel + heads[0].bias).argmax(1)
  )
  for unit in (7, 8, 9, 2):
    own = all_right[units == unit]
    secret = count_hits(heads[:1], [own], sizes=sizes)
    assert 0.999 < secret.secret_hits[0, 0] / found.steps <= 1


def test_noise_of_units_is_that_of_units():
  """What is released is a share of units, and so is what it is divided by."""
  steps, units = 2**20, 10**6
  hits = SecretHits(
    num_examples=units * steps,
    num_classes=10,
    secret_hits=np.full((2, 2000), units * steps // 2),
    steps=steps,
  )
  plan = CountPlan(epsilon=1.0, delta=1e-6)
  found = release_accuracies(
    hits, plan, NoiseSource(1), charge=free, num_examples=30 * units
  )
  assert found.num_counts == 4001
  sd = plan.noise_multiplier * math.sqrt(4001)
  assert found.statement.noise_sd == pytest.approx(sd, rel=1e-12)
  assert abs(found.size - units) < 6 * sd
  shares = np.array([(a.top1, a.top5) for a in found.accuracies])
  noise = shares * found.size - units / 2
  assert noise.std() == pytest.approx(sd, rel=5 / math.sqrt(2 * 4000))


def test_it_is_charged_before_any_random_bit():
  events = []

  plan = CountPlan(epsilon=1.0, delta=1e-5)
  source = WatchedSource(events)

  def charge(asked, noise):
    assert (asked, noise) == (plan, source)
    events.append("charge")

  found = release_accuracies(secret(), plan, source, charge=charge)
  assert found.statement.is_private
  assert events[0] == "charge"
  assert events.count("charge") == 1
  assert "noise" in events
  events.clear()

  def refuse(*_: object) -> None:
    raise InputError("no")

  with pytest.raises(InputError):
    release_accuracies(secret(), plan, source, charge=refuse)
  assert not events


@pytest.mark.parametrize(
  ("epsilon", "delta", "complaint"),
  [
    (0.0, 1e-5, "epsilon=0.0 must"),
    (-1.0, 1e-5, "epsilon=-1.0 must"),
    (math.inf, 1e-5, "epsilon=inf must"),
    (1.0, 0.0, "delta=0.0 must"),
    (1e-6, 1e-8, "no accuracy could be seen through that"),
  ],
)
def test_budgets_that_make_no_sense(epsilon, delta, complaint):
  with pytest.raises(InputError, match=complaint):
    CountPlan(epsilon=epsilon, delta=delta)


def test_accuracies_are_shares():
  always = np.array([[0] * 50, [20] * 50])
  hits = SecretHits(num_examples=20, num_classes=9, secret_hits=always)
  plan = CountPlan(epsilon=0.1, delta=1e-5)
  found = release_accuracies(hits, plan, NoiseSource(0), charge=free)
  values = [v for a in found.accuracies for v in (a.top1, a.top5)]
  assert (min(values), max(values)) == (0, 1)
  assert all(a.num_examples == 20 for a in found.accuracies)


def test_where_n_is_private_it_is_a_count_too():
  """And what is divided by is nothing but noisy counts."""
  secret = SecretHits(
    num_examples=60_000,
    num_classes=3,
    secret_hits=np.array([[30_000], [60_000]]),
  )
  found = release_accuracies(
    secret,
    CountPlan(epsilon=2.0, delta=1e-6),
    NoiseSource(1),
    charge=free,
    num_examples=50_000,
    n_is_private=True,
  )
  (accuracy,) = found.accuracies
  assert accuracy.num_examples == 50_000
  assert abs(accuracy.top1 - 0.5) < 1e-3
  assert accuracy.top1 * 60_000 % 1 != 0
  assert found.num_counts == 2
  assert found.statement.sensitivity == pytest.approx(2**0.5)
