"""Who sees what of a data set, and what they may learn from it."""

import dataclasses

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.pipeline.report.findings import Findings
from oneshot_dp.pipeline.saved_head.odds import found, right_guesses

FALSE_ALARMS = 0.01
"""The rate at which a test for membership is looked at."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
  """What somebody sees, and what that may tell of one privacy unit.

  Attributes:
    who: sees what.
    epsilon, delta: of all that together.
    private: whether its noise is from no seed.
    guesses: the most often that a guess at even odds is right.
    found: the most of the members that a test finds.
    uncovered: ledger entries beside it that no ε covers.
  """

  who: str
  epsilon: float
  delta: float
  private: bool
  guesses: float
  found: float
  uncovered: int


def scopes(findings: Findings) -> list[Scope]:
  """From one head to all that the ledger holds."""
  run, row, cost = findings.run, findings.chosen[0], findings.cost
  private = all(row.private for row in run.noisy)
  alone = f"this head alone (ε = {printable(row.epsilon)})"
  heads = f"all {len(run.noisy)} heads of this run"
  # Accuracies on private labels say more than the heads do.
  heads += ", and this page" if run.labels_are_public else ""
  lines = [
    _scope(alone, row.epsilon, row.delta, private),
    _scope(heads, cost.heads, run.delta, private),
  ]
  if cost.with_accuracies is not None:
    both = "these heads and their accuracies together, and this page"
    lines.append(_scope(both, cost.with_accuracies, run.delta, private))
  ledger = findings.budget
  if not isinstance(ledger, str) and ledger.charges > ledger.not_private:
    everything = f"all private releases from {run.dataset}"
    uncovered = ledger.not_private
    lines.append(
      _scope(everything, ledger.spent, ledger.delta, True, uncovered)
    )
  return lines


def _scope(
  who: str, epsilon: float, delta: float, private: bool, uncovered: int = 0
) -> Scope:
  return Scope(
    who=who,
    epsilon=epsilon,
    delta=delta,
    private=private,
    guesses=right_guesses(epsilon, delta),
    found=found(epsilon, delta, FALSE_ALARMS),
    uncovered=uncovered,
  )
