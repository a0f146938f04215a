"""The mixture costs at least what the steps cost, at every ε, both ways."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import special

from oneshot_dp.linear_dp.accounting import dominating
from oneshot_dp.linear_dp.accounting.dominating import dominating_noise, share
from oneshot_dp.linear_dp.accounting.events import (
  Steps,
  epsilon_of_event,
  parts_of,
)
from oneshot_dp.linear_dp.accounting.gaussian import epsilon_of
from tests.privacy_losses import delta_at, losses, steps

REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL


def sampled(event) -> tuple[Steps, ...]:
  return tuple(parts_of(event)[1])


def of_mixture(epsilon: np.ndarray, sigma: float, slack: float) -> np.ndarray:
  """B at any real ε, by Balle & Wang's formula."""
  near = special.ndtr(0.5 / sigma - epsilon * sigma)
  far = np.exp(epsilon) * special.ndtr(-0.5 / sigma - epsilon * sigma)
  return slack + (1 - slack) * (near - far)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("q", "count", "sigma", "slack"),
  [
    (0.02, 10, 0.7815, 5e-7),
    (0.01, 100, 1.0, 1e-7),
    (0.1, 30, 2.0, 5e-6),
    (1.0, 4, 4.0, 1e-9),
  ],
)
def test_it_costs_at_least_what_the_steps_cost(q, count, sigma, slack):
  """And where it costs the least more, hardly more at all."""
  event = steps(q, count, sigma)
  noise = dominating_noise(sampled(event), slack, SPECIAL)
  epsilon = np.linspace(-8, 8, 401)
  bound = of_mixture(epsilon, noise, slack)
  nearest = math.inf
  for removed in (True, False):
    found = delta_at(epsilon, losses(event, SPECIAL, removed=removed))
    # Of what is more than 1 − e^ε, which everything costs: the same measure
    # for ε below zero as for the other direction above it.
    plain = np.maximum(0, -np.expm1(epsilon))
    more, allowed = found - plain, bound - plain
    assert (more <= allowed * (1 + 2e-3) + 1e-12).all()
    seen = more > 1e-9
    nearest = min(nearest, (allowed[seen] / more[seen]).min(initial=9))
  assert nearest < 1.01


def test_in_a_row_s_place_it_costs_what_it_would_on_all_rows():
  """No pair is proven to dominate there; one that is conjectured costs less."""
  event, noise = steps(0.3, 5, 1.2), 1.2 / 2 / math.sqrt(5)
  found = dominating_noise(sampled(event), 1e-7, REPLACE)
  assert noise * (1 - 1e-8) <= found <= noise
  assert epsilon_of_event(event, 1e-6, REPLACE) == pytest.approx(
    epsilon_of(noise, 1e-6), rel=1e-7
  )
  epsilon = np.linspace(-8, 8, 161)
  for removed in (True, False):
    conjectured = delta_at(epsilon, losses(event, REPLACE, removed=removed))
    assert (conjectured <= of_mixture(epsilon, found, 0.0) + 1e-12).all()


def test_plans_in_many_places_have_few_curves():
  """A curve takes most of a second, and a ledger may have many plans."""
  dominating._curve.cache_clear()
  for place in range(1, 31):
    dominating_noise(sampled(steps(0.1, 3, 1.0)), share(1e-6, place), SPECIAL)
  assert dominating._curve.cache_info().misses <= math.log2(30 * 31) + 1


@pytest.mark.parametrize(
  ("q", "sigma", "slack"),
  [(0.02, 0.8, 1e-7), (0.5, 0.6, 1e-6), (0.2, 3.0, 1e-8), (0.001, 0.5, 1e-9)],
)
def test_one_step_by_its_densities(q, sigma, slack):
  """In 30 digits, far below zero and far above: never one digit less."""
  noise = dominating_noise((Steps(sigma, q, 1),), slack, SPECIAL)
  with mpmath.workdps(30):
    mu = 1 / mpmath.mpf(noise)

    def mixture_above(x):
      inner = (1 - q) * mpmath.ncdf(-x / sigma)
      return inner + q * mpmath.ncdf((1 - x) / sigma)

    for each in np.arange(-24, 24, 0.5):
      e = mpmath.exp(each)
      b = mpmath.ncdf(mu / 2 - each / mu) - e * mpmath.ncdf(-mu / 2 - each / mu)
      bound = slack + (1 - mpmath.mpf(slack)) * b
      # Where the mixture is e^ε, or e^−ε, times the other.
      removed, added = mpmath.mpf(0), mpmath.mpf(0)
      if e > 1 - q:
        x = sigma**2 * mpmath.log((e - 1 + q) / q) + mpmath.mpf(1) / 2
        removed = mixture_above(x) - e * mpmath.ncdf(-x / sigma)
      else:
        removed = 1 - e
      if 1 / e > 1 - q:
        x = sigma**2 * mpmath.log((1 / e - 1 + q) / q) + mpmath.mpf(1) / 2
        added = mpmath.ncdf(x / sigma) - e * (1 - mixture_above(x))
      assert removed <= bound
      assert added <= bound


# What `budget` says at δ = 1e-5, with s = δ/20, and what the steps cost alone.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("q", "count", "sigma", "loss"),
  [
    (0.01, 1000, 0.8, 0.035),
    (0.02, 10, 0.7815, 0.18),
  ],
)
def test_it_is_not_vacuous(q, count, sigma, loss):
  event, delta = steps(q, count, sigma), 1e-5
  noise = dominating_noise(sampled(event), delta / 20, SPECIAL)
  exact = epsilon_of_event(event, delta)
  found = epsilon_of(noise, delta - delta / 20)
  assert exact < found < exact * (1 + loss)


def test_several_steps_compose():
  whole = sampled(steps(0.02, 10, 0.9))
  halves = sampled(steps(0.02, 5, 0.9)) * 2
  found = [dominating_noise(of, 1e-7, SPECIAL) for of in (whole, halves)]
  assert found[1] == pytest.approx(found[0], rel=1e-6)


def test_more_slack_is_less_cost_and_none_is_that_of_all_rows():
  of = sampled(steps(0.01, 9, 0.9))
  slacks = (0.0, 1e-13, 1e-11, 1e-9, 1e-7, 1e-5, 1e-3, 0.5)
  found = [dominating_noise(of, slack, SPECIAL) for slack in slacks]
  assert found[0] == found[1] == pytest.approx(0.3, rel=1e-8)
  assert found[0] < 0.3
  assert found[1:] == sorted(found[1:])
  assert found[-1] == pytest.approx(1e6)
  assert dominating_noise(of, 0.0, REPLACE) == pytest.approx(0.15, rel=1e-8)


def test_the_mass_of_infinite_losses_is_counted(monkeypatch):
  """What dp_accounting cuts off its tails may be revealed."""
  infinite = 3e-8
  whole = dominating.loss_distribution

  def with_mass(*args):
    found = whole(*args)
    for pmf in (found._pmf_remove, found._pmf_add):
      pmf._infinity_mass = infinite
    return found

  of = sampled(steps(0.02, 10, 0.8))
  monkeypatch.setattr(dominating, "_curve", dominating._curve.__wrapped__)
  plain = dominating_noise.__wrapped__(of, 1e-7, SPECIAL)
  monkeypatch.setattr(dominating, "loss_distribution", with_mass)
  noise = dominating_noise.__wrapped__(of, 1e-7, SPECIAL)
  assert noise < plain * (1 - 1e-3)
  on_all_rows = dominating_noise.__wrapped__(of, 0.0, SPECIAL)
  none = dominating_noise.__wrapped__(of, infinite / 2, SPECIAL)
  assert none == on_all_rows


def test_shares_are_below_the_whole():
  assert [share(1.0, place) for place in (1, 2, 3)] == [1 / 2, 1 / 6, 1 / 12]
  assert math.fsum(share(0.3, place) for place in range(1, 10_000)) < 0.3
