"""Caps against whoever looks at each release before choosing the next.

The best adversary there is, by dynamic programming: the δ that a tree of
releases reaches depends on earlier outputs through their privacy loss alone, so
at every loss the choice is taken that adds the most.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation
from scipy import signal

from oneshot_dp.linear_dp.accounting.events import (
  changed_units,
  event_as_json,
)
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.pipeline.ledger.cap import Cap
from tests.privacy_losses import REACH, STEP, losses, steps

REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
DELTA = 1e-5
NEARLY = 1 + 5e-4
"""The error of the oracle."""


def make_cap(epsilon: float, relation=SPECIAL, part=None) -> Cap:
  return Cap(
    max_epsilon=epsilon,
    max_delta=DELTA,
    neighboring_relation=relation,
    sampling_delta=part,
  )


def paid_by(*events: DpEvent) -> list[dict[str, Any]]:
  return [
    {
      "kind": "release",
      "entry": "ab" * 32,
      "private": True,
      "dp_event": event_as_json(event),
    }
    for event in events
  ]


def worst_delta(
  cap: Cap,
  choices: Callable[[tuple[DpEvent, ...]], Sequence[DpEvent]],
  depth: int,
  *,
  removed: bool,
) -> float:
  """δ at the cap's ε of the worst tree of releases.

  Args:
    cap: for its ε and relation.
    choices: what may come after a path of releases; or nothing more.
    depth: of the tree.
    removed: which of the neighbours has the row.
  """
  reach = REACH * (depth + 1)
  loss = np.arange(-reach, reach + 1) * STEP
  nothing_more = np.maximum(0, -np.expm1(cap.max_epsilon - loss))

  def value(path: tuple[DpEvent, ...]) -> np.ndarray:
    """δ that can still be reached, at every loss up to now."""
    best = nothing_more
    for event in choices(path) if len(path) < depth else ():
      law = losses(event, cap.neighboring_relation, removed=removed)
      after = signal.correlate(value((*path, event)), law, "same")
      best = np.maximum(best, after)
    return best

  return value(())[reach]


def allowed(cap: Cap, first: DpEvent, menu: Sequence[DpEvent]):
  """Everything of a menu that the cap lets out, and all that is left of it."""

  def choices(path: tuple[DpEvent, ...]) -> list[DpEvent]:
    spent = paid_by(*path)
    found = [
      event for event in (menu if path else [first]) if cap.allows(spent, event)
    ]
    relation = cap.neighboring_relation
    if path and (left := cap.left(spent, DELTA, relation)):
      sigma = noise_multiplier(left, DELTA) * changed_units(relation)
      found.append(GaussianDpEvent(sigma))
    return found

  return choices


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("relation", [SPECIAL, REPLACE])
def test_the_oracle_knows_gaussian_releases(relation, removed):
  cap = make_cap(2.0, relation)
  half = noise_multiplier(2.0, DELTA) * 2**0.5 * changed_units(relation)
  found = worst_delta(
    cap, lambda path: [GaussianDpEvent(half)], 2, removed=removed
  )
  assert DELTA / NEARLY < found < DELTA * NEARLY


def test_choosing_by_the_first_output():
  """Each path alone is within (2, 1e-5), and a choice between them is not."""
  gaussian, sampled = GaussianDpEvent(2.8197), steps(0.02, 10, 0.7815)
  cap = make_cap(2.0)
  for path in ([gaussian, gaussian], [gaussian, sampled]):
    assert cap.allows([], *path)
  both = worst_delta(
    cap,
    lambda path: [gaussian, sampled] if path else [gaussian],
    2,
    removed=True,
  )
  assert both == pytest.approx(1.63e-5, rel=2e-3)
  for part in (None, 0.0, DELTA / 10, DELTA / 2):
    assert not make_cap(2.0, part=part).allows(paid_by(gaussian), sampled)
  assert cap.allows(paid_by(gaussian), gaussian)


MENUS = {
  "the brim": (2.0, GaussianDpEvent(4.0), [steps(0.02, 10, 1.2)]),
  "samples first": (
    2.5,
    steps(0.02, 10, 1.0),
    [steps(0.01, 20, 0.9), GaussianDpEvent(5.0)],
  ),
  "nearly noiseless": (
    4.0,
    GaussianDpEvent(3.0),
    [steps(0.005, 2, 0.6), steps(0.3, 2, 1.5), GaussianDpEvent(2.0)],
  ),
  "much noise": (1.0, GaussianDpEvent(9.0), [steps(0.05, 20, 3.0)]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("menu", "part", "relation", "removed"),
  [
    ("the brim", DELTA / 10, SPECIAL, True),
    ("the brim", DELTA / 2, REPLACE, True),
    ("samples first", None, SPECIAL, True),
    ("samples first", DELTA / 2, SPECIAL, False),
    ("nearly noiseless", DELTA / 2, SPECIAL, True),
    ("nearly noiseless", DELTA / 10, REPLACE, True),
    ("much noise", None, SPECIAL, True),
    ("much noise", DELTA / 10, SPECIAL, False),
  ],
)
def test_no_adversary_gets_more_than_the_cap(menu, part, relation, removed):
  epsilon, first, then = MENUS[menu]
  cap = make_cap(epsilon, relation, part)
  choices = allowed(cap, first, then)
  found = worst_delta(cap, choices, 3, removed=removed)
  assert 0.1 * DELTA < found < DELTA * NEARLY


@pytest.mark.parametrize("seed", range(4))
def test_nor_does_one_with_a_menu_at_random(seed):
  rng = np.random.default_rng(seed)
  gaussian = GaussianDpEvent(float(rng.uniform(2, 8)))
  menu: list[DpEvent] = [gaussian]
  for q, sigma in zip(
    10 ** rng.uniform(-2.5, -0.5, 2), rng.uniform(0.7, 1.4, 2), strict=True
  ):
    menu.append(steps(float(q), int(rng.integers(1, 40)), float(sigma)))
  cap = make_cap(
    float(rng.uniform(1.5, 4)),
    (SPECIAL, REPLACE)[seed % 2],
    (None, DELTA / 10, DELTA / 3)[seed % 3],
  )
  for first in menu[:2]:
    choices = allowed(cap, first, menu)
    for removed in (True, False):
      assert worst_delta(cap, choices, 2, removed=removed) < DELTA * NEARLY
